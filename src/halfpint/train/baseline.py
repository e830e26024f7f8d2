"""What is reached without a network: TF-IDF of words and pairs of words, and a linear model, in seconds.

What is notable:
- every label is one logistic regression against the rest, fitted by stochastic gradient descent, which serves one
  label a row and several alike; a number is fitted by ridge regression;
- time and memory are bounded by using fewer rows and epochs of large data, the rows with their classes in proportion;
- punctuation counts as words, so every text has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.data.task import Array
from halfpint.data.text_task import TextTask
from halfpint.engines.requirements import MissingPackage

WORDS = r"\w+|[^\w\s]"
FEATURES = 200_000
"""The most frequent ones."""
STRENGTH = 10.0
"""The inverse of the regularisation, scikit-learn's C."""
EPOCHS = 20

ROWS = 100_000
CHARACTERS = 25_000_000
"""Of the rows that are learnt from; a third of a second for a million."""
VALUES = 1_500_000_000
"""That the regressions look at, all epochs and labels together: some ten seconds of two cores."""

CERTAIN = 30.0
"""The score of a label that all rows have, or its negative of one that none has."""

Floats = NDArray[np.float64]


def tfidf_baseline(task: TextTask, train: pa.Table, table: pa.Table) -> dict[str, Array]:
    """Learn from one table, answer another: judged rows, as the task makes them of a network's scores."""
    scores = tfidf_scores(task, train, table)
    # What dev taught about a network's scores is not true of these.
    plain = replace(task, temperature=1.0, thresholds=None)
    judged = {"label": task.read_labels(table), "prediction": plain.decide(scores)}
    return judged if task.problem == "regression" else {**judged, "probabilities": plain.probabilities(scores)}


def tfidf_scores(task: TextTask, train: pa.Table, table: pa.Table) -> Floats:
    """As a head would give them: (R, labels)."""
    labels = task.read_labels(train)
    rows = _spread(labels if task.problem == "single_label" else np.zeros(len(labels), np.int64))[:ROWS]
    texts = _joined(task.texts(train.take(rows)))
    within = int(np.searchsorted(np.cumsum([len(text) for text in texts]), CHARACTERS, side="right"))
    texts, labels = texts[: max(1, within)], labels[rows[: max(1, within)]]
    vectorizer = _vectorizer()
    known = vectorizer.fit_transform(texts)
    asked = vectorizer.transform(_joined(task.texts(table)))
    if task.problem == "regression":
        return _ridge(known, labels, asked)
    if task.problem == "multi_label":
        return _against_rest(known, labels, asked)
    if len(task.labels) == 2:
        second = _against_rest(known, labels[:, None] == 1, asked)
        return _log_sigmoid(np.concatenate([-second, second], axis=1))
    # The softmax of these are the probabilities of all, divided by their sum.
    return _log_sigmoid(_against_rest(known, labels[:, None] == np.arange(len(task.labels)), asked))


def _joined(texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[str]:
    return [text if isinstance(text, str) else " ".join(text) for text in texts]


def _spread(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """All row numbers, in an order of which any beginning has the classes in proportion, and the rare ones at all."""
    shuffled = np.random.default_rng(0).permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    counts = np.bincount(classes)
    within = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(by_class[np.argsort(within / np.repeat(counts, counts), kind="stable")])


def _against_rest(known: Any, given: Array, asked: Any) -> Floats:
    """The log-odds of each label: `given` is (rows, labels), what is returned (R, labels)."""
    num_labels = given.shape[1]
    passes = VALUES / (known.nnz * num_labels)
    if passes < 1:
        some = max(1, int(passes * known.shape[0]))
        known, given = known[:some], given[:some]
    epochs = int(np.clip(passes, 1, EPOCHS))
    scores = np.empty((asked.shape[0], num_labels))

    def fit(label: int) -> None:
        scores[:, label] = _logistic(known, given[:, label].astype(np.int64), asked, epochs)

    with ThreadPoolExecutor() as pool:  # the descent itself runs without Python's lock
        list(pool.map(fit, range(num_labels)))
    return scores


def _logistic(known: Any, given: NDArray[np.int64], asked: Any, epochs: int) -> Floats:
    from sklearn.linear_model import SGDClassifier

    if given.min() == given.max():
        return np.full(asked.shape[0], CERTAIN if given[0] else -CERTAIN)
    model = SGDClassifier(loss="log_loss", alpha=1 / (STRENGTH * len(given)), max_iter=epochs, tol=None, random_state=0)
    return np.asarray(model.fit(known, given).decision_function(asked), dtype=np.float64)


def _ridge(known: Any, values: Floats, asked: Any) -> Floats:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1.0, solver="sparse_cg", max_iter=200)
    return np.asarray(model.fit(known, values).predict(asked), dtype=np.float64)[:, None]


def _vectorizer() -> Any:
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError as error:
        raise MissingPackage(
            "the TF-IDF baseline needs scikit-learn, which is not installed; install it with: "
            "pip install 'halfpint[train]'"
        ) from error
    return TfidfVectorizer(
        token_pattern=WORDS, ngram_range=(1, 2), sublinear_tf=True, max_features=FEATURES, dtype=np.float32
    )


def _log_sigmoid(scores: Floats) -> Floats:
    return np.asarray(-np.logaddexp(0.0, -scores))
