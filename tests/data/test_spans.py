"""SQuAD's evaluation by its definition, and the best spans against a search through all of them."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.spans import (
    SpanPrediction,
    best_spans,
    exact_match,
    normalize_answer,
    squad1_metrics,
    squad1_scores,
    squad2_metrics,
    squad2_scores,
    token_f1,
    token_f1_or_empty,
)

WORDS = st.lists(st.sampled_from(["red", "The", "a", "fox,", "An", "fox", "...", "U.S.", "Theta", "9"]), max_size=5)
TEXTS = WORDS.map(" ".join)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Red\tFox", "red fox"),
        ("a-b", "ab"),  # the hyphen goes first, so no article is left
        ("a - b", "b"),
        ("theatre of an era", "theatre of era"),
        ("U.S.A.", "usa"),
        ("A.", ""),  # an article, once its full stop is gone
        ("the a an", ""),
        ("“quoted” – €5", "“quoted” – €5"),  # punctuation of ASCII only
        ("it's O'Neill", "its oneill"),
        ("Ünder the Éclair", "ünder éclair"),
        ("the\u00a0end", "end"),
        ("", ""),
        (string.punctuation, ""),
        ("the_end", "theend"),  # an underscore is punctuation, so again no article is left
    ],
)
def test_normalisation(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("answer", "prediction", "exact", "f1"),
    [
        ("the red fox", "Red fox!", 1, 1),
        ("red fox", "fox red", 0, 1),
        ("red fox", "red", 0, 2 / 3),
        ("red red fox", "red", 0, 1 / 2),
        ("red", "red red", 0, 2 / 3),
        ("red", "blue", 0, 0),
        ("1,000", "1000", 1, 1),
        ("twenty-five", "twenty five", 0, 0),
    ],
)
def test_one_answer(answer: str, prediction: str, exact: float, f1: float) -> None:
    assert exact_match(answer, prediction) == exact
    assert token_f1(answer, prediction) == token_f1_or_empty(answer, prediction) == pytest.approx(f1)


@given(TEXTS, TEXTS)
def test_f1_is_symmetric_and_one_only_for_the_same_words(answer: str, prediction: str) -> None:
    score = token_f1_or_empty(answer, prediction)
    assert score == pytest.approx(token_f1_or_empty(prediction, answer))
    same_words = sorted(normalize_answer(answer).split()) == sorted(normalize_answer(prediction).split())
    assert (score == 1) == same_words
    assert 0 <= token_f1(answer, prediction) <= score <= 1


def test_the_best_answer_counts_for_each_score_alone() -> None:
    scores = squad1_scores([["red fox", "a quick red fox"]], ["quick red"])
    assert scores.exact.tolist() == [0]
    assert scores.f1.tolist() == pytest.approx([2 * 1 * (2 / 3) / (1 + 2 / 3)])


def test_words_that_normalise_to_nothing() -> None:
    # In 1.1 an empty prediction matches exactly but shares no word; in 2.0 it says that there is no answer.
    assert squad1_metrics([["The"]], ["..."]) == {"exact": 1, "f1": 0}
    assert squad2_metrics([["The"]], ["..."]) == {"exact": 1, "f1": 1, "HasAns_exact": 1, "HasAns_f1": 1}
    # An answer that leaves no word is not an answer as long as there is another.
    scores = squad2_scores([["The", "fox"], ["The", "fox"]], ["", "fox"])
    assert scores.exact.tolist() == scores.f1.tolist() == [0, 1]


def test_questions_without_an_answer() -> None:
    answers: list[list[str]] = [[], [], ["fox"], ["fox"]]
    metrics = squad2_metrics(answers, ["", "fox", "", "the fox"])
    assert metrics["NoAns_exact"] == metrics["NoAns_f1"] == 0.5
    assert metrics["HasAns_exact"] == metrics["HasAns_f1"] == 0.5
    assert metrics["exact"] == metrics["f1"] == 0.5


def test_a_breakdown_has_no_empty_half() -> None:
    assert "NoAns_f1" not in squad2_metrics([["fox"]], ["fox"])
    assert "HasAns_f1" not in squad2_metrics([[]], ["fox"])


@pytest.mark.parametrize("constant", ["", "the", "fox"])
def test_constant_predictions(constant: str) -> None:
    answers: list[list[str]] = [[], ["fox"], ["red fox"], []]
    expected = {"": [1, 0, 0, 1], "the": [1, 0, 0, 1], "fox": [0, 1, 0, 0]}
    assert squad2_scores(answers, [constant] * 4).exact.tolist() == expected[constant]


def test_a_threshold_unanswers_what_is_above_it() -> None:
    answers: list[list[str]] = [["fox"], ["fox"], [], []]
    scores = [0.1, 0.9, 0.5, 0.6]
    metrics = squad2_metrics(answers, ["fox"] * 4, scores, threshold=0.5)
    assert metrics["HasAns_exact"] == 0.5
    assert metrics["NoAns_exact"] == 0.5  # 0.5 itself is not above
    # The official rule asks for a text that says nothing whether the question has an answer, not what it says.
    assert squad2_metrics([["The"]], ["fox"], [0.9], threshold=0.5)["exact"] == 0


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[list[str]], list[str], list[float]]:
    count = draw(st.integers(1, 8))
    one = st.sampled_from(["fox", "red fox", "quick red fox"])
    answers = draw(st.lists(st.lists(one, max_size=2), min_size=count, max_size=count))
    predictions = draw(st.lists(one | st.just(""), min_size=count, max_size=count))
    scores = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count, unique=True))
    return answers, predictions, [score / 8 for score in scores]


@given(questions())
def test_the_best_threshold_is_the_best_of_all(drawn: tuple[list[list[str]], list[str], list[float]]) -> None:
    answers, predictions, absent = drawn
    metrics = squad2_metrics(answers, predictions, absent)
    tried = {it: squad2_metrics(answers, predictions, absent, threshold=it) for it in (0.0, *absent)}
    for name in ("exact", "f1"):
        assert metrics[f"best_{name}"] == pytest.approx(max(each[name] for each in tried.values()))
        best = metrics[f"best_{name}_thresh"]
        assert tried[best][name] == pytest.approx(metrics[f"best_{name}"])
        lower = [each[name] for threshold, each in tried.items() if threshold < best]
        assert all(value < metrics[f"best_{name}"] + 1e-12 for value in lower)


def test_equal_scores_are_searched_in_the_order_of_the_questions() -> None:
    # Official: after the first question both halves are right, although no threshold divides the two.
    metrics = squad2_metrics([["fox"], []], ["fox", "fox"], [0.5, 0.5])
    assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (1, 0.5)
    metrics = squad2_metrics([[], ["fox"]], ["fox", "fox"], [0.5, 0.5])
    assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (0.5, 0)


@pytest.mark.parametrize(
    ("answers", "predictions", "more", "message"),
    [
        ([["fox"]], [], {}, "1 questions, but 0 predictions"),
        ([], [], {}, "no questions"),
        ([["fox"]], ["fox"], {"threshold": 0.5}, "needs the no_answer_scores"),
        ([["fox"]], ["fox"], {"no_answer_scores": [0.5, 0.5]}, "must be 1 numbers"),
        ([["fox"]], ["fox"], {"no_answer_scores": [float("nan")]}, "without NaN"),
    ],
)
def test_bad_input_is_refused(answers: list[list[str]], predictions: list[str], more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        squad2_metrics(answers, predictions, **more)


def test_squad_1_wants_an_answer_to_every_question() -> None:
    with pytest.raises(ValueError, match="question 1 has no answer"):
        squad1_scores([["fox"], []], ["fox", ""])


CONTEXT = "one two three four five six"
TOKENS = [(0, 3), (4, 7), (8, 13), (14, 18), (19, 23), (24, 27)]
OUTSIDE = (-1, -1)


def window(first: int, last: int) -> list[tuple[int, int]]:
    """A first token, two of the question and a separator, then these tokens of the context, and a separator."""
    return [OUTSIDE] * 4 + TOKENS[first:last] + [OUTSIDE]


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[np.ndarray], list[np.ndarray], list[list[tuple[int, int]]]]:
    bounds = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3))
    every = [window(min(pair), max(pair)) for pair in bounds]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # A million steps: no two sums are equal, and all are exact.
    starts, ends = ([rng.integers(-(10**6), 10**6, len(one)) / 2**10 for one in every] for _ in range(2))
    return starts, ends, every


def search_all(
    starts: list[np.ndarray], ends: list[np.ndarray], every: list[list[tuple[int, int]]], max_tokens: int
) -> list[tuple[int, int, float]]:
    found: dict[tuple[int, int], float] = {}
    for start, end, one in zip(starts, ends, every, strict=True):
        for i in range(len(one)):
            for j in range(i, min(i + max_tokens, len(one))):
                if OUTSIDE not in (one[i], one[j]):
                    span = one[i][0], one[j][1]
                    found[span] = max(found.get(span, -np.inf), start[i] + end[j])
    return sorted(((*span, score) for span, score in found.items()), key=lambda it: -it[2])


@given(windows(), st.integers(1, 7), st.integers(1, 25))
def test_best_spans_are_the_best_of_all(drawn: tuple, max_tokens: int, n_best: int) -> None:
    starts, ends, every = drawn
    prediction = best_spans(starts, ends, every, max_tokens=max_tokens, n_best=n_best)
    expected = search_all(starts, ends, every, max_tokens)[:n_best]
    assert [(it.start, it.end, it.score) for it in prediction.spans] == expected
    first_token = min(start[0] + end[0] for start, end in zip(starts, ends, strict=True))
    if expected:
        assert prediction.no_answer_score == first_token - expected[0][2]
        powers = np.exp(np.array([*(it[2] for it in expected), first_token]) - max(expected[0][2], first_token))
        assert [it.probability for it in prediction.spans] == pytest.approx((powers / powers.sum())[:-1].tolist())


def predict(scores: dict[tuple[int, int], float], first: float = 0.0) -> SpanPrediction:
    """One window over the whole context: scores of starts (0) and ends (1) by token."""
    every = np.full((2, 11), -10.0)
    every[:, 0] = first
    for (side, token), score in scores.items():
        every[side, 4 + token] = score
    return best_spans([every[0]], [every[1]], [window(0, 6)])


def test_the_text_is_a_slice_of_the_context() -> None:
    assert predict({(0, 1): 5, (1, 3): 5}).text(CONTEXT) == "two three four"


def test_an_end_before_its_start_is_no_span() -> None:
    assert predict({(0, 3): 5, (1, 1): 4}).text(CONTEXT).startswith("four")


def test_a_threshold_makes_the_answer_empty() -> None:
    prediction = predict({(0, 1): 2, (1, 1): 2}, first=3)
    assert prediction.no_answer_score == 2
    assert prediction.text(CONTEXT) == prediction.text(CONTEXT, threshold=2) == "two"
    assert prediction.text(CONTEXT, threshold=1.9) == ""


def test_every_window_must_see_no_answer() -> None:
    windows = [window(0, 3), window(3, 6)]
    starts = [np.zeros(8), np.zeros(8)]
    starts[0][0] = 9
    assert best_spans(starts, starts, windows).no_answer_score == 0
    own = best_spans(starts, starts, windows, no_answer_scores=[2.5, -1.0])
    assert own.no_answer_score == -1
    assert sum(span.probability for span in own.spans) == pytest.approx(1)


def test_the_question_holds_no_answer() -> None:
    scores = np.zeros(5)
    prediction = best_spans([scores], [scores], [window(0, 0)])
    assert prediction.spans == ()
    assert prediction.text(CONTEXT) == ""


def test_pieces_of_one_character_are_one_span() -> None:
    prediction = best_spans([[0, 1, 2]], [[0, 1, 2]], [[OUTSIDE, (0, 1), (0, 1)]])
    assert [(it.start, it.end, it.score) for it in prediction.spans] == [(0, 1, 4)]


def test_a_token_of_no_characters_is_no_answer() -> None:
    assert best_spans([[0, 1]], [[0, 1]], [[OUTSIDE, (3, 3)]]).spans == ()


@pytest.mark.parametrize(
    ("starts", "ends", "offsets", "more", "message"),
    [
        ([], [], [], {}, "needs all three"),
        ([[1.0]], [[1.0, 2.0]], [[OUTSIDE]], {}, "one of each for every token"),
        ([[float("nan")]], [[1.0]], [[OUTSIDE]], {}, "NaN"),
        ([[1.0]], [[1.0]], [[OUTSIDE]], {"max_tokens": 0}, "at least 1"),
        ([[1.0]], [[1.0]], [[OUTSIDE]], {"no_answer_scores": [1, 2]}, "1 windows need"),
    ],
)
def test_bad_windows_are_refused(starts: list, ends: list, offsets: list, more: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_spans(starts, ends, offsets, **more)
