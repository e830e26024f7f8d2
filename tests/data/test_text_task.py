"""Texts with one answer: what is found in the columns, how it is judged, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.columns import Columns
from halfpint.data.metrics import METRICS
from halfpint.data.sources import DataError, Dataset
from halfpint.data.task import draw, score_of
from halfpint.data.text_task import BUILT_IN, TextTask, find_text_task, header_of
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

BERT = small_tokenizer("bert")
SINGLE = TextTask(Columns("text", label="label"), "single_label", ("a", "b", "c"), ("accuracy", "f1_macro"))
SEVERAL = TextTask(Columns("text", label="label"), "multi_label", ("x", "y"), ("multi_label_f1_micro",))
NUMBER = TextTask(Columns("text", label="label"), "regression", ("label",), ("spearman", "mean_squared_error"))


def table_of(labels: list[Any], **columns: list[Any]) -> pa.Table:
    return pa.table({"text": [f"text {row}" for row in range(len(labels))]} | columns | {"label": labels})


def find(table: pa.Table, **named: str) -> TextTask:
    return find_text_task(Dataset("data", {"train": table}, {}), **named)


@pytest.mark.parametrize(
    ("values", "problem", "labels"),
    [
        (["yes", "no", "yes"], "single_label", ("no", "yes")),
        ([True, False], "single_label", ("False", "True")),
        (["10", "9", "-1"], "single_label", ("-1", "9", "10")),
        ([10, 9, 9], "single_label", ("9", "10")),
        (["1", "01", "001"], "single_label", ("001", "01", "1")),
        (["--1", "1"], "single_label", ("--1", "1")),
        (["1.0", "2.0", "3.0"], "single_label", ("1.0", "2.0", "3.0")),
        (["0.5", "1.5"], "single_label", ("0.5", "1.5")),  # two values are two classes
        (["0.5", "1", "2.25"], "regression", ("label",)),
        ([0.5, 1.0, 2.25], "regression", ("label",)),
        ([["x"], ["y", "x"], []], "multi_label", ("x", "y")),
        ([["10"], ["9"]], "multi_label", ("9", "10")),
    ],
)
def test_problem_and_labels_are_found(values: list[Any], problem: str, labels: tuple[str, ...]) -> None:
    task = find(table_of(values))
    assert (task.problem, task.labels) == (problem, labels)
    assert task.columns == Columns("text", label="label")
    assert task.metrics[0] in METRICS


@given(st.lists(st.sampled_from(["1", "2", "10", "01", "-3"]), min_size=2, unique=True).flatmap(st.permutations))
def test_labels_do_not_depend_on_the_order_of_rows(values: list[str]) -> None:
    assert find(table_of(values)).labels == find(table_of(sorted(values))).labels


def test_columns_of_a_pair_are_found() -> None:
    table = pa.table({"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": ["yes", "no"]})
    task = find(table)
    assert task.columns == Columns("premise", "hypothesis", "label")
    assert task.texts(table) == [("a", "c"), ("b", "d")]
    assert task.encode(table, BERT, 64).ids.tolist() == [*chain(*BERT(task.texts(table), 64).ids)]


GLUE: dict[str, list[str]] = {
    "cola": ["source", "label", "mark", "sentence"],
    "sst2": ["sentence", "label"],
    "mrpc": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "stsb": ["index", "genre", "source1", "source2", "sentence1", "sentence2", "score"],
    "qqp": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "mnli": ["index", "promptID", "pairID", "genre", "sentence1", "sentence2", "label1", "gold_label"],
    "qnli": ["index", "question", "sentence", "label"],
    "rte": ["index", "sentence1", "sentence2", "label"],
    "wnli": ["index", "sentence1", "sentence2", "label"],
}  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
def test_columns_of_glue_are_known(name: str) -> None:
    table = pa.table({column: ["0", "1", "0.5"] for column in GLUE[name]})
    task = find(table, task=name)
    assert task.name == name
    assert task.columns == Columns(BUILT_IN[name].text, BUILT_IN[name].pair, BUILT_IN[name].label)
    assert task.problem == ("regression" if name == "stsb" else "single_label")
    assert set(task.metrics) <= set(METRICS)


def test_columns_of_the_hubs_glue_are_found() -> None:
    table = pa.table(
        {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": ["equivalent", "not_equivalent"], "idx": [0, 1]}
    )
    task = find(table, task="mrpc")
    assert task.columns == Columns("sentence1", "sentence2", "label")
    # F1 is of the second class.
    assert task.labels == ("not_equivalent", "equivalent")
    assert find(table).labels == ("equivalent", "not_equivalent")


def test_the_header_that_a_release_lacks() -> None:
    assert header_of("cola") == "source,label,mark,sentence"
    assert header_of("sst2") is header_of("squad") is header_of(None) is None


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(DataError, match="there is no task 'sst3'; known are cola, sst2"):
        find(table_of(["a", "b"]), task="sst3")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_become_ids(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    table = table_of(["a", "b", "c", "a"], text=SENTENCES)
    encoded = SINGLE.encode(table, tokenizer, 16)
    assert encoded.num_rows == encoded.num_sequences == 4
    for row, sentence in enumerate(SENTENCES):
        assert encoded.ids[encoded.tokens_of(row)].tolist() == tokenizer([sentence], 16).ids[0]
    assert encoded.num_truncated == sum(len(tokenizer.backend.encode(each).ids) > 16 for each in SENTENCES)
    assert encoded.per_sequence["label"].tolist() == [0, 1, 2, 0]
    assert not SINGLE.encode(table, tokenizer, 16, labelled=False).per_sequence


def test_labels_are_read() -> None:
    assert SINGLE.read_labels(table_of(["b", "a"])).tolist() == [1, 0]
    assert SEVERAL.read_labels(table_of([["y"], [], ["y", "x"]])).tolist() == [[0, 1], [0, 0], [1, 1]]
    assert NUMBER.read_labels(table_of(["1.5", "-2"])).tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("task", "labels", "scores", "expected"),
    [
        (SINGLE, ["a", "c"], [[3, 0, 0], [0, 3, 0]], {"accuracy": 0.5, "f1_macro": 1 / 3}),
        (SEVERAL, [["x"], ["x", "y"]], [[3, -3], [3, -3]], {"multi_label_f1_micro": 0.8}),
        (NUMBER, [1.0, 2.0], [[1], [4]], {"spearman": 1, "mean_squared_error": 2}),
    ],
)
def test_rows_are_judged_and_measured(task: TextTask, labels: list[Any], scores: list[Any], expected: dict) -> None:
    table = table_of(labels)
    judged = task.judge(table, task.encode(table, BERT, 64), np.array(scores, np.float32))
    assert all(len(each) == 2 for each in judged.values())
    metrics = task.measure(judged)
    assert {name: metrics[name] for name in task.metrics} == pytest.approx(expected)
    assert ("calibration_error" in metrics) == (task.problem == "single_label")
    first = draw(judged, np.array([0, 0]))
    assert first["label"].tolist() == [judged["label"][0].tolist()] * 2


def test_less_error_is_a_better_score() -> None:
    task = replace(NUMBER, metrics=("mean_squared_error",))
    assert score_of(task, {"mean_squared_error": 2.0}) == -2
    assert score_of(SINGLE, {"accuracy": 0.5}) == 0.5


@pytest.mark.parametrize(
    ("task", "seen", "predictions"),
    [
        (SINGLE, ["b", "b", "a"], [1, 1]),
        (SEVERAL, [["x"], ["x"], ["y"]], [[1, 0], [1, 0]]),
        (NUMBER, [1.0, 2.0], [1.5, 1.5]),
    ],
)
def test_the_trivial_answer_never_looks_at_the_text(task: TextTask, seen: list[Any], predictions: list[Any]) -> None:
    table = table_of(seen[-2:])
    judged = task.trivial(table_of(seen), table)
    assert judged["prediction"].tolist() == predictions
    assert judged["label"].tolist() == task.read_labels(table).tolist()
    assert set(task.measure(judged)) == set(task.metrics)


def test_calibration_makes_confidence_what_it_says() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    # Right in seven of ten rows, and always sure.
    shown = np.where(rng.random(2000) < 0.7, labels, (labels + 1) % 3)
    scores = 10.0 * np.eye(3)[shown]
    table = table_of([SINGLE.labels[each] for each in labels])
    encoded = SINGLE.encode(table, BERT, 64)
    fitted = SINGLE.calibrate(table, encoded, scores)
    assert fitted.temperature > 1
    assert SINGLE.measure(SINGLE.judge(table, encoded, scores))["calibration_error"] > 0.25
    assert fitted.measure(fitted.judge(table, encoded, scores))["calibration_error"] < 0.01
    assert np.array_equal(fitted.decide(scores), SINGLE.decide(scores))
    assert NUMBER.calibrate(table, encoded, scores) is NUMBER


def test_calibration_draws_a_line_for_each_label() -> None:
    table = table_of([["x"], ["x"], [], ["y"]])
    scores = np.array([[-2.0, -9], [-2, -9], [-4, 5], [-4, 9]])
    fitted = SEVERAL.calibrate(table, SEVERAL.encode(table, BERT, 64), scores)
    assert fitted.thresholds is not None
    assert fitted.decide(scores).tolist() == SEVERAL.read_labels(table).tolist()
    assert SEVERAL.decide(scores).tolist() != SEVERAL.read_labels(table).tolist()


def test_the_unsure_can_be_left_unanswered() -> None:
    table = table_of(["a", "b", "a", "b"])
    scores = np.array([[5.0, 0, 0], [0, 4, 0], [0, 1, 0], [1, 0, 0]])
    fitted = SINGLE.abstain(table, SINGLE.encode(table, BERT, 64), scores, 1.0)
    answers = fitted.answer(table, fitted.encode(table, BERT, 64), scores)
    assert answers["prediction"].to_pylist() == ["a", "b", None, None]
    assert SINGLE.answer(table, SINGLE.encode(table, BERT, 64), scores)["prediction"].to_pylist() == [
        "a",
        "b",
        "b",
        "a",
    ]


def test_answers_come_with_probabilities() -> None:
    table = table_of(["a", "b"]).drop_columns(["label"])
    scores = np.array([[2.0, 0, 0], [0, 1, 0]])
    answers = SINGLE.answer(table, SINGLE.encode(table, BERT, 64, labelled=False), scores)
    assert answers.column_names == ["prediction", "p(a)", "p(b)", "p(c)"]
    assert answers["prediction"].to_pylist() == ["a", "b"]
    shares = np.array([answers[f"p({label})"].to_pylist() for label in SINGLE.labels])
    assert shares.sum(axis=0) == pytest.approx(1)
    encoded = SEVERAL.encode(table, BERT, 64, labelled=False)
    several = SEVERAL.answer(table, encoded, np.array([[3.0, 3], [-3, -3]]))
    assert several["prediction"].to_pylist() == [["x", "y"], []]
    assert NUMBER.answer(table, encoded, np.array([[1.5], [2]])).to_pydict() == {"prediction": [1.5, 2.0]}


@pytest.mark.parametrize("task", [SINGLE, SEVERAL, NUMBER, replace(SEVERAL, thresholds=(0.25, 0.5), temperature=2.0)])
def test_a_task_survives_json(task: TextTask) -> None:
    assert TextTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None], "row 2 has no label; every row needs a label"),
        (["a", ""], "row 2 has no label"),
        ([["a"], ["b", None]], "row 2 has no label"),
        (["a", "a"], r"the column label has one label only \(a\)"),
        ([[], []], r"one label only \(none at all\)"),
        (["0.5", "1.5", "nan"], "row 3 has the label 'nan'; expected a finite number"),
        ([str(row) for row in range(1001)], "1,001 different labels in 1,001 rows; at most 1,000"),
    ],
)
def test_bad_labels_are_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find(table_of(labels))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", " "], "row 2 has an empty text; take it out"),
        (["a", None], "row 2 has the text None, expected a text"),
        ([1, 2], "row 1 has the text 1, expected a text"),
    ],
)
def test_bad_texts_are_refused(texts: list[Any], message: str) -> None:
    table = table_of(["a", "b"], text=texts)
    with pytest.raises(DataError, match=message):
        SINGLE.encode(table, BERT, 64)


def test_rows_are_counted_through_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfpint.data.text_task.CHUNK", 2)
    table = table_of(["a"] * 5, text=["x", "y", "z", "x", ""])
    with pytest.raises(DataError, match="row 5 has an empty text"):
        SINGLE.encode(table, BERT, 64)
    assert SINGLE.encode(table.slice(0, 4), BERT, 64).num_rows == 4


def test_unseen_labels_are_refused() -> None:
    for task, labels in ((SINGLE, ["a", "d"]), (SEVERAL, [["x"], ["d"]])):
        with pytest.raises(DataError, match="the column label has labels that are not in train: d; known are"):
            task.encode(table_of(labels), BERT, 64)
    with pytest.raises(DataError, match="there is no column 'label'; the columns are text"):
        SINGLE.encode(table_of(["a"]).drop_columns(["label"]), BERT, 64)
    with pytest.raises(DataError, match="row 1 has the label 'much'; expected a number"):
        NUMBER.encode(table_of(["much"]), BERT, 64)
