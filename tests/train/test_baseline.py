"""The classical baseline: it learns every form of task, quickly, and judges as a task judges a network."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfpint.data.columns import Columns
from halfpint.data.encoded import encode_sequences
from halfpint.data.sources import read
from halfpint.data.text_task import TextTask, find_text_task
from halfpint.engines.requirements import MissingPackage
from halfpint.train.baseline import _spread, tfidf_baseline, tfidf_scores

WORDS = [f"word{index}" for index in range(200)]
COLUMNS = Columns("text", None, "label")
TASKS = {
    "two": TextTask(COLUMNS, "single_label", ("a", "b"), ("accuracy",)),
    "three": TextTask(COLUMNS, "single_label", ("a", "b", "c"), ("accuracy",)),
    "pair": TextTask(Columns("text", "other", "label"), "single_label", ("a", "b", "c"), ("accuracy",)),
    "multi_label": TextTask(COLUMNS, "multi_label", ("a", "b", "c"), ("multi_label_f1_micro",)),
    "regression": TextTask(COLUMNS, "regression", ("label",), ("spearman",)),
}


def draw_table(kind: str, num_rows: int = 300, seed: int = 0) -> pa.Table:
    """Texts in which one word, of the pair's second text where there is one, says the label."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 2 if kind == "two" else 3, num_rows)
    noise = [" ".join(rng.choice(WORDS, 8)) for _ in range(num_rows)]
    told = [f"{text}, mark{number}!" for text, number in zip(noise, numbers, strict=True)]
    letters = ["abc"[number] for number in numbers]
    if kind == "multi_label":
        return pa.table({"text": told, "label": [sorted({letter, "b"}) for letter in letters]})
    if kind == "regression":
        return pa.table({"text": told, "label": numbers / 2 + 0.5})
    return pa.table({"text": noise if kind == "pair" else told, "other": told, "label": letters})


@pytest.mark.parametrize("kind", TASKS)
def test_it_learns_every_form_of_task(kind: str) -> None:
    task = TASKS[kind]
    found = task.measure(tfidf_baseline(task, draw_table(kind), draw_table(kind, seed=1)))
    assert found[task.metrics[0]] > 0.9


@pytest.mark.parametrize("kind", TASKS)
def test_rows_are_judged_as_a_task_judges_scores(kind: str) -> None:
    task, train, table = TASKS[kind], draw_table(kind), draw_table(kind, seed=1)
    nothing = encode_sequences([], None, vocab_size=1)
    expected = task.judge(table, nothing, tfidf_scores(task, train, table))
    found = tfidf_baseline(task, train, table)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("kind", ["two", "three"])
def test_probabilities_sum_to_one(kind: str) -> None:
    found = tfidf_baseline(TASKS[kind], draw_table(kind), draw_table(kind, seed=1))
    np.testing.assert_allclose(found["probabilities"].sum(axis=1), 1)


def test_what_dev_taught_of_a_networks_scores_is_not_used() -> None:
    task, train, table = TASKS["multi_label"], draw_table("multi_label"), draw_table("multi_label", seed=1)
    calibrated = replace(task, temperature=7.0, thresholds=(0.01, 0.01, 0.01))
    ours, theirs = tfidf_baseline(calibrated, train, table), tfidf_baseline(task, train, table)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_it_is_the_same_every_time() -> None:
    train, table = draw_table("three"), draw_table("three", seed=1)
    first, second = (tfidf_scores(TASKS["three"], train, table) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_label_without_rows_is_never_given() -> None:
    train, table = draw_table("two"), draw_table("two", seed=1)
    assert 2 not in tfidf_baseline(TASKS["three"], train, table)["prediction"]
    sets = pa.table({"text": train["text"], "label": [["b"]] * len(train)})
    found = tfidf_baseline(TASKS["multi_label"], sets, sets)
    assert found["prediction"].tolist() == [[0, 1, 0]] * len(train)


def test_texts_without_words_do_no_harm() -> None:
    table = pa.table({"text": ["!", ":-)", "?", "…"] * 5, "label": ["a", "b"] * 10})
    assert len(tfidf_baseline(TASKS["two"], table, table)["prediction"]) == 20


@given(hnp.arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 5)), st.data())
def test_fewer_rows_have_the_classes_in_proportion(classes: np.ndarray, data: st.DataObject) -> None:
    order = _spread(classes)
    assert sorted(order) == list(range(len(classes)))
    kept = np.bincount(classes[order[: data.draw(st.integers(1, len(classes)))]], minlength=6)
    present = np.bincount(classes, minlength=6)
    # One row less of any class would leave it a smaller share than any other class has.
    shares = [(kept[each] / present[each], (kept[each] - 1) / present[each]) for each in np.flatnonzero(present)]
    assert max(less for _, less in shares) <= min(share for share, _ in shares)


@pytest.mark.parametrize("bound", ["ROWS", "CHARACTERS", "VALUES"])
def test_of_large_data_a_part_is_learnt_from(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, train, table = TASKS["three"], draw_table("three", 600), draw_table("three", seed=1)
    whole = tfidf_scores(task, train, table)
    monkeypatch.setattr(
        f"halfpint.train.baseline.{bound}", {"ROWS": 150, "CHARACTERS": 10_000, "VALUES": 10_000}[bound]
    )
    assert not np.array_equal(tfidf_scores(task, train, table), whole)
    assert task.measure(tfidf_baseline(task, train, table))["accuracy"] > 0.9


def test_ag_news(reference_data: Path) -> None:
    data = read(reference_data / "ag_news")
    task = find_text_task(data)
    found = task.measure(tfidf_baseline(task, data.tables["train"], data.tables["test"]))
    assert 0.885 < found["accuracy"] < 0.9


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(MissingPackage, match=r"needs scikit-learn.*pip install 'halfpint\[train\]'"):
        tfidf_baseline(TASKS["two"], draw_table("two"), draw_table("two"))
