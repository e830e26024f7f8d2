"""Search against the whole matrix of cosines, and rankings against their definitions."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data import retrieval
from halfpint.data.retrieval import ndcg, rank, recall, reciprocal_rank, retrieval_metrics, search


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "NUMBERS_AT_ONCE", 64)
    monkeypatch.setattr(retrieval, "QUERIES_AT_ONCE", 3)


def whole(queries: np.ndarray, corpus: np.ndarray, k: int) -> np.ndarray:
    """All cosines, sorted by falling score and rising number."""
    lengths = [np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, corpus)]
    cosines = (queries / np.where(lengths[0], lengths[0], 1)) @ (corpus / np.where(lengths[1], lengths[1], 1)).T
    return np.array([sorted(range(len(corpus)), key=lambda n: (-row[n], n))[:k] for row in cosines.round(6)])


@st.composite
def vectors(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Signs with one entry: cosines are few and exact, so there are ties everywhere, and zero vectors."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_queries, num_documents, width = draw(st.integers(1, 8)), draw(st.integers(1, 90)), draw(st.integers(1, 4))

    def some(count: int) -> np.ndarray:
        return np.eye(width)[rng.integers(0, width, count)] * rng.integers(-2, 3, (count, 1))

    return some(num_queries), some(num_documents)


@given(vectors(), st.integers(1, 100))
def test_search_with_ties_is_the_sorted_matrix(drawn: tuple[np.ndarray, np.ndarray], k: int) -> None:
    found, scores = search(*drawn, k)
    assert found.tolist() == whole(*drawn, k).tolist()
    assert set(np.unique(scores).tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_search_of_random_vectors(dtype: type) -> None:
    rng = np.random.default_rng(0)
    queries, corpus = rng.normal(size=(10, 16)).astype(dtype), rng.normal(size=(500, 16)).astype(dtype)
    found, scores = search(queries, corpus, 7)
    assert found.tolist() == whole(queries.astype(float), corpus.astype(float), 7).tolist()
    assert (np.diff(scores, axis=1) <= 0).all()
    assert scores[0, 0] == pytest.approx(
        queries[0].astype(float) @ corpus[found[0, 0]].astype(float)
        / np.linalg.norm(queries[0].astype(float)) / np.linalg.norm(corpus[found[0, 0]].astype(float)),
        abs=1e-6,
    )  # fmt: skip


def test_search_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries, corpus = rng.normal(size=(10, 16)), rng.normal(size=(500, 16))
    small = search(queries, corpus, 7)
    monkeypatch.undo()
    large = search(queries, corpus, 7)
    assert small[0].tolist() == large[0].tolist()
    np.testing.assert_allclose(small[1], large[1], atol=1e-6)


def test_a_corpus_on_disk_is_searched_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(retrieval, "NUMBERS_AT_ONCE", 1 << 15)
    corpus = np.lib.format.open_memmap(tmp_path / "corpus.npy", mode="w+", dtype=np.float16, shape=(200_000, 32))
    corpus[:] = np.random.default_rng(0).normal(size=32)
    corpus[123_456] *= -1
    tracemalloc.start()
    found, _ = search(-np.asarray(corpus[:4]), corpus, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[:, 0].tolist() == [123_456] * 4
    assert peak < 8e6 < corpus.nbytes


def test_lengths_beyond_single_precision_do_not_overflow() -> None:
    _, scores = search(np.array([[1e30, 1e30]]), np.array([[1e-30, 1e-30], [1e30, -1e30]]), 2)
    assert scores.tolist() == [pytest.approx([1, 0], abs=1e-6)]


@pytest.mark.parametrize(
    ("queries", "corpus", "k", "message"),
    [
        (np.ones((1, 2)), np.ones((1, 3)), 1, "same dimensions"),
        (np.ones(2), np.ones((1, 2)), 1, "same dimensions"),
        (np.ones((1, 2)), np.ones((1, 2)), 0, "k is 0"),
        (np.ones((1, 2)), np.ones((0, 2)), 1, "empty"),
        (np.ones((1, 2)), np.array([[1, 1], [1, np.nan]]), 1, "vector 1 of the corpus"),
        (np.array([[np.inf, 1]]), np.ones((1, 2)), 1, "vector 0 of the queries"),
    ],
)
def test_bad_vectors_are_refused(queries: np.ndarray, corpus: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(queries, corpus, k)


def test_no_queries_find_nothing() -> None:
    found, scores = search(np.ones((0, 2)), np.ones((5, 2)), 3)
    assert found.shape == scores.shape == (0, 3)


def test_rank() -> None:
    similarities = [[0.1, 0.9, 0.9, 0.5], [0, 0, 0, 0]]
    assert rank(similarities).tolist() == [[1, 2, 3, 0], [0, 1, 2, 3]]
    assert rank(similarities, 2).tolist() == [[1, 2], [0, 1]]


def test_metrics_on_paper() -> None:
    ranking = [[4, 1, 0, 2, 3], [0, 1, 2, 3, 4]]
    relevant = [{1, 3}, {4}]
    assert recall(ranking, relevant, 2).tolist() == [0.5, 0]
    assert recall(ranking, relevant, 5).tolist() == [1, 1]
    assert reciprocal_rank(ranking, relevant).tolist() == [1 / 2, 1 / 5]
    assert reciprocal_rank(ranking, relevant, 4).tolist() == [1 / 2, 0]
    first = (1 / np.log2(3) + 1 / np.log2(6)) / (1 / np.log2(2) + 1 / np.log2(3))
    assert ndcg(ranking, relevant).tolist() == pytest.approx([first, 1 / np.log2(6)])
    assert retrieval_metrics(ranking, relevant, ks=(2,)) == {
        "recall@2": 0.25,
        "mrr": pytest.approx(0.35),
        "ndcg@10": pytest.approx((first + 1 / np.log2(6)) / 2),
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_ndcg_equals_scikit_learn(seed: int, k: int) -> None:
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(seed)
    similarities = rng.permuted(np.tile(np.arange(10.0), (3, 1)), axis=1)
    gains = rng.integers(0, 2, (3, 10))
    gains[:, 0] = 1
    ours = ndcg(rank(similarities), [np.flatnonzero(row).tolist() for row in gains], k)
    assert ours.mean() == pytest.approx(ndcg_score(gains, similarities, k=k))


def test_a_document_counts_once() -> None:
    assert recall([[2, 0]], [[2, 2]], 1).tolist() == [1]


@pytest.mark.parametrize(
    ("ranking", "relevant", "k", "message"),
    [
        ([[0, 1]], [set()], 1, "query 0 has no relevant"),
        ([[0, 1]], [{0}, {1}], 1, "1 queries, but relevant documents of 2"),
        ([], [], 1, "no queries"),
        ([[0, 1]], [{0}], 0, "k is 0"),
    ],
)
def test_bad_rankings_are_refused(ranking: list, relevant: list, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recall(ranking, relevant, k)
