"""Ragged batches: from lists and back, filled to a shape, and refused where they cannot be right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfpint.model.batch import FILLER, Batch, BatchShape
from tests.model.samples import FAMILIES
from tests.strategies import NUM_POSITIONS, ragged_ids

PAD = 3


@st.composite
def shapes_for(draw: st.DrawFn, ids: list[list[int]], num_targets: int = 0) -> BatchShape:
    """A shape that these sequences fit, with room to spare or none."""
    longest = draw(st.integers(max(map(len, ids)), NUM_POSITIONS))
    extra = draw(st.integers(0, 3 * NUM_POSITIONS))
    return BatchShape(
        tokens=sum(map(len, ids)) + extra,
        sequences=len(ids) + -(-extra // longest) + draw(st.integers(0, 3)),
        longest=longest,
        targets=num_targets + draw(st.integers(0, 3)),
    )


@st.composite
def filled_batches(draw: st.DrawFn) -> tuple[Batch, BatchShape, Batch]:
    """A batch, a shape it fits, and the batch filled to it."""
    ids = draw(ragged_ids())
    segments = [[place % 2 for place in range(len(each))] for each in ids]
    targets = draw(st.lists(st.integers(0, sum(map(len, ids)) - 1), unique=True, max_size=4))
    batch = Batch.from_ids(ids, segments).with_targets(torch.tensor(targets, dtype=torch.int64))
    shape = draw(shapes_for(ids, len(targets)))
    return batch, shape, batch.fill(shape, PAD)


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}


def lengths_of(batch: Batch) -> np.ndarray:
    return np.diff(batch.cu_lengths.numpy())


@given(ragged_ids())
def test_split_is_the_reverse_of_from_ids(ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids)
    assert [piece.tolist() for piece in batch.split(batch.ids)] == ids


@given(ragged_ids())
def test_split_cuts_any_tensor_over_tokens(ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids)
    pieces = list(batch.split(torch.stack([batch.ids, -batch.ids], dim=1)))
    assert [piece[:, 1].tolist() for piece in pieces] == [[-word for word in each] for each in ids]


@given(ragged_ids())
def test_positions_begin_anew_in_every_sequence(ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids)
    assert [piece.tolist() for piece in batch.split(batch.positions)] == [list(range(len(each))) for each in ids]


@given(ragged_ids())
def test_cu_lengths_are_where_sequences_begin_and_end(ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids)
    assert batch.cu_lengths.dtype == torch.int32
    assert batch.cu_lengths.tolist() == [sum(map(len, ids[:number])) for number in range(len(ids) + 1)]
    assert batch.lengths == [len(each) for each in ids]
    assert batch.longest == max(map(len, ids))


def test_segments_lie_beside_their_ids() -> None:
    batch = Batch.from_ids([[5, 6, 7], [8]], segments=[[0, 1, 1], [2]])
    assert [piece.tolist() for piece in batch.split(batch.segments)] == [[0, 1, 1], [2]]


def test_segments_are_zero_unless_given() -> None:
    assert Batch.from_ids([[5, 6], [7]]).segments.tolist() == [0, 0, 0]


def test_rows_and_documents_are_numbered_unless_given() -> None:
    batch = Batch.from_ids([[1], [2], [3]])
    assert batch.row.tolist() == batch.document.tolist() == [0, 1, 2]


def test_sequences_of_one_row_keep_its_number() -> None:
    batch = Batch.from_ids([[1], [2], [3]], rows=[7, 7, 9], documents=[4, 5, 4])
    assert (batch.row.tolist(), batch.document.tolist()) == ([7, 7, 9], [4, 5, 4])


def test_numpy_ids_are_ids() -> None:
    assert Batch.from_ids([np.array([4, 5], dtype=np.int32), np.array([6])]).ids.tolist() == [4, 5, 6]


@given(filled_batches())
def test_a_filled_batch_has_exactly_the_declared_shape(case: tuple[Batch, BatchShape, Batch]) -> None:
    batch, shape, filled = case
    assert {name: tuple(value.shape) for name, value in tensors(filled).items()} == {
        "ids": (shape.tokens,),
        "positions": (shape.tokens,),
        "segments": (shape.tokens,),
        "cu_lengths": (shape.sequences + 1,),
        "row": (shape.sequences,),
        "document": (shape.sequences,),
        "targets": (shape.targets,),
    }
    assert filled.longest == shape.longest
    assert all(value.dtype == tensors(batch)[name].dtype for name, value in tensors(filled).items())


@given(filled_batches())
def test_filling_keeps_what_was_there(case: tuple[Batch, BatchShape, Batch]) -> None:
    batch, _, filled = case
    for name, value in tensors(batch).items():
        assert torch.equal(tensors(filled)[name][: len(value)], value), name
    assert [piece.tolist() for piece in filled.split(filled.ids)] == [
        piece.tolist() for piece in batch.split(batch.ids)
    ]


@given(filled_batches())
def test_filler_stands_in_sequences_of_its_own(case: tuple[Batch, BatchShape, Batch]) -> None:
    batch, shape, filled = case
    new = slice(batch.num_slots, None)
    assert set(filled.row[new].tolist()) <= {FILLER}
    assert set(filled.document[new].tolist()) <= {FILLER}
    assert set(filled.ids[batch.num_tokens :].tolist()) <= {PAD}
    assert lengths_of(filled)[new].sum() == shape.tokens - batch.num_tokens
    assert lengths_of(filled).max() <= shape.longest


@given(filled_batches())
def test_slots_without_tokens_come_last(case: tuple[Batch, BatchShape, Batch]) -> None:
    is_empty = lengths_of(case[2]) == 0
    assert (np.sort(is_empty) == is_empty).all()


@given(filled_batches())
def test_positions_begin_anew_in_filler_too(case: tuple[Batch, BatchShape, Batch]) -> None:
    filled = case[2]
    expected = np.concatenate([np.arange(length) for length in lengths_of(filled)])
    assert np.array_equal(filled.positions.numpy(), expected)


@given(filled_batches())
def test_unused_targets_are_marked(case: tuple[Batch, BatchShape, Batch]) -> None:
    batch, _, filled = case
    assert set(filled.targets[len(batch.targets) :].tolist()) <= {FILLER}


@given(filled_batches())
def test_filler_share_is_the_part_of_tokens_that_are_filler(case: tuple[Batch, BatchShape, Batch]) -> None:
    batch, shape, filled = case
    assert batch.filler_share == 0
    assert filled.num_real_tokens == batch.num_tokens
    assert filled.filler_share == pytest.approx((shape.tokens - batch.num_tokens) / shape.tokens)


@given(filled_batches())
def test_filling_a_full_batch_changes_nothing(case: tuple[Batch, BatchShape, Batch]) -> None:
    _, shape, filled = case
    again = filled.fill(shape, PAD)
    assert all(torch.equal(value, tensors(filled)[name]) for name, value in tensors(again).items())


def test_a_batch_without_targets_stays_without() -> None:
    assert Batch.from_ids([[1]]).fill(BatchShape(tokens=4, sequences=2, longest=4, targets=3)).targets is None


@given(filled_batches())
def test_slots_name_the_sequence_of_every_token(case: tuple[Batch, BatchShape, Batch]) -> None:
    filled = case[2]
    assert filled.slots().tolist() == np.repeat(np.arange(filled.num_slots), lengths_of(filled)).tolist()


@given(filled_batches())
def test_first_tokens_are_the_first_of_every_sequence(case: tuple[Batch, BatchShape, Batch]) -> None:
    filled = case[2]
    first, lengths = filled.first_tokens(), lengths_of(filled)
    assert not filled.positions[first[lengths > 0]].any()
    assert filled.slots()[first[lengths > 0]].tolist() == np.flatnonzero(lengths).tolist()


@given(filled_batches())
def test_first_tokens_of_empty_slots_are_some_token(case: tuple[Batch, BatchShape, Batch]) -> None:
    first = case[2].first_tokens()
    assert int(first.min()) >= 0
    assert int(first.max()) < case[2].num_tokens


@given(filled_batches())
def test_to_moves_every_tensor(case: tuple[Batch, BatchShape, Batch]) -> None:
    moved = case[2].to("meta")
    assert {value.device.type for value in tensors(moved).values()} == {"meta"}
    assert tensors(moved).keys() == tensors(case[2]).keys()
    assert moved.longest == case[2].longest


def test_to_leaves_missing_targets_missing() -> None:
    assert Batch.from_ids([[1]]).to("meta").targets is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ids": []}, "empty batch"),
        ({"ids": [[1], [], [2]]}, "sequence 1 is empty"),
        ({"ids": [[1, 2], [3]], "segments": [[0, 0], [0, 0]]}, "segments.*same lengths"),
        ({"ids": [[1, 2], [3]], "segments": [[0, 0]]}, "segments.*same lengths"),
        ({"ids": [1, 2]}, r"ids are \[1, 2\]; give one list of whole numbers a sequence"),
        ({"ids": None}, "ids are None; give one list of whole numbers"),
        ({"ids": [[1.7, 2.2]]}, r"ids hold 1.7 \(float\); give whole numbers"),
        ({"ids": [(1, 2.5)]}, r"ids hold 2.5 \(float\); give whole numbers"),
        ({"ids": [np.array([1.0, 2.0])]}, r"ids hold np.float64\(1.0\) \(float64\); give whole numbers"),
        ({"ids": [[1, None]]}, r"ids hold None \(NoneType\); give whole numbers"),
        ({"ids": [[10**30]]}, r"ids hold 10{30} \(int\); give whole numbers"),
        ({"ids": [(10**30,)]}, r"ids hold 10{30} \(int\); give whole numbers"),
        ({"ids": [["5"]]}, r"ids hold '5' \(str\); give whole numbers"),
        ({"ids": [[[1, 2], [3, 4]]]}, r"ids hold \[1, 2\] \(list\); give whole numbers"),
        ({"ids": [np.array([[1, 2]])]}, r"ids hold array\(\[1, 2\]\) \(ndarray\); give whole numbers"),
        ({"ids": [[1, 2]], "segments": [[0, 0.5]]}, r"segments hold 0.5 \(float\); give whole numbers"),
        ({"ids": [[1], [2]], "rows": [0]}, "rows has 1 entries for 2 sequences"),
        ({"ids": [[1], [2]], "documents": [0, 1, 2]}, "documents has 3 entries for 2 sequences"),
    ],
    ids=str,
)
def test_lists_that_make_no_batch_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Batch.from_ids(**arguments)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 4}, r"5 tokens.*do not fit a shape of 4 tokens"),
        ({"longest": 2}, r"longest sequence of 3.*do not fit.*sequences of 2"),
        ({"sequences": 1}, r"2 sequences and 1 of filler do not fit 1 slots"),
        ({"sequences": 2}, r"2 sequences and 1 of filler do not fit 2 slots; declare more slots"),
        ({"tokens": 18, "sequences": 4}, r"2 sequences and 4 of filler do not fit"),
        ({"targets": 1}, r"2 targets do not fit 1 target slots"),
    ],
    ids=str,
)
def test_a_shape_too_small_is_refused(changes: dict, words: str) -> None:
    batch = Batch.from_ids([[1, 2, 3], [4, 5]]).with_targets(torch.tensor([0, 4]))
    shape = BatchShape(tokens=8, sequences=6, longest=4, targets=2)
    batch.fill(shape)
    with pytest.raises(ValueError, match=words):
        batch.fill(dataclasses.replace(shape, **changes))


@pytest.mark.parametrize(("name", "value"), [("tokens", 0), ("sequences", -1), ("longest", 0), ("targets", -1)])
def test_an_impossible_shape_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"BatchShape\.{name} is {value}"):
        BatchShape(**{"tokens": 4, "sequences": 1, "longest": 4, name: value})


def test_values_that_are_not_over_tokens_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="2 values for 3 tokens"):
        next(Batch.from_ids([[1, 2, 3]]).split(torch.zeros(2)))


LIMITS = FAMILIES["bert"]


def test_a_batch_at_the_limits_is_taken() -> None:
    last = LIMITS.vocab_size - 1
    Batch.from_ids([[0, last] * (LIMITS.num_positions // 2)], [[0, 1] * (LIMITS.num_positions // 2)]).check(LIMITS)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Batch.from_ids([[1] * 17, [2]]), "sequence of 17 tokens is longer than the encoder's 16 positions"),
        (Batch.from_ids([[1], [40, 2]]), "token id 40 is outside the vocabulary of 40"),
        (Batch.from_ids([[1], [-2, 50]]), "token id -2 is outside the vocabulary of 40"),
        (Batch.from_ids([[1, 2]], [[0, 2]]), "segment 2 is outside the encoder's 2 token types"),
        (Batch.from_ids([[1, 2]], [[-1, 2]]), "segment -1 is outside the encoder's 2 token types"),
    ],
    ids=["long", "id", "negative id", "segment", "negative segment"],
)
def test_what_an_encoder_cannot_take_is_refused(batch: Batch, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch.check(LIMITS)


def test_an_encoder_without_token_types_takes_any_segments() -> None:
    Batch.from_ids([[1, 2]], [[0, 7]]).check(LIMITS.replace(num_token_types=0))
