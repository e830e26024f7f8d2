"""Metrics of labels against predictions: pure functions on arrays, in float64, labels first.

What is notable:
- Everything is on its natural scale (an accuracy is 0 to 1, never a percentage) and is never NaN: a constant
  prediction has a correlation of 0, and predictions that hold NaN are refused.
- `METRICS` says of each by name what it reads and which direction is good; `GLUE_METRICS` is GLUE's table.
Letters: R rows, L labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The share of rows that are right."""
    expected, given = _classes(labels, predictions)
    return float(np.mean(expected == given))


def f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Of two classes, 0 and 1: the F1 of class 1."""
    expected, given = _classes(labels, predictions)
    strange = set(np.unique([expected, given]).tolist()) - {0, 1}
    if strange:
        raise ValueError(
            f"f1 is of the classes 0 and 1, but there is {min(strange, key=str)!r}; use f1_macro or f1_micro"
        )
    right, predicted, positive = (np.count_nonzero(each == 1) for each in (expected * given, given, expected))
    return float(_f1_of_counts(right, predicted, positive))


def f1_macro(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The mean F1 of the classes that occur, be it in the labels or in the predictions."""
    return float(np.mean(_f1(_confusion(*_classes(labels, predictions)))))


def f1_micro(labels: ArrayLike, predictions: ArrayLike) -> float:
    """F1 over all decisions; with one class a row that is the accuracy."""
    return accuracy(labels, predictions)


def matthews(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews' correlation, Gorodkin's R_K where there are more than two classes."""
    confusion = _confusion(*_classes(labels, predictions)).astype(np.float64)
    # Shares of rows instead of counts, so that no product grows with the data.
    confusion /= confusion.sum()
    expected, given = confusion.sum(axis=1), confusion.sum(axis=0)
    if np.count_nonzero(expected) == 1 or np.count_nonzero(given) == 1:
        return 0.0
    covariance = np.trace(confusion) - expected @ given
    return float(covariance / np.sqrt((1 - expected @ expected) * (1 - given @ given)))


def multi_label_f1_micro(labels: ArrayLike, predictions: ArrayLike) -> float:
    """F1 over all decisions of (R, L) zeros and ones; 0 where nothing is labelled and nothing predicted."""
    return float(_f1_of_counts(*(count.sum() for count in _label_counts(labels, predictions))))


def multi_label_f1_macro(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The mean F1 of the labels of (R, L) zeros and ones; that of a label nobody gave or predicted is 0."""
    return float(np.mean(_f1_of_counts(*_label_counts(labels, predictions))))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The linear correlation; 0 where one side is constant."""
    return _correlation(*_values(labels, predictions))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The correlation of ranks, ties sharing their mean rank; 0 where one side is constant."""
    expected, given = _values(labels, predictions)
    if expected.ndim > 1:
        raise ValueError(f"spearman compares two columns of numbers, not arrays of shape {expected.shape}")
    return _correlation(_ranks(expected), _ranks(given))


def mean_squared_error(labels: ArrayLike, predictions: ArrayLike) -> float:
    expected, given = _values(labels, predictions)
    return float(np.mean(np.square(expected - given)))


Reads = Literal["classes", "label_sets", "values"]


@dataclass(frozen=True)
class Metric:
    """One metric: its function and how to read its value."""

    score: Callable[[ArrayLike, ArrayLike], float]
    """Labels and predictions to a number."""
    reads: Reads = "classes"
    """A class a row, zeros and ones for every label of a row, or numbers."""
    worst: float = 0.0
    best: float = 1.0

    @property
    def higher_is_better(self) -> bool:
        return self.best > self.worst


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy),
    "f1": Metric(f1),
    "f1_macro": Metric(f1_macro),
    "f1_micro": Metric(f1_micro),
    "matthews": Metric(matthews, worst=-1.0),
    "multi_label_f1_micro": Metric(multi_label_f1_micro, reads="label_sets"),
    "multi_label_f1_macro": Metric(multi_label_f1_macro, reads="label_sets"),
    "pearson": Metric(pearson, reads="values", worst=-1.0),
    "spearman": Metric(spearman, reads="values", worst=-1.0),
    "mean_squared_error": Metric(mean_squared_error, reads="values", worst=float("inf"), best=0.0),
}

GLUE_METRICS: dict[str, tuple[str, ...]] = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("accuracy", "f1"),
    "mnli_matched": ("accuracy",),
    "mnli_mismatched": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
"""What GLUE scores each of its evaluation sets by; MNLI has two of them."""


def _same_shape(labels: ArrayLike, predictions: ArrayLike) -> tuple[Array, Array]:
    expected, given = np.asarray(labels), np.asarray(predictions)
    if expected.shape != given.shape:
        raise ValueError(f"labels of shape {expected.shape} and predictions of shape {given.shape} are not of one size")
    if expected.size == 0:
        raise ValueError("there are no rows to score")
    return expected, given


def _classes(labels: ArrayLike, predictions: ArrayLike) -> tuple[Array, Array]:
    expected, given = _same_shape(labels, predictions)
    if expected.ndim != 1:
        raise ValueError(f"this metric reads one class a row, not arrays of shape {expected.shape}")
    return expected, given


def _values(labels: ArrayLike, predictions: ArrayLike) -> tuple[Floats, Floats]:
    expected, given = (np.asarray(each, dtype=np.float64) for each in _same_shape(labels, predictions))
    for what, values in (("labels", expected), ("predictions", given)):
        if not np.isfinite(values).all():
            raise ValueError(f"the {what} hold NaN or infinity; nothing can be scored with them")
    return expected, given


def _confusion(expected: Array, given: Array) -> NDArray[np.int64]:
    """Rows by label (down) and prediction (across), over the classes that occur."""
    classes, numbers = np.unique(np.concatenate([expected, given]), return_inverse=True)
    cells = numbers[: len(expected)] * len(classes) + numbers[len(expected) :]
    return np.bincount(cells, minlength=len(classes) ** 2).reshape(len(classes), len(classes))


def _f1(confusion: NDArray[np.int64]) -> Floats:
    """Of each class."""
    return _f1_of_counts(np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1))


def _label_counts(labels: ArrayLike, predictions: ArrayLike) -> tuple[Array, Array, Array]:
    """Of each label, how often it is right, predicted and given."""
    expected, given = _same_shape(labels, predictions)
    if expected.ndim != 2:
        raise ValueError(f"several labels a row are an array (rows, labels), not one of shape {expected.shape}")
    for array in (expected, given):
        if not ((array == 0) | (array == 1)).all():
            raise ValueError("several labels a row are zeros and ones; compare probabilities with thresholds first")
    expected, given = expected.astype(bool), given.astype(bool)
    return (expected & given).sum(axis=0), given.sum(axis=0), expected.sum(axis=0)


def _f1_of_counts(right: ArrayLike, predicted: ArrayLike, given: ArrayLike) -> Floats:
    total = np.add(predicted, given, dtype=np.float64)
    scores: Floats = np.divide(np.multiply(2.0, right), total, out=np.zeros_like(total), where=total > 0)
    return scores


def _correlation(first: Floats, second: Floats) -> float:
    # Asked of the values: the deviations of a constant from its rounded mean need not be zero.
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    first, second = _standardised(first), _standardised(second)
    return float(np.clip(np.sum(first * second), -1.0, 1.0))


def _standardised(values: Floats) -> Floats:
    """Centred, at length one; scaled before every sum, so that none leaves the range of floats."""
    values = _scaled(values)
    values = _scaled(values - values.mean())
    unit: Floats = values / np.sqrt(np.sum(np.square(values)))
    return unit


def _scaled(values: Floats) -> Floats:
    """The largest between a half and one, by a power of two: what differed before still does."""
    scaled: Floats = np.ldexp(values, -np.frexp(np.max(np.abs(values)))[1])
    return scaled


def _ranks(values: Floats) -> Floats:
    _, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[numbers]
    return ranks
