"""Answers as spans of a text: SQuAD's official evaluation, and the best spans under a model's scores.

What is notable:
- The two versions of SQuAD score an answer that is empty once normalised differently; each is kept as it is.
- Scores are 0 to 1, where the official scripts print percentages, and there is one a row, so that two models
  can be compared on the same questions.
- `best_spans` looks at every span of a window, not at the best starts and ends alone, and takes the windows of one
  question together.
Letters: L tokens of a window, D tokens of the longest answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Scorer = Callable[[str, str], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous whitespace, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, prediction: str) -> float:
    """1 where both are the same once normalised."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def token_f1(answer: str, prediction: str) -> float:
    """F1 over the words of both, as SQuAD 1.1 has it: 0 where either has none."""
    expected, given = normalize_answer(answer).split(), normalize_answer(prediction).split()
    num_same = sum((Counter(expected) & Counter(given)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(given), num_same / len(expected)
    return 2 * precision * recall / (precision + recall)


def token_f1_or_empty(answer: str, prediction: str) -> float:
    """As SQuAD 2.0 has it: 1 where neither has words, for that is how both say that there is no answer."""
    if not normalize_answer(answer) and not normalize_answer(prediction):
        return 1.0
    return token_f1(answer, prediction)


@dataclass(frozen=True)
class SpanScores:
    """One exact match and one F1 for each question."""

    exact: Floats
    f1: Floats


def squad1_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> SpanScores:
    """Of SQuAD 1.1: the best over the answers of each question, which has at least one."""
    _require_rows(answers, predictions)
    for row, several in enumerate(answers):
        if not several:
            raise ValueError(f"question {row} has no answer, which SQuAD 1.1 does not know; evaluate it as SQuAD 2.0")
    return _scores(answers, predictions, token_f1)


def squad2_scores(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> SpanScores:
    """Of SQuAD 2.0: a question without answers, or with none that leaves a word, wants the empty prediction."""
    _require_rows(answers, predictions)
    kept = [[answer for answer in several if normalize_answer(answer)] or [""] for several in answers]
    return _scores(kept, predictions, token_f1_or_empty)


def squad1_metrics(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """`exact` and `f1` over all questions."""
    return _means(squad1_scores(answers, predictions))


def squad2_metrics(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    no_answer_scores: ArrayLike | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """`exact` and `f1`, the same as `HasAns_…` and `NoAns_…` of the questions of either sort, and the best thresholds.

    `no_answer_scores` say how sure the model is that there is no answer. Where one is above `threshold`, the question
    counts as unanswered; without a threshold the predictions stand. With the scores come `best_exact`, `best_f1` and
    the thresholds that reach them, so those predictions should be the best answers whether or not there is one.
    """
    scores = squad2_scores(answers, predictions)
    has_answer = np.array([bool(several) for several in answers])
    if no_answer_scores is None:
        if threshold is not None:
            raise ValueError(f"a threshold of {threshold} needs the no_answer_scores that it is compared with")
        return _with_breakdown(scores, has_answer)
    absent = np.asarray(no_answer_scores, dtype=np.float64)
    if absent.shape != has_answer.shape or np.isnan(absent).any():
        raise ValueError(f"no_answer_scores must be {len(has_answer)} numbers, one a question, without NaN")
    answered = np.array([prediction != "" for prediction in predictions])
    best = {}
    for name, each in (("exact", scores.exact), ("f1", scores.f1)):
        best[f"best_{name}"], best[f"best_{name}_thresh"] = best_threshold(each, answered, has_answer, absent)
    if threshold is not None:
        unanswered = absent > threshold
        scores = SpanScores(*(np.where(unanswered, ~has_answer, each) for each in (scores.exact, scores.f1)))
    return _with_breakdown(scores, has_answer) | best


def best_threshold(
    scores: Floats, answered: NDArray[np.bool_], has_answer: NDArray[np.bool_], no_answer_scores: Floats
) -> tuple[float, float]:
    """The best mean score that a threshold reaches, and the lowest such threshold, by the official search.

    The search starts with every question unanswered (its threshold is called 0) and answers them one by one, the
    surest first. Of questions with equal `no_answer_scores` it may answer a part, which no threshold does; the
    official figures have that, so these do.
    """
    order = np.argsort(no_answer_scores, kind="stable")
    gains = np.where(has_answer, scores, -answered.astype(np.float64))[order]
    totals = np.cumsum(np.concatenate([[np.count_nonzero(~has_answer)], gains]))
    best = int(np.argmax(totals))
    return float(totals[best] / len(scores)), float(no_answer_scores[order[best - 1]]) if best else 0.0


@dataclass(frozen=True)
class Span:
    """Characters `start` up to, not including, `end` of a text."""

    start: int
    end: int
    score: float
    """The sum of its start's and its end's score."""
    probability: float
    """Among the spans beside it and, where scored with them, that there is no answer."""

    def text(self, context: str) -> str:
        return context[self.start : self.end]


@dataclass(frozen=True)
class SpanPrediction:
    """What a model answers to one question."""

    spans: tuple[Span, ...]
    """The best first; none where no window holds a token of the context."""
    no_answer_score: float
    """The higher, the surer that there is no answer: to be compared with a threshold."""

    def text(self, context: str, threshold: float | None = None) -> str:
        """The best answer; empty where there is no span, or where `no_answer_score` is above the threshold."""
        if not self.spans or (threshold is not None and self.no_answer_score > threshold):
            return ""
        return self.spans[0].text(context)


def best_spans(
    start_scores: Sequence[ArrayLike],
    end_scores: Sequence[ArrayLike],
    windows: Sequence[ArrayLike],
    *,
    no_answer_scores: ArrayLike | None = None,
    max_tokens: int = 30,
    n_best: int = 20,
) -> SpanPrediction:
    """The best spans over all windows of one question.

    A window is an array (L, 2): from and to which character of the context each token goes, negative for the tokens
    that are not of the context. A token of no characters neither starts nor ends an answer. A span found in several
    windows counts once, with its best score.

    That there is no answer is scored as in BERT: by a window's first token as start and end, the least of all
    windows (each must think so), less the best span's score. With `no_answer_scores`, those of a head of their
    own, one a window, it is the least of them as it is.
    """
    if not len(start_scores) == len(end_scores) == len(windows) > 0:
        raise ValueError(
            f"{len(start_scores)} start scores, {len(end_scores)} end scores and {len(windows)} windows: "
            "each window of the question needs all three"
        )
    if no_answer_scores is not None and len(np.asarray(no_answer_scores)) != len(windows):
        raise ValueError(
            f"{len(windows)} windows need as many no_answer_scores, not {len(np.asarray(no_answer_scores))}"
        )
    if max_tokens < 1 or n_best < 1:
        raise ValueError(f"max_tokens is {max_tokens} and n_best {n_best}; both must be at least 1")
    found: dict[tuple[int, int], float] = {}
    first_token = float("inf")
    for window in map(_Window.read, start_scores, end_scores, windows):
        first_token = min(first_token, float(window.starts[0] + window.ends[0]))
        for characters, score in window.best(max_tokens, n_best):
            found[characters] = max(score, found.get(characters, -np.inf))
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    scores = [score for _, score in best]
    if no_answer_scores is None:
        absent = first_token - scores[0] if scores else float("inf")
        probabilities = _softmax([*scores, first_token])
    else:
        absent = float(np.min(np.asarray(no_answer_scores, dtype=np.float64)))
        probabilities = _softmax(scores)
    spans = (
        Span(*characters, score, float(share))
        for (characters, score), share in zip(best, probabilities[: len(best)], strict=True)
    )
    return SpanPrediction(tuple(spans), absent)


@dataclass(frozen=True)
class _Window:
    starts: Floats  # (L,)
    ends: Floats  # (L,)
    offsets: NDArray[np.int64]  # (L, 2)

    @classmethod
    def read(cls, start_scores: ArrayLike, end_scores: ArrayLike, offsets: ArrayLike) -> _Window:
        starts, ends = (np.asarray(each, dtype=np.float64) for each in (start_scores, end_scores))
        window = cls(starts, ends, np.asarray(offsets, dtype=np.int64))
        if not len(starts) == len(ends) == len(window.offsets) > 0:
            raise ValueError(
                f"a window of {len(window.offsets)} tokens has {len(starts)} start scores and {len(ends)} end scores; "
                "it needs one of each for every token"
            )
        if not (np.isfinite(starts).all() and np.isfinite(ends).all()):
            raise ValueError("the scores of a window hold NaN or infinity; no answer can be chosen by them")
        return window

    def best(self, max_tokens: int, n_best: int) -> list[tuple[tuple[int, int], float]]:
        """The characters and the scores of its best spans, in no order."""
        start, end = self.offsets[:, 0], self.offsets[:, 1]
        of_context = (start >= 0) & (end > start)
        starts = np.where(of_context, self.starts, -np.inf)
        ends = np.pad(np.where(of_context, self.ends, -np.inf), (0, max_tokens - 1), constant_values=-np.inf)
        ends_from = np.lib.stride_tricks.sliding_window_view(ends, max_tokens)  # (L, D)
        # The best spans start at the tokens whose own best span is among the best.
        first = _largest(starts + ends_from.max(axis=1), n_best)
        sums = (starts[first, None] + ends_from[first]).ravel()
        best = _largest(sums, n_best)
        best = best[sums[best] > -np.inf]
        first, last = first[best // max_tokens], first[best // max_tokens] + best % max_tokens
        characters = zip(start[first].tolist(), end[last].tolist(), strict=True)
        return list(zip(characters, sums[best].tolist(), strict=True))


def _largest(values: Floats, count: int) -> NDArray[np.int64]:
    """Where so many of the largest are, in no order."""
    return np.argpartition(-values, count - 1)[:count] if len(values) > count else np.arange(len(values))


def _softmax(scores: Sequence[float]) -> Floats:
    if not scores:
        return np.zeros(0)
    powers = np.exp(np.asarray(scores) - max(scores))
    shares: Floats = powers / powers.sum()
    return shares


def _require_rows(answers: Sequence[Any], predictions: Sequence[Any]) -> None:
    if len(answers) != len(predictions):
        raise ValueError(f"there are answers to {len(answers)} questions, but {len(predictions)} predictions")
    if not answers:
        raise ValueError("there are no questions to score")


def _scores(answers: Sequence[Sequence[str]], predictions: Sequence[str], f1: Scorer) -> SpanScores:
    def best(scorer: Scorer) -> Floats:
        rows = zip(answers, predictions, strict=True)
        return np.array([max(scorer(answer, prediction) for answer in several) for several, prediction in rows])

    return SpanScores(exact=best(exact_match), f1=best(f1))


def _means(scores: SpanScores) -> dict[str, float]:
    return {"exact": float(scores.exact.mean()), "f1": float(scores.f1.mean())}


def _with_breakdown(scores: SpanScores, has_answer: NDArray[np.bool_]) -> dict[str, float]:
    found = _means(scores)
    for prefix, rows in (("HasAns", has_answer), ("NoAns", ~has_answer)):
        if rows.any():
            part = _means(SpanScores(scores.exact[rows], scores.f1[rows]))
            found |= {f"{prefix}_{name}": value for name, value in part.items()}
    return found
