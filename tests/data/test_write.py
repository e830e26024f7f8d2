"""What is written is read back the same, in parts whose columns and types differ, too."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.sources import DataError, read
from halfpint.data.write import find_unfit, form_of, join_schemas, write_tables

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def written(path: Path, *parts: pa.Table) -> Path:
    write_tables(path, join_schemas(part.schema for part in parts), parts)
    return path


def python_reads(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=5))
def test_any_text_goes_through_csv(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "out.csv"
    # An empty line would be no row: the second column has something in it.
    rows = [(first, f"{second}x") for first, second in rows]
    first, second = zip(*rows, strict=True)
    written(path, pa.table({"a": list(first), "b": list(second)}))
    assert python_reads(path) == [["a", "b"], *map(list, rows)]


@given(st.lists(ANY_TEXT, min_size=1, max_size=5))
def test_any_text_goes_through_jsonl(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = written(tmp_path_factory.mktemp("jsonl") / "out.jsonl", pa.table({"text": texts}))
    assert [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split("\n")[:-1]] == texts


def test_parts_may_lack_columns_and_differ_in_types(tmp_path: Path) -> None:
    parts = [pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [0.5]}), pa.table({"c": [[1, 2]], "a": [None]})]
    rows = [json.loads(line) for line in written(tmp_path / "out.jsonl", *parts).read_text().splitlines()]
    assert rows == [
        {"a": 1, "b": "x", "c": None}, {"a": 0.5, "b": None, "c": None}, {"a": None, "b": None, "c": [1, 2]},
    ]  # fmt: skip
    table = pq.read_table(written(tmp_path / "out.parquet", *parts))
    assert table.schema.field("a").type == pa.float64()
    assert table.to_pylist() == rows
    assert python_reads(written(tmp_path / "out.csv", *parts))[1:] == [
        ["1", "x", ""],
        ["0.5", "", ""],
        ["", "", "[1, 2]"],
    ]


def test_types_that_do_not_join_become_text_in_parquet(tmp_path: Path) -> None:
    parts = [pa.table({"a": [1]}), pa.table({"a": ["x"]}), pa.table({"a": [{"k": [None]}]})]
    assert pq.read_table(written(tmp_path / "out.parquet", *parts))["a"].to_pylist() == ["1", "x", '{"k": [null]}']


def test_objects_gain_the_keys_of_later_parts_in_parquet(tmp_path: Path) -> None:
    parts = [pa.table({"a": [{"x": 1}]}), pa.table({"a": [{"y": "z"}]})]
    found = pq.read_table(written(tmp_path / "out.parquet", *parts))["a"].to_pylist()
    assert found == [{"x": 1, "y": None}, {"x": None, "y": "z"}]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null(tmp_path: Path, value: float) -> None:
    path = written(tmp_path / "out.jsonl", pa.table({"a": [value], "b": [[value, 1.0]]}))
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": None, "b": [None, 1.0]}


def test_numbers_keep_all_digits(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 1e-300, 2**53 + 1.0]
    for ending in (".csv", ".jsonl", ".parquet"):
        table = next(iter(read(written(tmp_path / f"n{ending}", pa.table({"text": values}))).tables.values()))
        assert [float(value) for value in table["text"].to_pylist()] == values


@pytest.mark.parametrize("value", ["a\tb", "a\nb", "a\rb"])
def test_what_tsv_cannot_hold_is_found_and_refused(tmp_path: Path, value: str) -> None:
    table = pa.table({"n": [1, 2, 3], "text": ["a", None, value]})
    assert find_unfit(table) == (2, "text")
    with pytest.raises(DataError, match="which no TSV file can hold"):
        written(tmp_path / "out.tsv", table)


def test_quotes_stand_as_they_are_in_tsv(tmp_path: Path) -> None:
    rows: list[Any] = ['a "b"', '"', "c, d"]
    assert written(tmp_path / "out.tsv", pa.table({"text": rows})).read_text().splitlines() == ["text", *rows]


def test_a_row_group_is_bounded(tmp_path: Path) -> None:
    parts = [pa.table({"a": range(30_000)}) for _ in range(5)]
    file = pq.ParquetFile(written(tmp_path / "out.parquet", *parts))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [90_000, 60_000]


@pytest.mark.parametrize(("name", "words"), [("out.xls", "ends in .xls"), ("out", "has no ending")])
def test_a_form_is_told_by_the_ending(name: str, words: str) -> None:
    with pytest.raises(DataError, match=rf"{words}.*\.csv, \.jsonl"):
        form_of(Path(name), (".csv", ".jsonl"))
    assert form_of(Path("OUT.CSV"), (".csv",)) == ".csv"
