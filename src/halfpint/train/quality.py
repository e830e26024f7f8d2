"""How sure a figure is: intervals over seeds and over rows, and two models compared on the same rows.

What is notable:
- two questions, two intervals: `over_seeds` says how a figure would move if the model were trained again, `over_rows`
  how it would move if other rows had been labelled;
- a bootstrap draws rows of what a task has judged and measures them again, so it serves every task and every metric;
- drawing wide or many rows is slow, so they are drawn less often: by their size, never by a clock, so that the same
  rows give the same interval everywhere.
All intervals hold 95%.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfpint.data.task import Array, Judged, Task, draw, score_of
from halfpint.engines.requirements import MissingPackage

LEVEL = 0.95
DRAWS = 1000

FEWEST_DRAWS = 100
VALUES = 500_000_000
"""Drawn in all, some seconds' work, unless there would be fewer draws than `FEWEST_DRAWS`."""
VALUES_OF_A_ROW = 10
"""What a row of an array costs to measure, however narrow."""


@dataclass(frozen=True)
class Interval:
    """A figure and the ends of its 95% interval; None where nothing is known of them."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """One model against another, on the same rows."""

    metric: str
    """The task's deciding one."""
    difference: Interval
    """The first model's less the second's; of an error, negative is better."""
    wins: float
    """The share of draws in which the first is better; one in which they are equal counts half."""


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean of some runs and its interval by Student's t. One run alone tells nothing of others: no ends."""
    if len(values) == 0:
        raise ValueError("there are no values; an interval over seeds needs the figure of one run or more")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, None, None)
    margin = _t_quantile((1 + LEVEL) / 2, len(values) - 1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return Interval(mean, mean - margin, mean + margin)


def over_rows(task: Task, judged: Judged, *, draws: int = DRAWS, seed: int = 0) -> dict[str, Interval]:
    """Every metric of these rows and its interval by the percentile bootstrap (Efron and Tibshirani 1993, chapter 13).

    The means are the metrics of all rows. `draws` is the most; wide tables are drawn less often.
    """
    whole = task.measure(judged)
    drawn: dict[str, list[float]] = {name: [] for name in whole}
    for rows in _drawn_rows([judged], draws, seed):
        # A draw may lack what a metric is of (questions without an answer, say), and then lacks the metric.
        for name, value in task.measure(draw(judged, rows)).items():
            drawn[name].append(value)
    return {name: _interval(mean, drawn[name]) for name, mean in whole.items()}


def compare(
    task: Task,
    first: Judged | Sequence[Judged],
    second: Judged | Sequence[Judged],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Comparison:
    """The paired bootstrap of the deciding metric: every draw measures both models on the same rows.

    A model may be several runs, of which the mean is compared. The interval is that of the rows: what other seeds
    would have given is not in it.
    """
    ours, theirs = _runs(first, "first"), _runs(second, "second")
    _require_same_rows([*ours, *theirs])
    name = task.metrics[0]

    def means(runs: Sequence[Judged]) -> tuple[float, float]:
        """Of the metric, and of the same turned so that more is better."""
        found = [task.measure(judged) for judged in runs]
        return float(np.mean([each[name] for each in found])), float(np.mean([score_of(task, each) for each in found]))

    differences, wins = [], []
    for rows in _drawn_rows([*ours, *theirs], draws, seed):
        (our_mean, our_score), (their_mean, their_score) = (
            means([draw(judged, rows) for judged in runs]) for runs in (ours, theirs)
        )
        differences.append(our_mean - their_mean)
        wins.append((1 + np.sign(our_score - their_score)) / 2)
    return Comparison(name, _interval(means(ours)[0] - means(theirs)[0], differences), float(np.mean(wins)))


def _drawn_rows(every: Sequence[Judged], draws: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Row numbers, as many as there are rows, of every draw."""
    if draws < 1:
        raise ValueError(f"draws is {draws}; it must be at least 1")
    num_rows = _num_rows(every[0])
    cost = sum(array.size + VALUES_OF_A_ROW * num_rows for judged in every for array in judged.values())
    rng = np.random.default_rng(seed)
    for _ in range(min(draws, max(FEWEST_DRAWS, VALUES // cost))):
        yield rng.integers(0, num_rows, num_rows)


def _num_rows(judged: Judged) -> int:
    lengths = {len(array) for array in judged.values()}
    assert len(lengths) == 1, f"judged rows are arrays of one length, not of {sorted(lengths)}"
    (num_rows,) = lengths
    if num_rows == 0:
        raise ValueError("there are no rows; an interval needs some that were judged")
    return num_rows


def _interval(mean: float, drawn: Sequence[float]) -> Interval:
    if not drawn:  # too rare to be in any draw
        return Interval(mean, None, None)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # A figure that cannot be negative, such as a calibration error, is larger in most draws than in all rows.
    return Interval(mean, min(mean, float(low)), max(mean, float(high)))


def _runs(model: Judged | Sequence[Judged], which: str) -> list[Judged]:
    runs = [model] if isinstance(model, Mapping) else list(model)
    if not runs:
        raise ValueError(f"the {which} model has no judged rows; give those of one run or more")
    return runs


def _require_same_rows(runs: Sequence[Judged]) -> None:
    numbers = sorted({_num_rows(judged) for judged in runs})
    if len(numbers) > 1:
        raise ValueError(f"models are compared on the same rows, and these were judged on {numbers} rows")
    labels = [judged["label"] for judged in runs if "label" in judged]
    if not all(_same(labels[0], other) for other in labels[1:]):
        raise ValueError("models are compared on the same rows, and these were judged by different labels")


def _same(first: Array, second: Array) -> bool:
    return first is second or np.array_equal(first, second)


def _t_quantile(probability: float, freedom: int) -> float:
    try:
        from scipy.stats import t
    except ImportError as error:
        raise MissingPackage(
            "an interval over seeds needs scipy, which is not installed; install it with: pip install 'halfpint[train]'"
        ) from error
    return float(t.ppf(probability, freedom))
