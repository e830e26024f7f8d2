"""Metrics against scikit-learn and SciPy, and the cases in which those give NaN or warn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halfpint.data import metrics
from halfpint.data.metrics import GLUE_METRICS, METRICS

ROWS = st.integers(1, 40)


@st.composite
def classes(draw: st.DrawFn, num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    num_rows, count = draw(ROWS), draw(st.integers(1, num_classes))
    one = arrays(np.int64, num_rows, elements=st.integers(0, count - 1))
    return draw(one), draw(one)


@st.composite
def label_sets(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    one = arrays(np.bool_, (draw(ROWS), draw(st.integers(1, 5))))
    return draw(one), draw(one)


@st.composite
def values(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    # Quarters: many ties, and sums that are exact.
    num_rows = draw(st.integers(2, 40))
    one = arrays(np.float64, num_rows, elements=st.integers(-40, 40).map(lambda number: number / 4))
    return draw(one), draw(one)


@given(classes())
def test_class_metrics_equal_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn import metrics as reference

    labels, predictions = pair
    assert metrics.accuracy(*pair) == pytest.approx(reference.accuracy_score(labels, predictions))
    for average in ("macro", "micro"):
        expected = reference.f1_score(labels, predictions, average=average, zero_division=0)
        assert METRICS[f"f1_{average}"].score(*pair) == pytest.approx(expected)


@given(classes(num_classes=2))
def test_binary_f1_equals_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.metrics import f1_score

    assert metrics.f1(*pair) == pytest.approx(f1_score(*pair, zero_division=0))


@given(classes())
def test_matthews_equals_scikit_learn_and_is_zero_for_constants(pair: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.metrics import matthews_corrcoef

    # scikit-learn 1.9 calls two equal constants a perfect correlation; GLUE and older ones say 0.
    constant = min(len(set(each.tolist())) for each in pair) == 1
    expected = 0.0 if constant else matthews_corrcoef(*pair)
    assert metrics.matthews(*pair) == pytest.approx(expected, abs=1e-12)


@given(label_sets())
def test_multi_label_f1_equals_scikit_learn(pair: tuple[np.ndarray, np.ndarray]) -> None:
    from sklearn.metrics import f1_score

    for average in ("micro", "macro"):
        if pair[0].shape[1] == 1:  # which scikit-learn takes for two classes
            expected = f1_score(pair[0][:, 0], pair[1][:, 0], zero_division=0)
        else:
            expected = f1_score(*pair, average=average, zero_division=0)
        assert METRICS[f"multi_label_f1_{average}"].score(*pair) == pytest.approx(expected)


@given(values())
def test_correlations_equal_scipy_and_are_zero_for_constants(pair: tuple[np.ndarray, np.ndarray]) -> None:
    from scipy import stats

    constant = any(np.ptp(each) == 0 for each in pair)
    for ours, reference in ((metrics.pearson, stats.pearsonr), (metrics.spearman, stats.spearmanr)):
        expected = 0.0 if constant else reference(*pair).statistic
        assert ours(*pair) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_correlation_does_not_depend_on_the_scale(scale: float) -> None:
    labels, predictions = np.array([1.0, 2, 3, 5]), np.array([2.0, 1, 4, 4])
    assert metrics.pearson(labels, scale * predictions) == pytest.approx(metrics.pearson(labels, predictions))


def test_a_constant_that_no_float_holds_exactly_is_a_constant() -> None:
    assert metrics.pearson(np.arange(3), np.full(3, 0.1)) == 0


def test_mean_squared_error() -> None:
    assert metrics.mean_squared_error([0, 2], [1, 4]) == 2.5


def test_f1_on_paper() -> None:
    # Two of three predictions and two of four labels of class 1 are right: 2 · 2 / (3 + 4).
    assert metrics.f1([1, 1, 1, 1, 0], [1, 1, 0, 0, 1]) == pytest.approx(4 / 7)


def test_f1_is_of_class_1_also_where_it_never_occurs() -> None:
    assert metrics.f1([0, 0, 0], [0, 0, 0]) == 0


def test_class_names_are_classes() -> None:
    assert metrics.f1_macro(["cat", "dog"], ["cat", "cat"]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_prediction_has_the_best_value(name: str) -> None:
    labels = np.array([[0, 1], [1, 0], [1, 1]]) if METRICS[name].reads == "label_sets" else np.array([0, 1, 1, 0])
    assert METRICS[name].score(labels, labels) == pytest.approx(METRICS[name].best)
    assert METRICS[name].higher_is_better == (name != "mean_squared_error")


def test_glue_metrics_are_known() -> None:
    assert {name for names in GLUE_METRICS.values() for name in names} <= METRICS.keys()
    assert len(GLUE_METRICS) == 10


@pytest.mark.parametrize("name", METRICS)
def test_no_rows_and_unequal_rows_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no rows"):
        METRICS[name].score([], [])
    with pytest.raises(ValueError, match="not of one size"):
        METRICS[name].score([1, 0], [1])


@pytest.mark.parametrize("name", ["pearson", "spearman", "mean_squared_error"])
def test_nan_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="predictions hold NaN"):
        METRICS[name].score([1.0, 2.0], [1.0, float("nan")])


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("f1", [0, 1, 2], "f1_macro"),
        ("accuracy", [[0, 1]], "one class a row"),
        ("multi_label_f1_micro", [0, 1], "rows, labels"),
        ("multi_label_f1_micro", [[0.3, 1]], "thresholds"),
        ("spearman", [[0.3, 1]], "two columns"),
    ],
)
def test_what_a_metric_cannot_read_is_refused(name: str, labels: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        METRICS[name].score(labels, labels)
