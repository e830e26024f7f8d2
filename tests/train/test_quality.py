"""Intervals hold what they promise, and comparisons are paired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from halfpint.data.columns import Columns
from halfpint.data.text_task import TextTask
from halfpint.train.quality import FEWEST_DRAWS, Interval, compare, over_rows, over_seeds

COLUMNS = Columns("text", None, "label")
CLASSES = TextTask(COLUMNS, "single_label", ("a", "b", "c"), ("accuracy", "f1_macro"))
NUMBERS = TextTask(COLUMNS, "regression", ("label",), ("mean_squared_error",))


def judged(num_rows: int, share_right: float = 0.8, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_rows)
    right = rng.random(num_rows) < share_right
    return {"label": labels, "prediction": np.where(right, labels, (labels + 1) % 3)}


def ends(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_over_seeds_the_interval_is_students(values: list[float]) -> None:
    found = over_seeds(values)
    assert found.mean == pytest.approx(np.mean(values))
    if np.ptp(values) > 1e-9:
        expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert ends(found) == pytest.approx(expected)


def test_one_seed_says_nothing_of_others() -> None:
    assert over_seeds([0.9]) == Interval(0.9, None, None)
    with pytest.raises(ValueError, match="there are no values; an interval over seeds needs the figure of one run"):
        over_seeds([])


def test_of_an_accuracy_the_bootstrap_is_binomial() -> None:
    found = over_rows(CLASSES, judged(500), draws=4000)["accuracy"]
    expected = stats.binom(500, found.mean).ppf([0.025, 0.975]) / 500
    assert ends(found) == pytest.approx(expected, abs=0.004)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    task = TextTask(COLUMNS, "single_label", ("a", "b", "c"), ("accuracy",))
    held = 0
    for seed in range(200):
        low, high = ends(over_rows(task, judged(300, 0.8, seed), draws=150, seed=seed)["accuracy"])
        held += low <= 0.8 <= high
    assert stats.binomtest(held, 200, 0.94).pvalue > 0.01  # percentiles of few rows and draws hold a little less


def test_means_are_the_metrics_of_all_rows() -> None:
    rows = {**judged(200), "probabilities": np.random.default_rng(0).dirichlet(np.ones(3), 200)}
    found = over_rows(CLASSES, rows, draws=20)
    assert {name: each.mean for name, each in found.items()} == CLASSES.measure(rows)
    assert found.keys() == {"accuracy", "f1_macro", "calibration_error"}


def test_the_same_seed_draws_the_same_rows() -> None:
    rows = judged(200)
    assert over_rows(CLASSES, rows, seed=3) == over_rows(CLASSES, rows, seed=3)
    assert over_rows(CLASSES, rows, seed=3) != over_rows(CLASSES, rows, seed=4)


@dataclass
class Rare:
    """Measures the mean of all rows, and of those marked as rare where there are some; counts how often."""

    metrics: tuple[str, ...] = ("mean", "rare")
    calls: list[int] = field(default_factory=list)

    def measure(self, rows: Mapping[str, np.ndarray]) -> dict[str, float]:
        self.calls.append(len(rows["value"]))
        found = {"mean": float(rows["value"].mean())}
        return {**found, "rare": float(rows["value"][rows["rare"]].mean())} if rows["rare"].any() else found


def test_draws_without_what_a_metric_is_of_do_not_count() -> None:
    task: Any = Rare()
    rare = np.arange(30) == 7
    found = over_rows(task, {"value": np.arange(30.0), "rare": rare}, draws=100)
    assert found["rare"] == Interval(7.0, 7.0, 7.0)


def test_wide_rows_are_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfpint.train.quality.VALUES", 300 * (2 * 10 + 51) * 10)
    task: Any = Rare()
    narrow = {"value": np.arange(10.0), "rare": np.zeros(10, bool)}
    for rows, expected in (
        (narrow, 500),
        ({**narrow, "value": np.ones((10, 50))}, 300),
        ({**narrow, "value": np.ones((10, 5000))}, FEWEST_DRAWS),
    ):
        task.calls.clear()
        over_rows(task, rows, draws=500)
        assert len(task.calls) == 1 + expected


def test_a_model_is_as_good_as_itself() -> None:
    found = compare(CLASSES, judged(100), judged(100))
    assert found.metric == "accuracy"
    assert (found.difference, found.wins) == (Interval(0.0, 0.0, 0.0), 0.5)


def with_errors(rows: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The same predictions with so many more mistakes."""
    right = np.flatnonzero(rows["label"] == rows["prediction"])[:number]
    predictions = rows["prediction"].copy()
    predictions[right] = (predictions[right] + 1) % 3
    return {**rows, "prediction": predictions}


def test_rows_on_which_two_models_agree_tell_nothing_between_them() -> None:
    first = judged(500)
    found = compare(CLASSES, first, with_errors(first, 10))
    assert found.difference.mean == pytest.approx(0.02)
    # The difference of every draw is that of the ten rows, however hard the others are.
    expected = stats.binom(500, 0.02).ppf([0.025, 0.975]) / 500
    assert ends(found.difference) == pytest.approx(expected, abs=0.0025)
    assert found.wins > 0.99


def test_turned_around_the_comparison_is_the_opposite() -> None:
    first, second = judged(300), with_errors(judged(300), 4)
    second["prediction"][-40:] = second["label"][-40:]
    there, back = compare(CLASSES, first, second), compare(CLASSES, second, first)
    assert there.difference.mean == -back.difference.mean
    assert ends(there.difference) == pytest.approx([-each for each in reversed(ends(back.difference))])
    assert there.wins + back.wins == pytest.approx(1)


def test_of_errors_the_smaller_is_better() -> None:
    labels = np.linspace(0, 1, 100)
    close, far = ({"label": labels, "prediction": labels + offset} for offset in (0.1, 0.5))
    found = compare(NUMBERS, close, far)
    assert found.difference.mean == pytest.approx(0.01 - 0.25)
    assert found.wins == 1.0


def test_of_several_runs_the_mean_is_compared() -> None:
    base = judged(200, 1.0)
    first, second = [with_errors(base, each) for each in (0, 10, 20)], [with_errors(base, each) for each in (30, 50)]
    found = compare(CLASSES, first, second)
    assert found.difference.mean == pytest.approx(0.95 - 0.8)
    assert found.wins == 1.0


def test_models_judged_on_other_rows_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"on the same rows, and these were judged on \[100, 200\] rows"):
        compare(CLASSES, judged(100), judged(200))
    with pytest.raises(ValueError, match="on the same rows, and these were judged by different labels"):
        compare(CLASSES, judged(100, seed=0), judged(100, seed=1))
    with pytest.raises(ValueError, match="the second model has no judged rows; give those of one run or more"):
        compare(CLASSES, judged(100), [])


def test_nothing_is_drawn_of_nothing() -> None:
    with pytest.raises(ValueError, match="draws is 0; it must be at least 1"):
        over_rows(CLASSES, judged(10), draws=0)
