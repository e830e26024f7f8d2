"""The cache of encoded data: the same content whoever asks, whatever has become of the folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.cache import cache_folder, cached, fingerprint
from halfpint.data.encoded import Encoded, encode_sequences
from tests.data.test_encoded import ROWS, Rows, assert_same, encode

VALUES = st.none() | st.text(max_size=3) | st.sampled_from(["null", "a", '"a"', "[]"])
COLUMN = st.lists(VALUES, min_size=1, max_size=4)


class Counted:
    """Makes the same encoding every time, and counts."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.calls = 0

    def __call__(self) -> Encoded:
        self.calls += 1
        return self.encoded


@pytest.fixture
def make() -> Counted:
    return Counted(encode([[[1, 2], [3]], [[4]], [[5, 6, 7]]], num_truncated=2))


@given(rows=ROWS)
def test_what_is_cached_is_what_was_made(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cache")
    make = Counted(encode(rows, num_truncated=1))
    for _ in range(3):
        assert_same(cached("key", make, folder), make.encoded)
    assert make.calls == 1


def test_keys_are_apart(make: Counted, tmp_path: Path) -> None:
    other = Counted(encode([[[9]]]))
    assert_same(cached("one", make, tmp_path), make.encoded)
    assert_same(cached("two", other, tmp_path), other.encoded)
    assert_same(cached("one", other, tmp_path), make.encoded)


def remove(name: str) -> Callable[[Path], Any]:
    return lambda entry: (entry / name).unlink()


def fill(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda entry: (entry / name).write_bytes(content)


def shorten(name: str) -> Callable[[Path], Any]:
    return lambda entry: os.truncate(entry / name, (entry / name).stat().st_size - 1)


def replace_by_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("no folder")


def add_an_array(entry: Path) -> None:
    np.save(entry / "per_token.more.npy", np.zeros(3))


@pytest.mark.parametrize(
    "harm",
    [
        remove("encoded.json"),
        remove("ids.npy"),
        remove("per_sequence.total.npy"),
        remove("notes.place.npy"),
        shorten("ids.npy"),
        shorten("encoded.json"),
        fill("ids.npy", b""),
        fill("starts.npy", b"PK\x03\x04 no zip"),
        fill("encoded.json", b"\xff"),
        fill("encoded.json", b"[1]"),
        fill("encoded.json", b'{"num_truncated": 0, "more": 1}'),
        add_an_array,
    ],
)
def test_a_broken_entry_is_made_again_and_mended(harm: Callable[[Path], Any], make: Counted, tmp_path: Path) -> None:
    cached("key", make, tmp_path)
    harm(tmp_path / "encoded" / "key")
    for _ in range(2):
        assert_same(cached("key", make, tmp_path), make.encoded)
    assert make.calls == 2


def test_a_file_in_the_place_of_an_entry_costs_the_cache_alone(make: Counted, tmp_path: Path) -> None:
    cached("key", make, tmp_path)
    replace_by_file(tmp_path / "encoded" / "key")
    assert_same(cached("key", make, tmp_path), make.encoded)


def test_what_a_killed_run_has_half_written_is_in_nobodys_way(make: Counted, tmp_path: Path) -> None:
    (tmp_path / "encoded" / ".key.abc").mkdir(parents=True)
    np.save(tmp_path / "encoded" / ".key.abc" / "ids.npy", np.zeros(2))
    assert_same(cached("key", make, tmp_path), make.encoded)
    assert_same(cached("key", make, tmp_path), make.encoded)
    assert make.calls == 1


def test_nothing_is_left_beside_the_entries(make: Counted, tmp_path: Path) -> None:
    cached("key", make, tmp_path)
    assert [path.name for path in (tmp_path / "encoded").iterdir()] == ["key"]


def test_an_entry_that_another_process_made_meanwhile_stays(make: Counted, tmp_path: Path) -> None:
    def make_late() -> Encoded:
        cached("key", make, tmp_path)
        return make.encoded

    assert_same(cached("key", make_late, tmp_path), make.encoded)
    assert [path.name for path in (tmp_path / "encoded").iterdir()] == ["key"]
    assert_same(cached("key", make, tmp_path), make.encoded)
    assert make.calls == 1


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(make: Counted, tmp_path: Path) -> None:
    """A read-only one (which root may write to), and a file where the folder should be."""
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir(mode=0o555)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "closed"):
        assert_same(cached("key", make, folder), make.encoded)


def test_a_full_disk_costs_the_cache_alone(make: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", no_space)
        assert_same(cached("key", make, tmp_path), make.encoded)
        assert list((tmp_path / "encoded").iterdir()) == []
    cached("key", make, tmp_path)
    cached("key", make, tmp_path)
    assert make.calls == 2


def test_an_error_in_making_is_the_makers(tmp_path: Path) -> None:
    def fail() -> Encoded:
        raise ValueError("row 3 has an empty text")

    with pytest.raises(ValueError, match="row 3 has an empty text"):
        cached("key", fail, tmp_path)


# Fingerprints


@given(columns=st.lists(COLUMN, min_size=2, max_size=2), lengths=st.lists(st.integers(1, 2), max_size=4))
def test_equal_tables_have_equal_fingerprints_and_others_not(columns: list[list[Any]], lengths: list[int]) -> None:
    ours, theirs = (pa.table({"a": pa.array(column, pa.string())}) for column in columns)
    assert (fingerprint(ours) == fingerprint(theirs)) == (columns[0] == columns[1])
    cuts = [0, *np.cumsum(lengths).clip(max=len(ours)).tolist(), len(ours)]
    parts = [ours.slice(start, stop - start) for start, stop in pairwise(cuts)]
    assert fingerprint(pa.concat_tables(parts)) == fingerprint(ours)


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"text": ["a", "bc"], "n": [1, 2]}),
        pa.table({"text": ["ab", "c"], "n": [1, 3]}),
        pa.table({"text": ["ab", "c"], "m": [1, 2]}),
        pa.table({"text": ["ab", "c"], "n": ["1", "2"]}),
        pa.table({"text": ["ab", "c"], "n": [1.0, 2.0]}),
        pa.table({"text": ["c", "ab"], "n": [2, 1]}),
        pa.table({"text": ["ab"], "n": [1]}),
        pa.table({"text": ["ab", "c"]}),
    ],
)
def test_any_change_of_the_data_changes_the_fingerprint(other: pa.Table) -> None:
    assert fingerprint(other) != fingerprint(pa.table({"text": ["ab", "c"], "n": [1, 2]}))


def test_what_decides_the_encoding_changes_the_fingerprint() -> None:
    table = pa.table({"text": ["a"], "tokens": [["b", "c"]]})
    prints = [fingerprint(table, *facts) for facts in ([], [128], ["128"], [128, {"do": True}], [[128]], [256])]
    assert len(set(prints)) == len(prints)
    assert fingerprint(table, 128, {"do": True}) == prints[3]


# Folders


def test_the_cache_is_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HALFPINT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "halfpint"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "halfpint"
    monkeypatch.setenv("HALFPINT_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    cached("key", lambda: encode_sequences([[1]], None, vocab_size=9))
    assert (tmp_path / "own" / "encoded" / "key" / "encoded.json").is_file()
