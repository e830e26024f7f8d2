"""Entities and their scores against seqeval, and tags on sub-words and back."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.tagging import (
    IGNORED,
    Entity,
    EntityScores,
    align_labels,
    entities,
    entity_counts,
    entity_scores,
    entity_scores_by_type,
    is_tag,
    scores_of_counts,
    word_labels,
)

# All marks, types one of which holds a hyphen, an empty type, and bare marks.
TAG = st.just("O") | st.tuples(st.sampled_from("BIES"), st.sampled_from(["-PER", "-LOC", "-A-B", "-", ""])).map("".join)
BIO = st.just("O") | st.tuples(st.sampled_from("BI"), st.sampled_from(["-PER", "-LOC"])).map("".join)


@st.composite
def tagged(draw: st.DrawFn, tag: st.SearchStrategy[str]) -> tuple[list[list[str]], list[list[str]]]:
    lengths = draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))
    every = [[draw(st.lists(tag, min_size=length, max_size=length)) for length in lengths] for _ in range(2)]
    return every[0], every[1]


@given(st.lists(TAG, max_size=12))
def test_entities_equal_seqeval(tags: list[str]) -> None:
    reference = pytest.importorskip("seqeval.metrics.sequence_labeling")
    expected = [(name, first, last + 1) for name, first, last in reference.get_entities(tags)]
    assert entities(tags) == expected


@given(tagged(TAG) | tagged(BIO))
def test_scores_equal_seqeval(drawn: tuple[list[list[str]], list[list[str]]]) -> None:
    reference = pytest.importorskip("seqeval.metrics.sequence_labeling")
    labels, predictions = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of division by zero
        micro = reference.precision_recall_fscore_support(labels, predictions, average="micro")
        each = np.transpose(reference.precision_recall_fscore_support(labels, predictions, average=None))
    ours = entity_scores(labels, predictions)
    assert (ours.precision, ours.recall, ours.f1, ours.num_entities) == pytest.approx(micro)
    by_type = entity_scores_by_type(labels, predictions)
    assert list(by_type) == sorted(by_type)
    assert len(by_type) == len(each)
    for found, expected in zip(by_type.values(), each, strict=True):
        assert (found.precision, found.recall, found.f1, found.num_entities) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER I-PER", [("PER", 0, 2)]),
        ("O I-LOC O", [("LOC", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-A-B I-A-B I-A", [("A-B", 0, 2), ("A", 2, 3)]),
        ("S-PER E-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 4)]),
        ("B I O", [("_", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == [Entity(*each) for each in expected]


def test_an_entity_is_right_as_a_whole() -> None:
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predictions = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "O"]]
    # One of three predicted is right, of three.
    assert entity_scores(labels, predictions) == EntityScores(1 / 3, 1 / 3, 1 / 3, 3)
    assert entity_scores_by_type(labels, predictions) == {
        "LOC": EntityScores(1, 1 / 2, 2 / 3, 2),
        "PER": EntityScores(0, 0, 0, 1),
    }


def test_texts_do_not_touch() -> None:
    assert entity_counts([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]]).tolist() == [[1, 1, 1], [1, 1, 1]]


@given(tagged(BIO))
def test_counts_sum_to_the_scores(drawn: tuple[list[list[str]], list[list[str]]]) -> None:
    assert scores_of_counts(entity_counts(*drawn).sum(axis=0)) == entity_scores(*drawn)


def test_nothing_to_find_scores_zero() -> None:
    assert entity_scores([["O"]], [["O"]]) == EntityScores(0, 0, 0, 0)
    assert entity_scores([], []) == EntityScores(0, 0, 0, 0)


@pytest.mark.parametrize("label", ["NOUN", "BER", "X-PER", "o", "", "O-PER", "Sports", "b-PER"])
def test_a_class_is_no_tag(label: str) -> None:
    assert not is_tag(label)
    with pytest.raises(ValueError, match="word 1 is tagged"):
        entities(["O", label])


def test_labels_and_predictions_must_match() -> None:
    with pytest.raises(ValueError, match="1 texts, but predictions for 2"):
        entity_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="text 1 has 2 words, but 1"):
        entity_scores([["O"], ["O", "O"]], [["O"], ["O"]])


def test_ignored_is_the_models() -> None:
    from halfpint.model import batch

    assert batch.IGNORED == IGNORED


def test_the_first_sub_word_carries_the_label() -> None:
    word_ids = [None, 0, 0, 1, 2, 2, None]
    assert align_labels(word_ids, [5, 6, 7]).tolist() == [IGNORED, 5, IGNORED, 6, 7, IGNORED, IGNORED]


def test_a_word_without_a_token_gets_the_missing_label() -> None:
    # Word 1 left no token behind, words 3 and 4 were cut off.
    assert word_labels([None, 0, 0, 2, None], [9, 1, 2, 3, 9], num_words=5, missing=0).tolist() == [1, 0, 3, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), max_size=10))
def test_labels_come_back_from_their_tokens(words: list[tuple[int, int]]) -> None:
    word_ids = [None, *(word for word, (_, pieces) in enumerate(words) for _ in range(pieces)), None]
    labels = [label for label, _ in words]
    assert word_labels(word_ids, align_labels(word_ids, labels), len(words), missing=-1).tolist() == labels


def test_words_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="token 1 belongs to word 3"):
        align_labels([None, 3], [0, 1])
    with pytest.raises(ValueError, match="token 0 belongs to word 3"):
        word_labels([3], [0], num_words=2, missing=0)
    with pytest.raises(ValueError, match="1 tokens, but predictions for 2"):
        word_labels([0], [0, 1], num_words=2, missing=0)
