"""The loader: every row once an epoch, in an order that nothing but seed and epoch decides."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.encoded import Encoded, encode_sequences
from halfpint.data.loader import Loader, Mixing, make_batch, prefetch
from halfpint.model.batch import FILLER, IGNORED, BatchShape
from tests.train.samples import draw_rows

SHAPE = BatchShape(tokens=64, sequences=24, longest=16)


@st.composite
def encodings(draw: st.DrawFn) -> Encoded:
    """Rows of one to three sequences; every token tells its row."""
    per_row = draw(st.lists(st.integers(1, 3), min_size=1, max_size=30))
    lengths = draw(st.lists(st.integers(1, 9), min_size=sum(per_row), max_size=sum(per_row)))
    rows = np.repeat(np.arange(len(per_row)), per_row)
    ids = [[int(row)] * length for row, length in zip(rows, lengths, strict=True)]
    tokens = np.concatenate([np.full(length, row) for row, length in zip(rows, lengths, strict=True)])
    return encode_sequences(
        ids,
        None,
        vocab_size=100,
        row_sequences=np.array(per_row),
        per_sequence={"label": rows},
        per_token={"row": tokens},
    )


@given(encodings(), st.integers(1, 8), st.sampled_from(get_args(Mixing)), st.booleans())
def test_an_epoch_has_every_row_once_and_whole(encoded: Encoded, rows: int, mixing: Mixing, shaped: bool) -> None:
    loader = Loader(encoded, rows, seed=1, shape=SHAPE if shaped else None, max_tokens=40, mixing=mixing)
    steps = list(loader.steps(0))
    assert len(steps) == loader.num_steps
    seen = []
    for step in steps:
        in_step = 0
        for batch in step:
            real = batch.row != FILLER
            assert torch.equal(batch.per_token["row"][: batch.num_real_tokens], batch.ids[: batch.num_real_tokens])
            assert (batch.per_slot["label"][~real] == IGNORED).all()
            labels, numbers = batch.per_slot["label"][real], batch.row[real]
            assert torch.equal(torch.unique(numbers), torch.arange(int(numbers.max()) + 1))
            in_step += int(numbers.max()) + 1
            seen += labels.tolist()
        assert in_step <= rows
    assert sorted(seen) == sorted(encoded.per_sequence["label"].tolist())


@given(encodings(), st.integers(1, 8), st.integers(0, 3))
def test_the_order_is_that_of_seed_and_epoch(encoded: Encoded, rows: int, epoch: int) -> None:
    one, two = Loader(encoded, rows, seed=5), Loader(encoded, rows, seed=5, max_tokens=3)
    assert np.array_equal(one.order(epoch), two.order(epoch))
    if encoded.num_rows > 8:
        assert not np.array_equal(one.order(epoch), one.order(epoch + 1))
        assert not np.array_equal(one.order(epoch), Loader(encoded, rows, seed=6).order(epoch))


@given(encodings(), st.integers(1, 8), st.data())
def test_an_epoch_can_begin_anywhere(encoded: Encoded, rows: int, data: st.DataObject) -> None:
    loader = Loader(encoded, rows)
    first = data.draw(st.integers(0, loader.num_steps))
    whole = [[batch.ids.tolist() for batch in step] for step in loader.steps(2)]
    assert [[batch.ids.tolist() for batch in step] for step in loader.steps(2, first)] == whole[first:]


@given(encodings(), st.integers(1, 8))
def test_ranks_share_a_step(encoded: Encoded, rows: int) -> None:
    whole = [
        sorted(int(each) for batch in step for each in batch.per_slot["label"])
        for step in Loader(encoded, rows).steps(0)
    ]
    parts = [Loader(encoded, rows, rank=rank, world=3) for rank in range(3)]
    shared = [
        sorted(int(each) for step in steps for batch in step for each in batch.per_slot["label"])
        for steps in zip(*(part.steps(0) for part in parts), strict=True)
    ]
    assert shared == whole


@given(encodings(), st.integers(1, 8))
def test_evaluation_sees_every_row_once(encoded: Encoded, rows: int) -> None:
    seen = [index for part, _ in Loader(encoded, rows).in_order() for index in part.tolist()]
    assert sorted(seen) == list(range(encoded.num_rows))


def test_grouped_rows_are_of_like_length() -> None:
    encoded = draw_rows("sequence", 2000)
    spread = {
        mixing: np.mean([np.ptp(batch.lengths) for (batch,) in Loader(encoded, 20, mixing=mixing).steps(0)])
        for mixing in ("plain", "grouped")
    }
    assert spread["grouped"] < 0.1 * spread["plain"]


def test_balanced_steps_have_about_as_many_tokens() -> None:
    encoded = draw_rows("sequence", 2000)
    spread = {
        mixing: np.std([batch.num_tokens for (batch,) in Loader(encoded, 20, mixing=mixing).steps(0)])
        for mixing in ("plain", "balanced")
    }
    assert spread["balanced"] < 0.2 * spread["plain"]


def test_in_balanced_steps_all_rows_meet_but_neighbours_by_length() -> None:
    encoded = encode_sequences([[1] * length for length in range(1, 13)], None, vocab_size=2)
    loader, met = Loader(encoded, 4, mixing="balanced"), np.zeros((12, 12), dtype=int)
    for epoch in range(300):
        for step in np.split(loader.order(epoch), 3):
            met[np.ix_(step, step)] += 1
    neighbours = np.arange(12)[:, None] // 3 == np.arange(12) // 3
    assert (met[neighbours & ~np.eye(12, dtype=bool)] == 0).all()
    assert np.abs(met[~neighbours] - 100).max() < 40


@given(encodings(), st.integers(1, 8), st.sampled_from(get_args(Mixing)), st.integers(10, 60))
def test_a_fitted_shape_holds_every_step(encoded: Encoded, rows: int, mixing: Mixing, max_tokens: int) -> None:
    loader = Loader(encoded, rows, seed=2, mixing=mixing, max_tokens=max_tokens).fit(2)
    assert loader.shape is not None
    for epoch in range(2):
        for step in loader.steps(epoch):
            tokens = sum(batch.num_real_tokens for batch in step)
            assert len(step) == 1 if tokens <= max_tokens else len(step) <= -(-tokens // max_tokens) + 1
            assert all(batch.num_tokens == loader.shape.tokens for batch in step)


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    encoded = draw_rows("span")
    encoded.write(tmp_path)
    again = Encoded.read(tmp_path)
    ours, theirs = make_batch(encoded), make_batch(again)
    assert torch.equal(ours.ids, theirs.ids)
    assert torch.equal(ours.per_slot["label"], theirs.per_slot["label"])
    assert isinstance(again.ids, np.memmap)


def test_small_vocabularies_take_two_bytes_a_token() -> None:
    assert encode_sequences([[1, 65535]], None, vocab_size=65536).ids.dtype == np.uint16
    assert encode_sequences([[1, 65536]], None, vocab_size=65537).ids.tolist() == [1, 65536]


def test_prefetching_changes_nothing_and_hands_errors_over() -> None:
    loader = Loader(draw_rows("sequence"), 16)
    plain = [[batch.ids.tolist() for batch in step] for step in loader.steps(0)]
    assert [[batch.ids.tolist() for batch in step] for step in prefetch(loader.steps(0), depth=2)] == plain

    def failing():
        yield from ()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(prefetch(failing()))


def test_a_prefetch_that_is_left_ends() -> None:
    loader = Loader(draw_rows("sequence"), 1)
    steps = prefetch(loader.steps(0), depth=1)
    next(steps)
    steps.close()
