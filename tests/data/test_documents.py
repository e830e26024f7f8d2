"""Documents come out of files of every kind in their order, and in bounded memory."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halfpint.data.documents import read_documents
from halfpint.data.sources import DataError
from tests.data.files import write

TEXTS = ["one. two.", "", "three\nfour", "naïve ☕"]


def test_rows_are_documents(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"title": "t", "text": text}) + "\n" for text in TEXTS)
    write(tmp_path / "a.jsonl", lines)
    (tmp_path / "b.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    pq.write_table(pa.table({"text": TEXTS, "n": [1, 2, 3, 4]}), tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.jsonl.xz", "c.parquet"):
        assert list(read_documents(tmp_path / name)) == TEXTS
    assert list(read_documents(tmp_path)) == 3 * TEXTS


def test_blank_lines_part_the_documents_of_a_text_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\nfirst line\r\nsecond\n \n\nanother\n")
    assert list(read_documents(path)) == ["first line\nsecond", "another"]


def test_without_blank_lines_every_line_is_a_document(tmp_path: Path) -> None:
    assert list(read_documents(write(tmp_path / "a.txt.gz", "one\ntwo\nthree"))) == ["one", "two", "three"]


def test_strings_and_paths_are_taken_as_they_come(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    assert list(read_documents(iter(["zero", "one"]))) == ["zero", "one"]
    assert list(read_documents([path, path])) == ["one", "two", "one", "two"]


def test_a_column_is_named_where_there_are_several(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"body": "x", "summary": "y"}\n')
    assert list(read_documents(path, text="summary")) == ["y"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": 3}\n', "has 3 in its column text, expected a text"),
        ("a.txt", b"fine\n\xff\n", "line 2 is not UTF-8"),
        ("a.txt.xz", b"broken", "cannot be decompressed"),
        ("a.pdf", b"%PDF", "is of no kind that is known here"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        list(read_documents(tmp_path / name))


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.pdf", "")
    with pytest.raises(DataError, match="has no files with text in them"):
        list(read_documents(tmp_path))
    with pytest.raises(DataError, match="a document is 3, a int"):
        list(read_documents([3]))
