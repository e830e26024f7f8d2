"""Tags of words: the entities they mark and their scores, and how tags travel to sub-words and back.

Entities are read as `seqeval` reads them by default (the script of the CoNLL-2000 task before it): leniently, so that
an I- without its B- starts an entity, and so does a change of type. BIO, IOB2, IOBES and bare B, I, O are read alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

IGNORED = -100
"""The label of a token that is not to be learnt: the same as `halfpint.model.batch.IGNORED`, without torch."""

OUTSIDE = "O"
UNTYPED = "_"
"""The type of the entities of bare tags."""

Counts = NDArray[np.int64]


class Entity(NamedTuple):
    """Words `start` up to, not including, `end`."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class EntityScores:
    """Of all entities, or of those of one type; what would be divided by zero is 0."""

    precision: float
    recall: float
    f1: float
    num_entities: int
    """In the labels, not in the predictions."""


def is_tag(label: str) -> bool:
    """Whether a label can be read as a tag of an entity: O, or B, I, E or S, bare or with a type after a hyphen."""
    return label == OUTSIDE or (label[:1] in ("B", "I", "E", "S") and label[1:2] in ("", "-"))


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one text, in their order."""
    found: list[Entity] = []
    previous_mark, previous_type, start = OUTSIDE, UNTYPED, 0
    for position, tag in enumerate([*tags, OUTSIDE]):
        if not is_tag(tag):
            raise ValueError(f"word {position} is tagged {tag!r}; a tag is O, or B-, I-, E- or S- with a type")
        mark, entity_type = tag[0], tag[2:] or UNTYPED
        goes_on = previous_mark in ("B", "I") and mark in ("I", "E") and entity_type == previous_type
        if not goes_on:
            if previous_mark != OUTSIDE:
                found.append(Entity(previous_type, start, position))
            start = position
        previous_mark, previous_type = mark, entity_type
    return found


def entity_scores(labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> EntityScores:
    """Precision, recall and F1 over all entities; one is right with its type and both ends (micro average)."""
    return scores_of_counts(entity_counts(labels, predictions).sum(axis=0))


def entity_scores_by_type(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, EntityScores]:
    """The same of every type that occurs, be it in the labels or in the predictions, by name."""
    right, predicted, given = Counter[str](), Counter[str](), Counter[str]()
    for expected, found in _entities_of_rows(labels, predictions):
        right.update(entity.type for entity in expected & found)
        predicted.update(entity.type for entity in found)
        given.update(entity.type for entity in expected)
    return {
        name: scores_of_counts([right[name], predicted[name], given[name]])
        for name in sorted(given.keys() | predicted.keys())
    }


def entity_counts(labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> Counts:
    """Of each text, how many entities are right, predicted and given: (texts, 3).

    The F1 of any choice of texts comes from the sum of their rows, by `scores_of_counts`: for a bootstrap.
    """
    rows = [
        (len(expected & found), len(found), len(expected)) for expected, found in _entities_of_rows(labels, predictions)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def scores_of_counts(counts: ArrayLike) -> EntityScores:
    """From how many are right, predicted and given."""
    right, predicted, given = np.asarray(counts).tolist()
    return EntityScores(
        precision=right / predicted if predicted else 0.0,
        recall=right / given if given else 0.0,
        f1=2 * right / (predicted + given) if predicted + given else 0.0,
        num_entities=given,
    )


def align_labels(word_ids: Sequence[int | None], labels: Sequence[int]) -> NDArray[np.int64]:
    """One label a token: that of its word on the word's first sub-word, `IGNORED` on all other tokens.

    `word_ids` say of every token to which word it belongs, None to no word. In a window that starts within a word
    the first sub-word it sees carries the label.
    """
    aligned = np.full(len(word_ids), IGNORED, dtype=np.int64)
    for token, word in _first_tokens(word_ids):
        if word >= len(labels):
            raise ValueError(f"token {token} belongs to word {word}, but there are labels of {len(labels)} words only")
        aligned[token] = labels[word]
    return aligned


def word_labels(
    word_ids: Sequence[int | None], predictions: ArrayLike, num_words: int, missing: int
) -> NDArray[np.int64]:
    """One label a word: what was predicted at its first sub-word; `missing` for words without one (cut off, say)."""
    predicted = np.asarray(predictions)
    if len(predicted) != len(word_ids):
        raise ValueError(f"there are {len(word_ids)} tokens, but predictions for {len(predicted)}")
    labels = np.full(num_words, missing, dtype=np.int64)
    for token, word in _first_tokens(word_ids):
        if word >= num_words:
            raise ValueError(f"token {token} belongs to word {word}, but there are {num_words} words only")
        labels[word] = predicted[token]
    return labels


def _first_tokens(word_ids: Sequence[int | None]) -> Iterable[tuple[int, int]]:
    seen: set[int] = set()
    for token, word in enumerate(word_ids):
        if word is not None and word not in seen:
            seen.add(word)
            yield token, word


def _entities_of_rows(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> Iterable[tuple[set[Entity], set[Entity]]]:
    if len(labels) != len(predictions):
        raise ValueError(f"there are labels of {len(labels)} texts, but predictions for {len(predictions)}")
    for row, (expected, found) in enumerate(zip(labels, predictions, strict=True)):
        if len(expected) != len(found):
            raise ValueError(f"text {row} has {len(expected)} words, but {len(found)} predicted tags")
        yield set(entities(expected)), set(entities(found))
