"""Encoded rows: chosen as Python's lists would be, and the same once written and read."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from halfpint.data.encoded import Encoded, encode_sequences, ranges

Rows = list[list[list[int]]]
"""Tokens of sequences of rows."""

ROWS = st.lists(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=3), max_size=6)


def encode(rows: Rows, num_truncated: int = 0) -> Encoded:
    """Every array tells the same as the ids, so that none can be chosen without the others."""
    sequences = [sequence for row in rows for sequence in row]
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int64)
    return encode_sequences(
        sequences,
        [[token % 2 for token in sequence] for sequence in sequences],
        vocab_size=100,
        row_sequences=np.array([len(row) for row in rows], dtype=np.int64),
        per_sequence={"total": np.array([sum(sequence) for sequence in sequences], dtype=np.float32)},
        per_token={"twice": np.stack([tokens, tokens], axis=1)},
        notes={"place": -tokens},
        num_truncated=num_truncated,
    )


def rows_of(encoded: Encoded) -> Rows:
    return [
        [encoded.ids[encoded.tokens_of(sequence)].tolist() for sequence in encoded.sequences_of(row)]
        for row in range(encoded.num_rows)
    ]


def assert_same(ours: Encoded, theirs: Encoded) -> None:
    assert ours.num_truncated == theirs.num_truncated
    for name in ("ids", "segments", "starts", "row_starts"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
    for name in ("per_sequence", "per_token", "notes"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.keys() == other.keys()
        for key in mine:
            assert mine[key].dtype == other[key].dtype
            np.testing.assert_array_equal(mine[key], other[key])


@given(ROWS)
def test_rows_come_back(rows: Rows) -> None:
    encoded = encode(rows)
    assert rows_of(encoded) == rows
    lengths = [len(sequence) for row in rows for sequence in row]
    assert encoded.lengths.tolist() == lengths
    assert encoded.starts.tolist() == [0, *accumulate(lengths)]
    assert encoded.row_sequences.tolist() == [len(row) for row in rows]
    assert encoded.row_tokens.tolist() == [sum(map(len, row)) for row in rows]
    assert (encoded.num_rows, encoded.num_sequences, encoded.num_tokens) == (len(rows), len(lengths), sum(lengths))


@given(rows=ROWS.filter(bool), data=st.data())
def test_chosen_rows_are_those_that_python_chooses(rows: Rows, data: st.DataObject) -> None:
    """In any order, and any of them as often as it is named."""
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    expected = encode([rows[row] for row in chosen])
    assert_same(encode(rows, num_truncated=3).select(np.array(chosen, dtype=np.int64)), expected)


@given(rows=ROWS, data=st.data())
def test_a_slice_is_that_of_a_list(rows: Rows, data: st.DataObject) -> None:
    part = data.draw(st.slices(len(rows)))
    assert rows_of(encode(rows).select(np.arange(len(rows))[part])) == rows[part]


@given(lengths=npst.arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 4)), data=st.data())
def test_ranges_are_slices_end_to_end(lengths: Any, data: st.DataObject) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    everything = list(range(int(lengths.sum())))
    expected = [each for index in chosen for each in everything[starts[index] : starts[index + 1]]]
    assert ranges(starts, np.array(chosen, dtype=np.int64)).tolist() == expected


@given(rows=ROWS, num_truncated=st.integers(0, 9))
def test_written_and_read_nothing_changes(
    rows: Rows, num_truncated: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("encoded")
    encoded = encode(rows, num_truncated)
    encoded.write(folder)
    again = Encoded.read(folder)
    assert_same(again, encoded)
    assert isinstance(again.ids, np.memmap)
    if rows:
        assert_same(again.select(np.array([0])), encode(rows[:1]))


def test_names_may_hold_dots(tmp_path: Path) -> None:
    encoded = encode_sequences([[1]], None, vocab_size=9, per_token={"a.b": np.array([2])})
    encoded.write(tmp_path)
    assert_same(Encoded.read(tmp_path), encoded)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    encode([[[1, 2], [3]], [[4]]]).write(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["ids", "segments", "starts", "row_starts", "per_sequence.total", "per_token.twice", "notes.place"]
)
def test_a_missing_or_short_array_is_refused(name: str, written: Path) -> None:
    path = written / f"{name}.npy"
    data = path.read_bytes()
    for size in (*range(0, len(data), 11), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError):
            Encoded.read(written)
    path.unlink()
    with pytest.raises(ValueError, match=r"has not the arrays that encoded.json names; encode the data again"):
        Encoded.read(written)


def test_another_array_is_refused(written: Path) -> None:
    for other in (np.zeros(3, np.uint16), np.zeros(4, np.int64)):
        np.save(written / "ids.npy", other)
        with pytest.raises(ValueError, match="has not the arrays"):
            Encoded.read(written)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "3", json.dumps({"num_truncated": 0})])
def test_facts_that_are_broken_are_refused(content: str, written: Path) -> None:
    (written / "encoded.json").write_text(content)
    with pytest.raises(ValueError):
        Encoded.read(written)


def test_ids_beyond_the_vocabulary_are_an_error() -> None:
    with pytest.raises(OverflowError):
        encode_sequences([[65_536]], None, vocab_size=65_536)
