"""JSON in its forms, SQuAD, CoNLL and lines of text: exact rows, round trips, and what is wrong with its place."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data import formats
from halfpint.data.formats import (
    SQUAD,
    DataError,
    read_conll,
    read_json,
    read_json_lines,
    read_rows,
    read_text,
    to_column,
)
from halfpint.data.tagging import is_tag
from tests.data.files import COMPRESS, write

VALUE = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=8)
NESTED = st.recursive(VALUE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
ANSWER = st.fixed_dictionaries({"text": st.text(max_size=8), "answer_start": st.integers(0, 99)})
QUESTION = st.fixed_dictionaries(
    {"id": st.text(), "question": st.text(), "answers": st.lists(ANSWER, max_size=3)},
    optional={"is_impossible": st.booleans(), "plausible_answers": st.lists(ANSWER, max_size=1)},
)
PARAGRAPH = st.fixed_dictionaries({"context": st.text(), "qas": st.lists(QUESTION, max_size=3)})
ARTICLE = st.fixed_dictionaries(
    {"paragraphs": st.lists(PARAGRAPH, max_size=3)}, optional={"title": st.none() | st.text()}
)
# Any characters but those that end lines and columns: also what Python takes for blank, or for the end of a line.
WORD = st.text(st.characters(exclude_characters=" \t\r\n", codec="utf-8"), min_size=1, max_size=5)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-A-B", "S-X", "E-X"])
SENTENCES = st.lists(st.lists(st.tuples(WORD, TAG), min_size=1, max_size=5), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For drawn files, each in the place of the one before."""
    return tmp_path_factory.mktemp("drawn")


def rows_of(tables: Any) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


# JSON


@given(texts=st.lists(st.text(), min_size=1, max_size=5), indent=st.none() | st.integers(0, 2), marked=st.booleans())
def test_a_list_and_lines_of_objects_are_the_same_rows(
    texts: list[str], indent: int | None, marked: bool, folder: Path
) -> None:
    rows = [{"text": text, "number": number} for number, text in enumerate(texts)]
    mark = "\ufeff" * marked
    listed = write(folder / "a.json", mark + json.dumps(rows, indent=indent, ensure_ascii=marked))
    lines = write(folder / "b.json", mark + "\n\n".join(json.dumps(row) for row in rows))
    assert rows_of(read_json(listed)) == rows_of(read_json(lines)) == rows_of(read_json_lines(lines)) == rows


@given(st.lists(NESTED, min_size=1, max_size=6))
def test_a_column_keeps_its_values_or_is_text(values: list[Any]) -> None:
    column = to_column(values)
    if not pa.types.is_string(column.type):
        assert without_nulls(column.to_pylist()) == without_nulls(values)
        return
    for value, text in zip(values, column.to_pylist(), strict=True):
        assert text == value or json.loads(text) == value


def without_nulls(value: Any) -> Any:
    """A key that one object lacks and another has is null in it."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def test_types_are_those_of_json(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"a": 1, "b": "2020-01-01", "c": [1, 2], "d": 1}\n{"b": "x", "c": [], "d": "y"}\n'
    )
    (table,) = read_json_lines(path)
    assert table.to_pydict() == {"a": [1, None], "b": ["2020-01-01", "x"], "c": [[1, 2], []], "d": ["1", "y"]}


def test_matrices_are_columns_of_lists() -> None:
    assert to_column(np.eye(2, dtype=np.int64)).to_pylist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": \n', r"line 3 is not JSON \(Expecting value.*\); expected one object a line"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2 is a list, expected an object with a name for each value"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', r"line 2 is not UTF-8 \(byte 0xe9\)"),
        ("a.jsonl", '{"a": 1}\n{"a": "\\ud800"}\n', "line 2 has half a surrogate pair"),
        ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("a.json", '[{"a": 1},\n 2]', "row 2 is a number, expected an object"),
        ("a.json", '[{"a": 1},\n {"a" 2}]', "line 2 is not JSON .*; expected a list of objects, or one object a line"),
        ("a.json", b'[{"a": 1},\n {"a": "\xe9"}]', r"line 2 is not UTF-8 \(byte 0xe9\)"),
        ("a.json", '{"a": 1}\n{"a" 2}\n', "line 2 is not JSON .*; expected one object a line"),
        ("a.json", '{"a":\n 1}', "is an object, expected a list of objects, one object a line, or articles as SQuAD"),
        ("a.json", "[" * 100_000, "cannot be read as JSON"),
        ("a.json", "3", "line 1 is a number, expected an object"),
    ],
)
def test_wrong_json_is_told_with_its_line(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_json(path) if path.suffix == ".json" else read_json_lines(path))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_names_that_are_the_same_as_text_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1 has 1 column name twice \(1\)"):
        read_rows([{1: "a", "1": "b"}], ["row 1"])


# SQuAD


@given(articles=st.lists(ARTICLE, min_size=1, max_size=3), indent=st.none() | st.just(1))
def test_a_question_is_a_row(articles: list[dict[str, Any]], indent: int | None, folder: Path) -> None:
    path = write(folder / "drawn.json", json.dumps({"version": "v2.0", "data": articles}, indent=indent))
    expected = [
        {
            "id": question["id"],
            "title": article.get("title"),
            "context": paragraph["context"],
            "question": question["question"],
            "answers": [] if question.get("is_impossible") else question["answers"],
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    tables = list(read_json(path))
    assert rows_of(tables) == expected
    assert all(table.schema.equals(SQUAD) for table in tables)


def squad(**changes: Any) -> dict[str, Any]:
    question = {"id": "a", "question": "Who?", "answers": [{"text": "he", "answer_start": 3}], **changes}
    paragraph = {"context": "It is he.", "qas": [{"id": 1, "question": "What?"}, question]}
    return {"data": [{"title": "t", "paragraphs": []}, {"title": "t", "paragraphs": [paragraph]}]}


def test_a_question_of_a_test_set_has_no_answers(tmp_path: Path) -> None:
    first, second = rows_of(read_json(write(tmp_path / "a.json", json.dumps(squad()))))
    assert (first["id"], first["answers"]) == ("1", [])
    assert second["answers"] == [{"text": "he", "answer_start": 3}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "question 2 has null as its id, expected a text"),
        ({"question": 3}, "question 2 has a number as its question, expected a text"),
        ({"answers": "he"}, "question 2 has a text as its answers, expected a list"),
        ({"answers": ["he"]}, "question 2, answer 1 is a text, expected an object, as SQuAD has it"),
        (
            {"answers": [{"text": "he"}]},
            "question 2, answer 1 has no answer_start; in SQuAD's form it has a number of this name",
        ),
        (
            {"answers": [{"text": "he", "answer_start": True}]},
            "question 2, answer 1 has true or false as its answer_start, expected a number",
        ),
    ],
)
def test_a_wrong_question_is_told_with_its_place(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps(squad(**changes)))
    with pytest.raises(DataError, match=f"a.json, article 2, paragraph 1, {message}"):
        list(read_json(path))


@pytest.mark.parametrize(
    ("article", "message"),
    [
        (3, "article 2 is a number, expected an object"),
        ({}, "article 2 has no paragraphs; in SQuAD's form it has a list of this name"),
        ({"paragraphs": [{"qas": []}]}, "article 2, paragraph 1 has no context"),
        ({"paragraphs": [{"context": "c"}]}, "article 2, paragraph 1 has no qas"),
    ],
)
def test_a_wrong_article_is_told_with_its_number(article: Any, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps({"data": [{"paragraphs": []}, article]}))
    with pytest.raises(DataError, match=message):
        list(read_json(path))


def test_half_a_surrogate_pair_in_a_question_is_told_with_its_id(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps(squad(question="\ud800")))
    with pytest.raises(DataError, match="question 'a' has half a surrogate pair"):
        list(read_json(path))


def test_objects_with_a_list_called_data_are_rows(tmp_path: Path) -> None:
    rows = [{"data": [1]}, {"data": []}]
    path = write(tmp_path / "a.json", "\n".join(map(json.dumps, rows)))
    assert rows_of(read_json(path)) == rows


@pytest.mark.parametrize(
    ("name", "num_questions", "num_impossible"),
    [("train-v1.1", 8615, 0), ("dev-v1.1", 1955, 0), ("train-v2.0", 10_126, 5041), ("dev-v2.0", 1747, 904)],
)
def test_the_questions_of_squad_are_all_there(
    name: str, num_questions: int, num_impossible: int, reference_data: Path
) -> None:
    rows = rows_of(read_json(reference_data / "squad" / f"{name}.json"))
    assert len({row["id"] for row in rows}) == len(rows) == num_questions
    assert sum(not row["answers"] for row in rows) == num_impossible
    for row in rows:
        for answer in row["answers"]:
            assert row["context"][answer["answer_start"] :].startswith(answer["text"])


# CoNLL


@given(
    sentences=SENTENCES,
    separator=st.sampled_from([" ", "  ", "\t"]),
    end=st.sampled_from(["\n", "\r\n"]),
    extra=st.sampled_from(["", "0", "NN"]),
    documents=st.booleans(),
    marked=st.booleans(),
)
def test_sentences_round_trip(
    sentences: list[list[tuple[str, str]]],
    separator: str,
    end: str,
    extra: str,
    documents: bool,
    marked: bool,
    folder: Path,
) -> None:
    """With a constant column or none, blank lines and -DOCSTART- lines between, and a byte-order mark."""
    lines = ["\ufeff" * marked + "-DOCSTART- -X- O", ""] if documents else ["\ufeff" * marked]
    for words in sentences:
        lines += [separator.join(filter(None, [word, tag, extra])) for word, tag in words]
        lines += ["", "-DOCSTART-", ""] if documents else [""]
    path = write(folder / "drawn.conll", end.join(lines))
    expected = [{"tokens": [word for word, _ in words], "tags": [tag for _, tag in words]} for words in sentences]
    assert rows_of(read_conll(path)) == expected


@pytest.mark.parametrize(
    ("line", "tags"),
    [
        ("EU NNP B-NP I-ORG", ["I-ORG", "O"]),
        ("EU B-ORG NNP 0", ["B-ORG", "O"]),
        ("EU X B-ORG B-NP", ["B-NP", "O"]),
        ("EU B E-ORG x", ["E-ORG", "O"]),
    ],
)
def test_the_tags_are_the_last_column_of_tags_alone(line: str, tags: list[str], tmp_path: Path) -> None:
    other = " ".join("O" if is_tag(field) else field for field in line.split(" ")[1:])
    path = write(tmp_path / "a.conll", f"{line}\nrejects {other}\n")
    assert rows_of(read_conll(path)) == [{"tokens": ["EU", "rejects"], "tags": tags}]


def test_a_column_with_one_other_value_is_not_the_tags(tmp_path: Path) -> None:
    """Be it at the end of a long file."""
    path = write(tmp_path / "a.conll", "word B-NP O\n\n" * 20_000 + "word B-VP -\n")
    tables = list(read_conll(path))
    assert {tag for table in tables for (tag,) in table["tags"].to_pylist()} == {"B-NP", "B-VP"}


def test_between_tabs_words_may_hold_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "New York\tB-LOC\n1 000\tO\n\t\n\u00a0\tO\n")
    assert [row["tokens"] for row in rows_of(read_conll(path))] == [["New York", "1 000"], ["\u00a0"]]


def test_words_alone_have_no_tags(tmp_path: Path) -> None:
    assert rows_of(read_conll(write(tmp_path / "a.conll", "EU\nrejects\n\ncall\n"))) == [
        {"tokens": ["EU", "rejects"]},
        {"tokens": ["call"]},
    ]


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("-DOCSTART- O\n\nEU B-ORG\nrejects\ncall O\n", "line 4 has 1 column, expected 2 with spaces .*, as in line 3"),
        ("EU\tB-ORG\nrejects\tVBZ\tO\ncall\tO\n", "line 2 has 3 columns, expected 2 with tabs between them"),
        ("EU B-ORG 0\ncall O 0\nit 0 0\n", "line 3 has '0' where a tag is expected .*, and no other column has tags"),
        (b"EU B-ORG\ncall O\n\nit\xff O\n", r"line 4 is not UTF-8 \(byte 0xff\)"),
    ],
)
def test_a_wrong_line_is_told_with_its_number(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        list(read_text(path) if path.suffix == ".txt" else read_conll(path))
    assert str(caught.value).startswith(str(path))


def test_parts_of_speech_are_no_tags(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1 has 'NN' where a tag is expected"):
        list(read_conll(write(tmp_path / "a.conll", "word NN\nruns VBZ\n")))


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_sentences_are_read_and_known(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.txt{ending}", "EU B-ORG\nrejects O\n\ncall O\n")
    assert [row["tags"] for row in rows_of(read_text(path))] == [["B-ORG", "O"], ["O"]]


def test_sentences_are_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLOCK_ROWS", 100)
    path = write(tmp_path / "a.conll", ("word O 0\n" * 10 + "\n") * 4000)
    tracemalloc.start()
    try:
        total = sum(len(table) for table in read_conll(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 4000
    assert peak < 1.5e6  # 40,000 words weigh ten times as much


# Lines


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    marked=st.booleans(),
)
def test_a_text_is_a_line(texts: list[str], end: str, marked: bool, folder: Path) -> None:
    """Blank ones are empty texts, and those at the end are none."""
    expected = [text if text.strip() else "" for text in texts]
    while expected and not expected[-1]:
        expected.pop()
    path = write(folder / "drawn.txt", "\ufeff" * marked + end.join([*texts, ""]))
    if marked or not texts or not texts[0].startswith("\ufeff"):
        assert rows_of(read_text(path)) == [{"text": text} for text in expected]


@pytest.mark.parametrize(
    "content",
    [
        "vitamin B\nvitamin E\nvitamin S\n",
        "O Captain! my Captain!\nO the bleeding drops of red\n",
        "yes\nno\n",
        "text\tlabel\na\tb\n",
        "a O long line of words\nplan B is what we O need\nB-1 and B-2\n",
        "3 O\n" + "a longer line\n" * 3,
    ],
)
def test_texts_are_not_taken_for_sentences(content: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", content)
    assert [row["text"] for row in rows_of(read_text(path))] == content.splitlines()


def test_a_line_that_is_no_utf8_is_told_and_those_before_it_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"a text\n" * 25_000 + b"caf\xe9\n")
    tables = read_text(path)
    assert len(next(tables)) == formats.BLOCK_ROWS
    with pytest.raises(DataError, match=r"a.txt, line 25001 is not UTF-8 \(byte 0xe9\)"):
        list(tables)


def test_long_texts_make_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLOCK_BYTES", 1000)
    path = write(tmp_path / "a.txt", f"{'x' * 400}\n" * 10)
    assert [len(table) for table in read_text(path)] == [3, 3, 3, 1]
