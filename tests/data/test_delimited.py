"""CSV and TSV: what is read is what the csv module reads, and what is wrong is told with its line."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfpint.data import delimited
from halfpint.data.delimited import CSV, TSV, DataError, Dialect, read_delimited
from tests.data.files import COMPRESS, write

# All that means something to a parser, and a little else.
PIECES = st.sampled_from(
    [",", "\t", '"', '""', "\n", "\r\n", "\r", "x", " ", "é", '"a,b"', "x,y\n", "x\ty\n", '"p\nq"']
)
HEADS = st.sampled_from(["", "a,b\n", "a\tb\n", "\n\r\n\na,b\n", "a\n", '"a","b"\r\n', '"a\n",b\n'])


def rows_of(path: Path, dialect: Dialect, columns: list[str] | None = None) -> list[list[str]]:
    return [list(row.values()) for table in read_delimited(path, dialect, columns) for row in table.to_pylist()]


def rows_of_reference(text: str, dialect: Dialect) -> list[list[str]] | None:
    """By the csv module alone; None for what is to be refused."""
    quoting = csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter, quoting=quoting, strict=True)
    try:
        header, *rows = filter(None, reader)
    except (csv.Error, ValueError):
        return None
    names = [name.strip() or f"column {number}" for number, name in enumerate(header, 1)]
    looks_separated = len(names) == 1 and any(mark in names[0] for mark in ";\t,")
    uneven = any(len(row) != len(names) for row in rows)
    return None if looks_separated or uneven or not rows or len(set(names)) < len(names) else rows


@pytest.mark.parametrize("dialect", [CSV, TSV], ids=lambda dialect: dialect.name)
@settings(max_examples=300)
@given(head=HEADS, pieces=st.lists(PIECES, max_size=12), marked=st.booleans())
def test_what_is_read_is_what_the_csv_module_reads(
    dialect: Dialect, head: str, pieces: list[str], marked: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = head + "".join(pieces)
    path = write(tmp_path_factory.getbasetemp() / "drawn", "\ufeff" * marked + text)
    expected = rows_of_reference(text, dialect)
    if expected is not None:
        assert rows_of(path, dialect) == expected
    else:
        with pytest.raises(DataError):
            rows_of(path, dialect)


@given(rows=st.lists(st.tuples(st.text(max_size=80), st.text(max_size=8)), min_size=1, max_size=20))
def test_rows_longer_than_a_block_are_read_once(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With blocks of a few bytes: the first size fails at some row, and a larger one goes on from there."""
    out = io.StringIO(newline="")
    csv.writer(out).writerows([("text", "label"), *rows])
    path = write(tmp_path_factory.getbasetemp() / "long", out.getvalue())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_SIZES", (16, 64, 1 << 20))
        assert rows_of(path, CSV) == [list(row) for row in rows]


@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_compressed_files_are_read_by_their_ending(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.csv{ending}", 'text,label\n"a, b",c\n')
    assert rows_of(path, CSV) == [["a, b", "c"]]


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_file_that_is_cut_short_is_refused(ending: str, tmp_path: Path) -> None:
    text = "text,label\n" + "".join(f"text {number},{number % 7}\n" for number in range(20_000))
    path = write(tmp_path / f"a.csv{ending}", text)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be decompressed"):
        rows_of(path, CSV)


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_only_has_the_ending_is_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.csv{ending}"
    path.write_text("text,label\na,b\n" * 50)
    with pytest.raises(DataError, match="cannot be decompressed"):
        rows_of(path, CSV)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; expected rows of CSV"),
        ("\n\n", "is empty; expected rows of CSV"),
        ("text,label\n", r"has a header \(text, label\) and no rows below it"),
        ("text,text\na,b\n", r"has 1 column name twice \(text\); rename one of each"),
        ("text;label\na;b\n", "has one column, 'text;label', which looks like several with ';' between them"),
        ("text,label\na,b\nc\n", r"line 3 has 1 field, expected 2 \(text, label\)"),
        (
            "text,label\na,b\n\n\nc,d,e\n",
            r"line 5 has 3 fields, expected 2 \(text, label\); a field with a comma in it",
        ),
        ('text,label\n"a\nb",c\nd\n', "line 4 has 1 field"),
        ('text,label\na,b\n"c,d\ne,f\n', "line 3: the row that begins here has a quoted field that is not closed"),
        ('text,label\n"a"b,c\n', "line 2: the row that begins here has a quoted field that is not closed"),
        (b"text,label\na,b\n\xe9,c\n", r"line 3 is not UTF-8 \(byte 0xe9\); save the file as UTF-8"),
        (b"t\xe9xt,label\na,b\n", r"line 1 is not UTF-8 \(byte 0xe9\)"),
        ("text,label\na,b\n".encode("utf-16"), r"line 1 is not UTF-8 \(byte 0xff\)"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(DataError, match=message) as caught:
        rows_of(path, CSV)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"a,b,c\n", "line 50002 has 3 fields"),
        (b"\xff,b\n", "line 50002 is not UTF-8"),
        (b'"a,b\n', "line 50002: the row that begins here"),
    ],
)
def test_lines_are_counted_far_into_a_file(row: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text,label\n" + b"a text,a label\n" * 50_000 + row + b"a,b\n" * 3)
    with pytest.raises(DataError, match=message):
        rows_of(path, CSV)


def test_in_tsv_quotes_are_ordinary(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"a\tb"\n"\t\n')
    assert rows_of(path, TSV) == [['"a', 'b"'], ['"', ""]]


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    values = ["NA", "001", "1e5", "null", "", " a ", "2020-01-01", "true"]
    path = write(tmp_path / "a.csv", "text,label\n" + "".join(f"{value},x\n" for value in values))
    assert rows_of(path, CSV) == [[value, "x"] for value in values]


def test_a_column_without_a_name_gets_its_number(tmp_path: Path) -> None:
    (table,) = read_delimited(write(tmp_path / "a.csv", ",text, label \n0,a,b\n"), CSV)
    assert table.column_names == ["column 1", "text", "label"]


def test_names_make_the_first_line_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "gj04\t1\t\ta sentence\n")
    assert rows_of(path, TSV, ["source", "label", "mark", "sentence"]) == [["gj04", "1", "", "a sentence"]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["text"], r"line 2 has 2 fields, but 1 columns were named \(text\)"),
        (["text", "label"], r"has these very names as its header \(text, label\); leave the names out"),
    ],
)
def test_names_that_do_not_fit_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        rows_of(write(tmp_path / "a.csv", "\ntext,label\na,b\n"), CSV, names)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); check the file and its permissions"):
        rows_of(tmp_path / "a.csv", CSV)


LEFT = """
import sys
from halfpint.data.sources import read_batches

try:
    for batch in read_batches(sys.argv[1]):
        pass
except ValueError as error:
    print(error)
"""


def test_a_process_that_leaves_a_broken_file_ends_as_it_should(tmp_path: Path) -> None:
    path = tmp_path / "uneven.csv"
    path.write_text("message,topic\nhello,sea\nx,y,z\n")
    for _ in range(8):
        done = subprocess.run([sys.executable, "-c", LEFT, path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "line 3 has 3 fields" in done.stdout
