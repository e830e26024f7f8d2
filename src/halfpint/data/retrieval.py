"""Search by embeddings: the nearest of a corpus, and how good a ranking is.

A ranking is an array (Q, K) of document numbers, the best first; what is relevant to a query is a set of numbers.
Of equal scores the lower document number is the better, so a ranking is one and the same everywhere.
Letters: Q queries, N documents, K ranks, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Ranking = NDArray[np.int64]
Relevant = Sequence[Collection[int]]

NUMBERS_AT_ONCE = 1 << 22
"""How many similarities, and how many numbers of the corpus, `search` holds at a time: 16 MiB of each."""

QUERIES_AT_ONCE = 256


def search(queries: ArrayLike, corpus: ArrayLike, k: int) -> tuple[Ranking, Scores]:
    """The k documents nearest to every query by cosine, and the cosines: (Q, K) each, K = k or all documents.

    The corpus may be of any float type and lie on disk (`np.load(…, mmap_mode="r")`): it is read once in chunks for
    every few hundred queries. A vector of length zero is like nothing: its cosines are 0.
    """
    asked, documents = np.asarray(queries), np.asarray(corpus)
    if asked.ndim != 2 or documents.ndim != 2 or asked.shape[1] != documents.shape[1]:
        raise ValueError(
            f"queries of shape {asked.shape} and a corpus of shape {documents.shape}: "
            "both must be (vectors, dimensions), with the same dimensions"
        )
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    if len(documents) == 0:
        raise ValueError("the corpus is empty; there is nothing to find")
    width = min(k, len(documents))
    found, scores = np.empty((len(asked), width), np.int64), np.empty((len(asked), width), np.float32)
    for start in range(0, len(asked), QUERIES_AT_ONCE):
        some = slice(start, start + QUERIES_AT_ONCE)
        found[some], scores[some] = _search(_at_length_one(asked[some], "queries", start), documents, width)
    return found, scores


def rank(similarities: ArrayLike, k: int | None = None) -> Ranking:
    """The documents of a matrix (Q, N) by their similarity to each query; the best k, or all."""
    scores = np.asarray(similarities)
    if scores.ndim != 2 or np.isnan(scores).any():
        raise ValueError(f"similarities are an array (queries, documents) without NaN, not one of shape {scores.shape}")
    return _best(scores, scores.shape[1] if k is None else min(k, scores.shape[1]))


def recall(ranking: ArrayLike, relevant: Relevant, k: int) -> Floats:
    """Of each query, which share of its relevant documents stands on the first k ranks: (Q,)."""
    return _of_queries(ranking, relevant, k, lambda hits, num_relevant: hits.sum() / num_relevant)


def reciprocal_rank(ranking: ArrayLike, relevant: Relevant, k: int | None = None) -> Floats:
    """Of each query, one over the rank of its first relevant document, 0 where there is none (on the first k): (Q,)."""
    return _of_queries(ranking, relevant, k, lambda hits, _: 1 / (1 + np.argmax(hits)) if hits.any() else 0.0)


def ndcg(ranking: ArrayLike, relevant: Relevant, k: int = 10) -> Floats:
    """Of each query, the gain of the first k ranks, discounted by log₂(1 + rank), over the best possible: (Q,)."""
    discounts = 1 / np.log2(np.arange(2, k + 2))

    def normalized(hits: NDArray[np.bool_], num_relevant: int) -> float:
        return float(discounts[: len(hits)][hits].sum() / discounts[:num_relevant].sum())

    return _of_queries(ranking, relevant, k, normalized)


def retrieval_metrics(ranking: ArrayLike, relevant: Relevant, ks: Sequence[int] = (1, 10, 100)) -> dict[str, float]:
    """The means over all queries: `recall@k` of each k, `mrr` over all ranks, and `ndcg@10`."""
    found = {f"recall@{k}": float(recall(ranking, relevant, k).mean()) for k in ks}
    return found | {
        "mrr": float(reciprocal_rank(ranking, relevant).mean()),
        "ndcg@10": float(ndcg(ranking, relevant, 10).mean()),
    }


def _search(queries: Scores, corpus: NDArray[Any], k: int) -> tuple[Ranking, Scores]:
    found, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    step = max(1, NUMBERS_AT_ONCE // max(1, *queries.shape))
    for start in range(0, len(corpus), step):
        chunk = _at_length_one(corpus[start : start + step], "corpus", start)
        likeness = queries @ chunk.T
        here = _best(likeness, min(k, len(chunk)))
        # What was found before has lower numbers and stands first, as ties need it.
        found = np.concatenate([found, here + start], axis=1)
        scores = np.concatenate([scores, np.take_along_axis(likeness, here, axis=1)], axis=1)
        kept = _best(scores, min(k, scores.shape[1]))
        found, scores = np.take_along_axis(found, kept, axis=1), np.take_along_axis(scores, kept, axis=1)
    return found, scores


def _best(scores: NDArray[Any], k: int) -> Ranking:
    """The columns of the k largest of each row, the largest first, of equal ones the lower column first."""
    if k >= scores.shape[1]:
        return np.argsort(-scores, axis=1, kind="stable")
    best = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    lowest = np.take_along_axis(scores, best, axis=1).min(axis=1, keepdims=True)
    # Where more than k reach the lowest score kept, a partition keeps any of them: those rows are sorted whole.
    tied = np.flatnonzero((scores >= lowest).sum(axis=1) > k)
    best[tied] = np.sort(np.argsort(-scores[tied], axis=1, kind="stable")[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)


def _at_length_one(vectors: NDArray[Any], what: str, start: int) -> Scores:
    vectors = vectors.astype(np.float32)
    # Squares are summed in double precision: those of single precision overflow it.
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))[:, None]
    wrong = np.flatnonzero(~np.isfinite(lengths))
    if len(wrong):
        raise ValueError(f"vector {start + wrong[0]} of the {what} holds NaN or infinity")
    np.divide(vectors, np.where(lengths > 0, lengths, 1), out=vectors, casting="same_kind")
    return vectors


def _of_queries(
    ranking: ArrayLike, relevant: Relevant, k: int | None, score: Callable[[NDArray[np.bool_], int], float]
) -> Floats:
    ranks = np.asarray(ranking)
    if len(ranks) != len(relevant):
        raise ValueError(f"there are rankings of {len(ranks)} queries, but relevant documents of {len(relevant)}")
    if len(ranks) == 0:
        raise ValueError("there are no queries to score")
    if k is not None and k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    scores = np.empty(len(ranks))
    for query, (row, wanted) in enumerate(zip(ranks, relevant, strict=True)):
        numbers = set(wanted)
        if not numbers:
            raise ValueError(f"query {query} has no relevant document; leave it out")
        scores[query] = score(np.isin(row[:k], list(numbers)), len(numbers))
    return scores
