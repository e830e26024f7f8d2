"""Which column is what: as named, by convention, or by what is left; and clear words where that leaves it open."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.columns import IDS, LABELS, PAIRS, TEXTS, Columns, find_column, find_columns, require_column
from halfpint.data.sources import DataError

KNOWN = [*TEXTS, *LABELS, *IDS, *(name for pair in PAIRS for name in pair), "x", "y"]
NAMES = st.lists(st.sampled_from(KNOWN), min_size=1, unique=True)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("message,topic", Columns("message", None, "topic")),
        ("label,text", Columns("text", None, "label")),
        ("text", Columns("text")),
        ("Text,LABEL", Columns("Text", None, "LABEL")),
        ("idx,Sentence,Label", Columns("Sentence", None, "Label")),
        ("sentence,label", Columns("sentence", None, "label")),
        ("index,sentence1,sentence2,label", Columns("sentence1", "sentence2", "label")),
        ("index,question,sentence,label", Columns("question", "sentence", "label")),
        ("premise,hypothesis,genre,label", Columns("premise", "hypothesis", "label")),
        ("index,genre,source1,source2,sentence1,sentence2,score", Columns("sentence1", "sentence2", "score")),
        ("source1,source2,score", Columns("source1", "source2", "score")),
        ("review,stars", Columns("review", None, "stars")),
        ("id,review,stars", Columns("review", None, "stars")),
        ("column 1,review,stars", Columns("review", None, "stars")),
        ("question1,question2,is_duplicate", Columns("question1", "question2", "is_duplicate")),
        ("text,date,author", Columns("text")),
        ("headline,label", Columns("headline", None, "label")),
        ("id,headline", Columns("headline")),
    ],
)
def test_columns_are_found_by_convention(names: str, expected: Columns) -> None:
    assert find_columns(names.split(",")) == expected


@pytest.mark.parametrize(
    ("names", "named", "expected"),
    [
        ("a,b,c", {"text": "b", "label": "c"}, Columns("b", None, "c")),
        ("a,b,label", {"text": "b"}, Columns("b", None, "label")),
        ("a,b", {"label": "a"}, Columns("b", None, "a")),
        ("a,b", {"text": "b"}, Columns("b", None, "a")),
        ("sentence1,sentence2,label", {"text": "sentence2"}, Columns("sentence2", None, "label")),
        ("sentence1,sentence2,label", {"pair": "sentence2"}, Columns("sentence1", "sentence2", "label")),
        ("a,b,label", {"text": "a", "pair": "b"}, Columns("a", "b", "label")),
        ("a,b,c", {"text": "a", "pair": "b"}, Columns("a", "b", "c")),
        ("Text,Topic", {"text": "text", "label": "TOPIC"}, Columns("Text", None, "Topic")),
        ("text,Text,topic", {"text": "Text"}, Columns("Text", None, "topic")),
        ("text,label", {"label": "text", "text": "label"}, Columns("label", None, "text")),
    ],
)
def test_what_is_named_is_taken(names: str, named: dict[str, str], expected: Columns) -> None:
    assert find_columns(names.split(","), **named) == expected


def test_of_two_unknown_columns_the_longer_is_the_text() -> None:
    table = pa.table({"kind": ["a", "b", None], "words": ["a long text", "another", "x"]})
    assert find_columns(table.column_names, table=table) == Columns("words", None, "kind")
    assert find_columns(["words", "kind"], table=table.select(["words", "kind"])) == Columns("words", None, "kind")
    numbers = pa.table({"n": [100_000_000, 2], "m": ["a", "b"]})
    assert find_columns(numbers.column_names, table=numbers) == Columns("m", None, "n")


@given(names=NAMES, need_label=st.booleans())
def test_what_is_found_is_there_and_is_three_columns(names: list[str], need_label: bool) -> None:
    try:
        found = find_columns(names, need_label=need_label)
    except DataError as error:
        assert str(error).endswith(f"the columns are {', '.join(names)}")
        return
    given_names = [name for name in (found.text, found.pair, found.label) if name is not None]
    assert set(given_names) <= set(names)
    assert len(set(given_names)) == len(given_names)
    assert not need_label or found.label is not None


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("a,b,c", {}, "which column is the text. Name it with --text; the columns are a, b, c"),
        ("a,b", {}, "which column is the text"),
        ("text,a,b", {"need_label": True}, "which column is the label. Name it with --label; the columns are text, a"),
        ("text", {"need_label": True}, "which column is the label"),
        ("text,label", {"text": "txt"}, "no column 'txt' for --text .did you mean text..; the columns are text"),
        ("text,label", {"label": "zz"}, "there is no column 'zz' for --label; the columns are text, label"),
        ("Text,TEXT,label", {"text": "text"}, "there is no column 'text' for --text"),
        ("text,label", {"text": "label", "label": "label"}, "--text and --label both name the column 'label'"),
        ("text,label", {"text": "Label", "pair": "label"}, "--text and --pair both name the column 'label'"),
    ],
)  # fmt: skip
def test_what_is_left_open_is_asked(names: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        find_columns(names.split(","), **options)
    assert "\n" not in str(caught.value)


def test_one_column_of_known_names_is_found_or_asked_for() -> None:
    names = ["Context", "title"]
    assert find_column(names, ("passage", "context")) == "Context"
    assert find_column(names, ("passage",)) is None
    assert find_column(names, ("passage",), flag="pair", name="TITLE") == "title"
    with pytest.raises(
        DataError, match=r"there is no column 'titel' for --pair .did you mean title.*; the columns are"
    ):
        find_column(names, ("passage",), flag="pair", name="titel")
    assert require_column(names, ("passage", "context"), "the passage") == "Context"
    with pytest.raises(
        DataError, match=r"which column holds the passage. Expected passage or text; name it passage; the"
    ):
        require_column(names, ("passage", "text"), "the passage")
    with pytest.raises(
        DataError, match=r"which column holds the passage.*; name it with --pair; the columns are Context,"
    ):
        require_column(names, ("passage", "text"), "the passage", flag="pair")
