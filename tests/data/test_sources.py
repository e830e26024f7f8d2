"""Data sets from where they are: the same rows from every kind of file and object, and clear words for the rest."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.sources import DataError, Dataset, read, read_batches
from tests.data.files import COMPRESS, write

ROWS = [{"text": "a, b", "label": "x"}, {"text": 'a "b"', "label": "001"}, {"text": "é 漢", "label": ""}]
TABLE = pa.Table.from_pylist(ROWS)
SEED_TEXT = st.text(max_size=20)
PAIRS = st.lists(st.tuples(SEED_TEXT, SEED_TEXT), min_size=1, max_size=10)


def as_csv(rows: list[dict[str, str]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_tsv(rows: list[dict[str, str]]) -> str:
    return "".join("\t".join(values) + "\n" for values in [list(rows[0]), *(list(row.values()) for row in rows)])


def as_lines(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(rows: list[dict[str, str]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


WRITERS: dict[str, Callable[[list[dict[str, str]]], str | bytes]] = {
    ".csv": as_csv,
    ".tsv": as_tsv,
    ".json": json.dumps,
    ".jsonl": as_lines,
    ".ndjson": as_lines,
    ".parquet": as_parquet,
}
TEXTS = "a text\n\nanother\n"
SENTENCES = "EU B-ORG\nrejects O\n\ncall O\n"


# Files


@pytest.mark.parametrize("kind", WRITERS)
@given(pairs=PAIRS)
def test_rows_round_trip(kind: str, pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A TSV file has no way to write what ends its fields and lines."""
    if kind == ".tsv":
        spaces = {9: " ", 10: " ", 13: " "}
        pairs = [(text.translate(spaces), label.translate(spaces)) for text, label in pairs]
    rows = [{"text": text, "label": label} for text, label in pairs]
    path = write(tmp_path_factory.getbasetemp() / f"drawn{kind}", WRITERS[kind](rows))
    assert read(path).tables["train"].to_pylist() == rows
    batches = list(read_batches(path, rows=3))
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    assert [len(batch) for batch in batches][:-1] == [3] * (len(batches) - 1)


@pytest.mark.parametrize("ending", ["", *COMPRESS])
@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != ".parquet"])
def test_every_kind_is_read_compressed_too(kind: str, ending: str, tmp_path: Path) -> None:
    found = read(write(tmp_path / f"some{kind}{ending}", WRITERS[kind](ROWS)))
    assert (found.name, found.tables) == ("some", {"train": TABLE})


@pytest.mark.parametrize("ending", ["", *COMPRESS])
@pytest.mark.parametrize("kind", [".txt", ".conll", ".bio", ".iob"])
def test_texts_and_sentences_are_read_compressed_too(kind: str, ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"some{kind}{ending}", TEXTS if kind == ".txt" else SENTENCES)
    expected = {"text": ["a text", "", "another"]}
    if kind != ".txt":
        expected = {"tokens": [["EU", "rejects"], ["call"]], "tags": [["B-ORG", "O"], ["O"]]}
    assert read(path).tables["train"].to_pydict() == expected
    assert [batch.to_pylist() for batch in read_batches(path, rows=1)] == [
        batch.to_pylist() for batch in pa.table(expected).to_batches(max_chunksize=1)
    ]


def test_batches_come_before_the_file_is_read(tmp_path: Path) -> None:
    """What is wrong at its end does not keep anyone from its beginning."""
    for name, good, bad in [
        ("a.csv", "text,label\n" + "a text,a label\n" * 400_000, "a\n"),
        ("a.jsonl", '{"text": "a text"}\n' * 15_000, "{\n"),
        ("a.txt", "a text\n" * 15_000, b"\xff\n"),
    ]:
        path = write(tmp_path / name, good.encode() + (bad if isinstance(bad, bytes) else bad.encode()))
        batches = read_batches(path, rows=10)
        assert len(next(batches)) == 10
        with pytest.raises(DataError, match="line"):
            list(batches)


def test_a_csv_file_without_a_header_gets_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "good,a b\nbad,c\n")
    for columns in ("label, text", ["label", "text"]):
        expected = {"label": ["good", "bad"], "text": ["a b", "c"]}
        assert read(path, columns=columns).tables["train"].to_pydict() == expected
        (batch,) = read_batches(path, columns=columns)
        assert batch.to_pydict() == expected


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / "a.csv.gz", index=False)
    frame.to_json(tmp_path / "b.json", orient="records")
    frame.to_json(tmp_path / "c.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "d.parquet")
    for path in tmp_path.iterdir():
        assert read(path).tables["train"] == TABLE


def test_a_column_of_two_types_is_text_across_blocks_too(tmp_path: Path) -> None:
    values = [*range(10_000), "x", None]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"a": value}) + "\n" for value in values))
    expected = [None if value is None else str(value) for value in values]
    assert read(path).tables["train"]["a"].to_pylist() == expected


def test_lists_that_are_empty_for_long_keep_their_type(tmp_path: Path) -> None:
    answers = [[]] * 10_000 + [[{"text": "a"}]]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"answers": each}) + "\n" for each in answers))
    assert read(path).tables["train"]["answers"].to_pylist() == answers


# Folders and names


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.csv"], ["train"]),
        (["train.txt", "valid.txt", "test.txt"], ["dev", "test", "train"]),
        (["train.conll.gz", "val.bio", "README.txt", "notes.md"], ["dev", "train"]),
        (["TRAIN.CSV", "Validation.jsonl"], ["dev", "train"]),
        (["train-v1.1.json", "dev-v1.1.json"], ["dev", "train"]),
        (["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv", "test-mismatched.tsv"],
         ["dev", "dev_mismatched", "test_mismatched", "train"]),
        (["train-00000-of-00002.csv", "train-00001-of-00002.csv", "test-00000-of-00001.csv"], ["test", "train"]),
    ],
)  # fmt: skip
def test_the_splits_of_a_folder_are_known_by_their_names(names: list[str], splits: list[str], tmp_path: Path) -> None:
    contents = {
        "csv": "text\n{}\n", "tsv": "text\n{}\n", "txt": "{}\n", "conll": "{} O\n", "bio": "{} O\n", "md": "",
        "json": '[{{"text": "{}"}}]', "jsonl": '{{"text": "{}"}}',
    }  # fmt: skip
    for name in names:
        write(tmp_path / "mine" / name, contents[name.lower().removesuffix(".gz").rpartition(".")[2]].format(name))
    found = read(tmp_path / "mine")
    assert (found.name, sorted(found.tables), list(found.origins)) == ("mine", splits, list(found.tables))
    for split, table in found.tables.items():
        for name in [value if isinstance(value, str) else value[0] for value in table.column(0).to_pylist()]:
            assert str(tmp_path / "mine" / name) in found.origins[split]


def test_conll2003_is_a_folder_of_splits(reference_data: Path) -> None:
    """With as many sentences, words and entities as were published."""
    found = {}
    for split, table in read(reference_data / "conll2003").tables.items():
        tokens, tags = (column.combine_chunks().flatten().to_pylist() for column in table.columns)
        assert len(tokens) == len(tags)
        found[split] = (len(table), len(tags), sum(tag.startswith("B-") for tag in tags))
    assert found == {"train": (14_041, 203_621, 23_499), "dev": (3250, 51_362, 5942), "test": (3453, 46_435, 5648)}


@pytest.mark.parametrize(
    ("name", "split", "title"),
    [
        ("valid.txt", "dev", "mine"),
        ("dev-v2.0.json", "dev", "mine"),
        ("test.txt.xz", "test", "mine"),
        ("reviews.txt", "train", "reviews"),
    ],
)
def test_a_file_is_the_split_that_it_is_named_after(name: str, split: str, title: str, tmp_path: Path) -> None:
    content = '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q"}]}]}]}'
    found = read(write(tmp_path / "mine" / name, content))
    assert (found.name, list(found.tables)) == (title, [split])
    assert found.tables[split].column_names == (
        ["id", "title", "context", "question", "answers"] if ".json" in name else ["text"]
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "has no split; expected train, dev .* and it holds nothing"),
        (["one.csv", "two.md"], "and it holds one.csv, two.md"),
        (["train.csv", "train.jsonl"], r"has 2 files for its train split \(train.csv, train.jsonl\); leave one"),
        (["dev.csv", "valid.csv"], r"has 2 files for its dev split \(dev.csv, valid.csv\); leave one"),
        (["train-1-of-2.csv", "train.csv"], "has 2 files for its train split"),
        (["train-1-of-3.csv", "train-3-of-3.csv"], "has 2 of the 3 files of its train split .*; add the rest"),
        (["train-1-of-1.csv", "train-1-of-1.jsonl"], "has 2 files for its train split"),
    ],
)
def test_a_folder_whose_splits_are_not_clear_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name, "text\na\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "the name of the data is empty"),
        ("reviws.csv", "there is no file .*reviws.csv; did you mean reviews.csv?"),
        ("else/reviews.csv", "there is no file .*, and no folder .*else; check the path"),
        ("a.xlsx", "a.xlsx is of no kind that is known here; expected a file with .csv, .*, .txt"),
        ("a.parquet.gz", "is of no kind that is known here"),
        ("x" * 300, "x… cannot be looked for .File name too long.; give a file, a folder or a name"),
        ("a.parquet", "is not a whole Parquet file .*; copy it again"),
        ("empty.parquet", "empty.parquet has no rows"),
        ("empty.txt", "empty.txt has no rows"),
        ("blank.txt", "blank.txt has no rows"),
        ("empty.conll", "empty.conll has no rows"),
        ("empty.json", "empty.json has no rows"),
        ("none.json", "none.json has no rows"),
        ("squad.json", "squad.json has no rows"),
        ("empty.jsonl", "empty.jsonl has no rows"),
        ("empty.csv", "empty.csv is empty; expected rows of CSV"),
        (3, "the data was given as a number; give a file, a folder, a Hub name, a DataFrame"),
        (range(3), "the data was given as a value of type range"),
        ([], "the data has no rows"),
        ({}, "the data has no rows"),
        (["a text"], "the data, row 1 is a text, expected an object"),
        ({"text": "a"}, "the data has a text as its column text; expected a list of values"),
        ({"text": ["a"], "label": [1, 2]}, r"have unequal lengths \(text: 1, label: 2\); give each a value for"),
        ({"text": ["\ud800"]}, "the data has half a surrogate pair"),
        ([{"text": "a"}, {"text": "\ud800"}], "the data, row 2 has half a surrogate pair"),
        (pd.DataFrame({"text": ["\ud800"]}, dtype=object), "the data has half a surrogate pair"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), r"the data has 1 column name twice \(text\)"),
        ({"train": [{"a": 1}], "dev": [{"a": 1}], "valid": [{"a": 1}]}, "two of train, dev, valid are the dev split"),
        ({"train": []}, "the data has no rows"),
        ({"train": [{"a": 1}], "test": {"a": []}}, "the test split has no rows"),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    source: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("reviews.csv", "a.xlsx", "a.parquet.gz", "a.parquet"):
        write(tmp_path / name, "text\na\n")
    for kind in (".txt", ".conll", ".json", ".jsonl", ".csv"):
        write(tmp_path / f"empty{kind}", "")
    write(tmp_path / "empty.parquet", as_parquet(ROWS[:0]))
    write(tmp_path / "blank.txt", " \n\n")
    write(tmp_path / "none.json", "[]")
    write(tmp_path / "squad.json", '{"data": [{"paragraphs": []}]}')
    with pytest.raises(DataError, match=message) as caught:
        read(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("b.csv", {}, "there is no file"),
        (".", {}, "is a folder; expected one file with"),
        ("x" * 300, {}, "cannot be looked for"),
        ("a.csv", {"rows": 0}, "rows is 0; a batch needs at least one"),
        ("a.csv", {"columns": "text,,label"}, "give every column a name, as in label,text"),
        ("a.csv", {"columns": "text,text"}, r"columns has 1 column name twice \(text\)"),
        ("a.txt", {"columns": "text"}, "columns were named, and a.txt names its own"),
    ],
)
def test_batches_that_cannot_be_read_are_refused(
    path: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", "text\na\n")
    write(tmp_path / "a.txt", "a\n")
    with pytest.raises(DataError, match=message):
        list(read_batches(path, **options))


# Python's objects


@pytest.mark.parametrize(
    "source",
    [
        ROWS,
        tuple(ROWS),
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        {name: np.array([row[name] for row in ROWS]) for name in ROWS[0]},
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS, index=[3, 1, 2]),
        pd.DataFrame(ROWS).astype(object),
        pd.DataFrame(ROWS).astype("category"),
        TABLE,
        TABLE.to_batches()[0],
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
        TABLE.cast(pa.schema([("text", pa.large_string()), ("label", pa.string_view())])),
        TABLE.replace_schema_metadata({"pandas": "{}"}),
        datasets.Dataset.from_list(ROWS),
    ],
    ids=lambda source: type(source).__name__,
)
def test_what_a_program_holds_is_read(source: Any) -> None:
    found = read(source)
    assert (found.name, found.tables) == ("data", {"train": TABLE})
    assert found.tables["train"].schema.metadata is None


@pytest.mark.parametrize("part", [ROWS, pd.DataFrame(ROWS), TABLE, datasets.Dataset.from_list(ROWS)], ids=type)
def test_splits_of_what_a_program_holds_are_read(part: Any) -> None:
    found = read({"train": part, "validation": part, "extra": part})
    assert found.tables == {"train": TABLE, "dev": TABLE, "extra": TABLE}


def test_splits_may_be_files_and_data_sets(tmp_path: Path) -> None:
    path = write(tmp_path / "some.csv", as_csv(ROWS))
    found = read({"train": str(path), "val": path, "test": read(path)})
    assert found.tables == {"train": TABLE, "dev": TABLE, "test": TABLE}
    assert set(found.origins.values()) == {str(path)}
    write(tmp_path / "two" / "train.csv", as_csv(ROWS))
    write(tmp_path / "two" / "test.csv", as_csv(ROWS))
    with pytest.raises(DataError, match=r"the test split was given as .*two, which has splits itself; name one file"):
        read({"train": path, "test": tmp_path / "two"})


def test_a_dict_of_datasets_is_read() -> None:
    part = datasets.Dataset.from_list(ROWS)
    found = read(datasets.DatasetDict({"train": part, "validation": part}))
    assert found.tables == {"train": TABLE, "dev": TABLE}


def test_columns_may_be_called_after_splits() -> None:
    assert read({"train": ["a"], "test": ["b"]}).tables["train"].to_pydict() == {"train": ["a"], "test": ["b"]}


def test_what_was_read_is_taken_as_it_is() -> None:
    found = read(ROWS)
    assert read(found) is found
    assert isinstance(found, Dataset)


def test_missing_values_are_null() -> None:
    frame = pd.DataFrame({"text": ["a", None, float("nan")], "n": [1.5, None, 2.0]}, dtype=object)
    assert read(frame).tables["train"].to_pydict() == {"text": ["a", None, None], "n": [1.5, None, 2.0]}
    assert read([{"text": "a"}, {"n": 1}]).tables["train"].to_pydict() == {"text": ["a", None], "n": [None, 1]}


def test_nested_values_stay_nested_and_simple() -> None:
    odd = pa.array([["a"], []], pa.large_list(pa.large_string()))
    table = read(pa.table({"tokens": odd})).tables["train"]
    assert table.schema.field("tokens").type == pa.list_(pa.string())
    matrix = read({"text": ["a", "b"], "labels": np.eye(2, dtype=np.int64)}).tables["train"]
    assert matrix["labels"].to_pylist() == [[1, 0], [0, 1]]
    frame = pd.DataFrame({"labels": [["a"], ["b", "c"]]})
    assert read(frame).tables["train"]["labels"].to_pylist() == [["a"], ["b", "c"]]


def test_names_are_not_for_what_is_in_memory() -> None:
    with pytest.raises(DataError, match="columns were named, and the data is in memory"):
        read(ROWS, columns="text,label")
