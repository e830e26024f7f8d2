"""What a dev set teaches about a model's scores: how far to trust them, and where to draw lines.

Everything here is fitted on dev and applied to other data: a temperature, a threshold for each label, a threshold
below which to abstain. What is sure on dev (one class alone right, say) must not make a model boundlessly sure, so
the temperature has bounds.
Letters: R rows, C classes, L labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

TEMPERATURES = (0.05, 20.0)
"""The lowest and the highest that is fitted."""

DEFAULT_THRESHOLD = 0.5
"""Of a label that dev says nothing about."""


class Unreachable(ValueError):
    """No threshold gives what was asked for."""


class Abstention(NamedTuple):
    """Answer where the confidence is at least `threshold`."""

    threshold: float
    coverage: float
    """The share of rows that is answered."""


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Probabilities over the last axis."""
    scores = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """The distance between confidence and accuracy, over bins of equal width, by their rows (Guo et al. 2017, eq. 3).

    `confidence` is the probability of what was predicted, `correct` whether it was right: (R,) each. A bin holds its
    upper end, not its lower one.
    """
    sure, right = _confidence(confidence, correct)
    if bins < 1:
        raise ValueError(f"bins is {bins}; it must be at least 1")
    bin_of = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(bin_of, weights=right - sure, minlength=bins)
    return float(np.abs(gaps).sum() / len(sure))


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The T for which softmax(logits / T) makes the labels most likely: logits (R, C), class numbers (R,)."""
    scores, classes = _logits(logits), np.asarray(labels)
    if classes.shape != scores.shape[:1]:
        raise ValueError(f"logits of shape {scores.shape} need one class a row, not labels of shape {classes.shape}")
    if not (np.issubdtype(classes.dtype, np.integer) and classes.min() >= 0 and classes.max() < scores.shape[1]):
        raise ValueError(f"labels must be class numbers from 0 to {scores.shape[1] - 1}")
    scores = scores - scores.max(axis=1, keepdims=True)
    wanted = scores[np.arange(len(scores)), classes]

    def slope(sharpness: float) -> float:
        """Of the negative log-likelihood by 1 / T, in which it is convex."""
        return float(((softmax(sharpness * scores) * scores).sum(axis=1) - wanted).sum())

    if slope(1.0) == 0:  # as where all scores are equal, and no temperature matters
        return 1.0
    lowest, highest = np.log(TEMPERATURES)
    for _ in range(40):
        middle = (lowest + highest) / 2
        if slope(np.exp(-middle)) > 0:  # too sharp
            lowest = middle
        else:
            highest = middle
    return float(np.exp((lowest + highest) / 2))


def fit_temperature_multi_label(logits: ArrayLike, labels: ArrayLike) -> float:
    """The T for which sigmoid(logits / T) makes the labels most likely: both (R, L), labels zeros and ones."""
    scores, given = _logits(logits), np.asarray(labels)
    if scores.shape != given.shape:
        raise ValueError(f"logits of shape {scores.shape} and labels of shape {given.shape} are not of one size")
    # A sigmoid is a softmax over this score and zero.
    return fit_temperature(np.stack([np.zeros(scores.size), scores.ravel()], axis=1), given.ravel().astype(np.int64))


def fit_thresholds(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """For each label the threshold with the best F1 on these rows: both (R, L), the result (L,).

    A label is predicted where its probability is at least its threshold, which lies halfway between two rows. Of
    equally good ones the nearest to a half is taken; a label that no row has keeps `DEFAULT_THRESHOLD`.
    """
    sure, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels).astype(bool)
    if sure.ndim != 2 or sure.shape != given.shape or len(sure) == 0:
        raise ValueError(
            f"probabilities of shape {sure.shape} and labels of shape {given.shape}: both must be (rows, labels)"
        )
    return np.array([_best_threshold(column, has) for column, has in zip(sure.T, given.T, strict=True)])


def abstention_threshold(confidence: ArrayLike, correct: ArrayLike, precision: float) -> Abstention:
    """The threshold that answers most rows of those at which `precision` of the answers are right on these rows."""
    sure, right = _confidence(confidence, correct)
    if not 0 < precision <= 1:
        raise ValueError(f"precision is {precision}; it must be above 0 and at most 1")
    order = np.argsort(-sure, kind="stable")
    sure, right = sure[order], right[order]
    reached = np.cumsum(right) / np.arange(1, len(right) + 1)
    # Rows of one confidence are answered together.
    last_of_tie = np.append(sure[1:] < sure[:-1], True)
    # A share is a rounded quotient, and so is a precision such as 0.9.
    enough = np.flatnonzero(last_of_tie & (reached >= precision - 1e-12))
    if len(enough) == 0:
        best = reached[last_of_tie].max()
        raise Unreachable(f"no threshold reaches a precision of {precision:.1%} on these rows; the best is {best:.1%}")
    return Abstention(threshold=float(sure[enough[-1]]), coverage=float((enough[-1] + 1) / len(sure)))


def _best_threshold(sure: Floats, given: NDArray[np.bool_]) -> float:
    if not given.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-sure, kind="stable")
    sure, given = sure[order], given[order]
    f1 = 2 * np.cumsum(given) / (np.arange(1, len(given) + 1) + given.sum())
    f1[:-1][sure[1:] == sure[:-1]] = -1.0
    below = np.append(sure[1:], 0.0)
    halfway = (sure + below) / 2
    thresholds = np.where(halfway > below, halfway, sure)  # between neighbouring floats there is nothing
    best = np.flatnonzero(f1 == f1.max())
    return float(thresholds[best[np.argmin(np.abs(thresholds[best] - DEFAULT_THRESHOLD))]])


def _logits(logits: ArrayLike) -> Floats:
    scores = np.asarray(logits, dtype=np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"logits are an array (rows, classes), not one of shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("the logits hold NaN or infinity; they cannot be calibrated")
    return scores


def _confidence(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, NDArray[Any]]:
    sure, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if sure.ndim != 1 or sure.shape != right.shape or len(sure) == 0:
        raise ValueError(f"confidence of shape {sure.shape} and correct of shape {right.shape}: one of each a row")
    if not ((sure >= 0) & (sure <= 1)).all():
        raise ValueError("confidence is a probability; it must be 0 to 1")
    return sure, right
