"""Calibration against searches through all possibilities, and on data whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.calibration import (
    DEFAULT_THRESHOLD,
    TEMPERATURES,
    Unreachable,
    abstention_threshold,
    expected_calibration_error,
    fit_temperature,
    fit_temperature_multi_label,
    fit_thresholds,
    softmax,
)

SEEDS = st.integers(0, 2**32 - 1)


def draw_labels(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Classes that really are distributed as softmax(logits)."""
    return (softmax(logits).cumsum(axis=1) < rng.random((len(logits), 1))).sum(axis=1)


def test_softmax_does_not_overflow() -> None:
    assert softmax([[1000.0, 1000.0], [-1000.0, 0.0]]).tolist() == [[0.5, 0.5], [0, 1]]
    assert softmax([[0.0, np.log(9)]], temperature=2).tolist() == [[pytest.approx(0.25), pytest.approx(0.75)]]


def test_calibration_error_on_paper() -> None:
    # Two rows in (0.6, 0.8]: sure of 0.7 on average, right in half. One in (0.8, 1]: sure of 0.9, right.
    assert expected_calibration_error([0.65, 0.75, 0.9], [1, 0, 1], bins=5) == pytest.approx((2 * 0.2 + 0.1) / 3)


@given(SEEDS, st.integers(1, 20))
def test_calibration_error_is_the_sum_over_bins(seed: int, bins: int) -> None:
    rng = np.random.default_rng(seed)
    sure, right = rng.random(50), rng.integers(0, 2, 50)
    total = 0.0
    for index in range(bins):
        inside = (sure > index / bins) & (sure <= (index + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert expected_calibration_error(sure, right, bins) == pytest.approx(total)


def test_both_ends_are_in_a_bin() -> None:
    assert expected_calibration_error([0, 1], [0, 1]) == 0
    assert expected_calibration_error([0, 1], [1, 0]) == 1


def test_perfect_calibration_is_near_zero() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50_000, 3)) * 2
    labels = draw_labels(logits, rng)
    sure = softmax(logits)
    right = sure.argmax(axis=1) == labels
    assert expected_calibration_error(sure.max(axis=1), right) < 0.01
    assert expected_calibration_error(softmax(logits, 0.3).max(axis=1), right) > 0.1


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.5])
def test_the_temperature_of_drawn_labels_is_found(temperature: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50_000, 4)) * 2
    labels = draw_labels(logits, rng)
    assert fit_temperature(logits * temperature, labels) == pytest.approx(temperature, rel=0.03)
    assert fit_temperature(logits * temperature + 1e4, labels) == pytest.approx(temperature, rel=0.03)


def test_the_temperature_of_drawn_label_sets_is_found() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 3)) * 2
    labels = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    assert fit_temperature_multi_label(3 * logits, labels) == pytest.approx(3, rel=0.05)


@given(SEEDS)
def test_no_other_temperature_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(30, 3)) * 5, rng.integers(0, 3, 30)

    def loss(temperature: float) -> float:
        return float(-np.log(softmax(logits, temperature)[np.arange(30), labels]).mean())

    best = fit_temperature(logits, labels)
    grid = np.geomspace(*TEMPERATURES, 50)
    assert loss(best) <= min(map(loss, grid)) + 1e-9


def test_temperature_stays_in_its_bounds() -> None:
    assert fit_temperature([[1.0, 0.0]], [0]) == pytest.approx(TEMPERATURES[0])
    assert fit_temperature([[1.0, 0.0]], [1]) == pytest.approx(TEMPERATURES[1])
    assert fit_temperature([[0.1, 0.1, 0.1]], [2]) == 1


@given(SEEDS, st.integers(1, 12), st.sampled_from([2, 5, 1000]))
def test_thresholds_have_the_best_f1(seed: int, num_rows: int, steps: int) -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(seed)
    sure, given_labels = rng.integers(0, steps + 1, (num_rows, 2)) / steps, rng.integers(0, 2, (num_rows, 2))
    for label, threshold in enumerate(fit_thresholds(sure, given_labels)):
        column, expected = sure[:, label], given_labels[:, label]

        def score(at: float, column: np.ndarray = column, expected: np.ndarray = expected) -> float:
            return float(f1_score(expected, column >= at, zero_division=0))

        if expected.any():
            assert score(threshold) == pytest.approx(max(map(score, column)))
        else:
            assert threshold == DEFAULT_THRESHOLD


def test_a_threshold_lies_halfway() -> None:
    sure = [[0.9], [0.7], [0.3], [0.1]]
    assert fit_thresholds(sure, [[1], [1], [0], [0]]).tolist() == [0.5]
    assert fit_thresholds(sure, [[1], [1], [1], [1]]).tolist() == [0.05]


def test_between_neighbouring_floats_there_is_nothing() -> None:
    upper = np.nextafter(0.5, 1)
    (threshold,) = fit_thresholds([[upper], [0.5]], [[1], [0]])
    assert 0.5 < threshold <= upper


def test_abstention_on_paper() -> None:
    sure, right = [0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0]
    assert abstention_threshold(sure, right, 1.0) == (0.8, 0.4)
    assert abstention_threshold(sure, right, 0.75) == (0.6, 0.8)
    assert abstention_threshold(sure, right, 0.6) == (0.5, 1.0)


def test_rows_of_one_confidence_are_answered_together() -> None:
    assert abstention_threshold([0.9, 0.8, 0.8], [1, 1, 0], 0.9) == (0.9, pytest.approx(1 / 3))


@given(SEEDS, st.sampled_from([0.3, 0.5, 0.9, 1.0]))
def test_no_other_threshold_answers_more(seed: int, precision: float) -> None:
    rng = np.random.default_rng(seed)
    sure, right = rng.integers(0, 11, 15) / 10, rng.integers(0, 2, 15)
    possible = [at for at in sure if right[sure >= at].mean() >= precision]
    if possible:
        found = abstention_threshold(sure, right, precision)
        assert found == (min(possible), pytest.approx((sure >= min(possible)).mean()))
    else:
        with pytest.raises(Unreachable, match="the best is"):
            abstention_threshold(sure, right, precision)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_calibration_error([0.5], [1, 0]), "one of each a row"),
        (lambda: expected_calibration_error([], []), "one of each a row"),
        (lambda: expected_calibration_error([1.5], [1]), "0 to 1"),
        (lambda: expected_calibration_error([float("nan")], [1]), "0 to 1"),
        (lambda: expected_calibration_error([0.5], [1], bins=0), "at least 1"),
        (lambda: fit_temperature([0.5], [1]), "rows, classes"),
        (lambda: fit_temperature([[0.5, float("inf")]], [1]), "NaN"),
        (lambda: fit_temperature([[0.5, 1]], [0, 1]), "one class a row"),
        (lambda: fit_temperature([[0.5, 1]], [2]), "0 to 1"),
        (lambda: fit_temperature([[0.5, 1]], [0.0]), "class numbers"),
        (lambda: fit_temperature_multi_label([[0.5, 1]], [[1]]), "one size"),
        (lambda: fit_thresholds([0.5], [1]), "rows, labels"),
        (lambda: abstention_threshold([0.5], [1], 90), "precision is 90"),
    ],
)
def test_bad_input_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
