"""Tasks that give each word a tag: named entities (CoNLL), parts of speech.

What is notable:
- Words come apart already. Each but the first is handed on with a space before it, so that a byte-level BPE sees what
  it was trained on; to the other tokenizers a space more is nothing.
- A word's first sub-word carries its tag. What lies behind `max_length` is cut off, and those words are predicted O.
- F1 is over entities, by seqeval's definition, from counts that can be summed over any rows. Where the tags mark
  no entities (parts of speech) it is left out, and the accuracy decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Problem
from halfpint.data.calibration import softmax
from halfpint.data.columns import Columns, require_column
from halfpint.data.encoded import Encoded, encode_sequences
from halfpint.data.sources import DataError, Dataset
from halfpint.data.tagging import IGNORED, OUTSIDE, entities, entity_counts, is_tag, scores_of_counts
from halfpint.data.task import Array, Judged
from halfpint.data.text_task import CHUNK, MOST_CLASSES, sort_labels
from halfpint.data.tokenizer import Tokenizer

WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "labels")
NO_WORD = -1
"""The word of a token that belongs to none."""
ENTITY = pa.struct([("type", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("text", pa.string())])


@dataclass(frozen=True)
class TaggingTask:
    """Words, each with a tag."""

    form: ClassVar[str] = "tagging"
    head: ClassVar[str] = "token"

    columns: Columns
    """The words and the tags."""
    labels: tuple[str, ...]
    """O first, where it is a tag."""
    name: str = "tagging"

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))

    @property
    def problem(self) -> Problem:
        return "single_label"

    @property
    def marks_entities(self) -> bool:
        return OUTSIDE in self.labels and all(map(is_tag, self.labels))

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "precision", "recall", "accuracy") if self.marks_entities else ("accuracy",)

    def to_dict(self) -> dict[str, Any]:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TaggingTask:
        fields = {**values, "columns": Columns(**values["columns"])}
        fields.pop("form", None)
        return cls(**fields)

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        rows = words_of(table, self.columns.text)
        ids: list[list[int]] = []
        segments: list[list[int]] = []
        word: list[int] = []
        cut = 0
        for start in range(0, len(rows), CHUNK):
            done = tokenizer.words([_spaced(words) for words in rows[start : start + CHUNK]], max_length)
            ids += done.ids
            segments += done.segments
            word += [NO_WORD if each is None else each for row in done.words for each in row]
            cut += done.num_truncated
        encoded = encode_sequences(
            ids,
            segments if any(map(any, segments)) else None,
            vocab_size=tokenizer.size,
            notes={"word": np.array(word, dtype=np.int32)},
            num_truncated=cut,
        )
        if not labelled:
            return encoded
        tags, tokens = self.read_labels(table), _first_tokens(encoded)
        labels = np.full(encoded.num_tokens, IGNORED, dtype=np.int32)
        labels[tokens] = np.concatenate(tags)[_words_of_tokens(encoded, tokens, list(map(len, tags)))]
        return replace(encoded, per_token={"label": labels})

    def read_labels(self, table: pa.Table) -> list[NDArray[np.int64]]:
        """The number of each word's tag, row by row."""
        index = {label: number for number, label in enumerate(self.labels)}
        found = []
        for row, tags in enumerate(self.read_tags(table)):
            strange = next((tag for tag in tags if tag not in index), None)
            if strange is not None:
                raise DataError(
                    f"row {row + 1} has the tag {strange!r}, which is not in train; known are "
                    f"{', '.join(self.labels[:10])}{' …' if len(self.labels) > 10 else ''}"
                )
            found.append(np.array([index[tag] for tag in tags], dtype=np.int64))
        return found

    def read_tags(self, table: pa.Table) -> list[list[str]]:
        """Every row's tags, one for each of its words."""
        assert self.columns.label is not None
        return tags_of(table, self.columns.label, words_of(table, self.columns.text))

    def decide(self, rows: Sequence[Sequence[str]], encoded: Encoded, scores: Array) -> list[list[str]]:
        """The tag of every word; O of those without a token."""
        lengths = list(map(len, rows))
        tokens = _first_tokens(encoded)
        chosen = np.zeros(sum(lengths), dtype=np.int64)
        chosen[_words_of_tokens(encoded, tokens, lengths)] = scores[tokens].argmax(axis=1)
        tags = np.array(self.labels, dtype=object)[chosen]
        return [each.tolist() for each in np.split(tags, np.cumsum(lengths)[:-1])]

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        return self._judged(table, self.decide(words_of(table, self.columns.text), encoded, scores))

    def _judged(self, table: pa.Table, predictions: list[list[str]]) -> dict[str, Array]:
        """How many entities and words of each row are right, and of how many."""
        tags = self.read_tags(table)
        pairs = list(zip(tags, predictions, strict=True))
        found = {
            "words_right": np.array([sum(map(str.__eq__, *pair)) for pair in pairs]),
            "words": np.array(list(map(len, tags))),
        }
        if self.marks_entities:
            self.read_labels(table)  # refuses what is no tag
            found |= zip(("right", "predicted", "given"), entity_counts(tags, predictions).T, strict=True)
        return found

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array]:
        """O for every word, or else the commonest tag."""
        counts = np.bincount(np.concatenate(self.read_labels(train)), minlength=len(self.labels))
        answer = OUTSIDE if OUTSIDE in self.labels else self.labels[counts.argmax()]
        return self._judged(table, [[answer] * len(words) for words in words_of(table, self.columns.text)])

    def measure(self, judged: Judged) -> dict[str, float]:
        found = {"accuracy": float(judged["words_right"].sum() / judged["words"].sum())}
        if self.marks_entities:
            scores = scores_of_counts([judged[name].sum() for name in ("right", "predicted", "given")])
            found |= {"f1": scores.f1, "precision": scores.precision, "recall": scores.recall}
        return found

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> TaggingTask:
        return self

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """`prediction`, a tag for each word, `probability` of each (none of a word without a token), and `spans`."""
        rows = words_of(table, self.columns.text)
        tags = self.decide(rows, encoded, scores)
        lengths, tokens = list(map(len, rows)), _first_tokens(encoded)
        sure = np.full(sum(lengths), None, dtype=object)
        sure[_words_of_tokens(encoded, tokens, lengths)] = softmax(scores[tokens]).max(axis=1)
        shares = [each.tolist() for each in np.split(sure, np.cumsum(lengths)[:-1])]
        found = {
            "prediction": pa.array(tags, pa.list_(pa.string())),
            "probability": pa.array(shares, pa.list_(pa.float64())),
        }
        if self.marks_entities:
            spans = [
                [each._asdict() | {"text": " ".join(words[each.start : each.end])} for each in entities(row)]
                for words, row in zip(rows, tags, strict=True)
            ]
            found["spans"] = pa.array(spans, pa.list_(ENTITY))
        return pa.table(found)


def find_tagging_task(
    dataset: Dataset,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> TaggingTask:
    """The task of a data set with words and their tags, in two columns of lists."""
    table = dataset.tables["train"]
    if pair is not None:
        raise DataError(f"tagging reads words and tags, and no second text; leave --pair {pair} out")
    columns = Columns(
        text=require_column(table.column_names, WORDS, "the words", flag="text", name=text),
        label=require_column(table.column_names, TAGS, "the tags", flag="label", name=label),
    )
    assert columns.label is not None
    different = {tag for tags in tags_of(table, columns.label, words_of(table, columns.text)) for tag in tags}
    if len(different) < 2:
        raise DataError(
            f"the column {columns.label} has one tag only ({min(different)}); there is nothing to tell apart"
        )
    if len(different) > MOST_CLASSES:
        raise DataError(
            f"the column {columns.label} has {len(different):,} different tags, at most {MOST_CLASSES:,} can be; "
            "is it the right column? Name another with --label"
        )
    labels = sorted(sort_labels(different), key=lambda tag: tag != OUTSIDE)
    return TaggingTask(columns, tuple(labels), task or "tagging")


def words_of(table: pa.Table, column: str) -> list[list[str]]:
    rows = _lists_of(table, column, "words")
    for row, words in enumerate(rows):
        strange = next((word for word in words if not isinstance(word, str)), "")
        if strange != "":
            raise DataError(f"row {row + 1} has {strange!r} among its {column}, expected words")
        if not words:
            raise DataError(f"row {row + 1} has no {column}; take it out, or write what it says")
    return rows


def tags_of(table: pa.Table, column: str, words: Sequence[Sequence[str]]) -> list[list[str]]:
    """Tags as text, whatever they are; as many as there are words."""
    rows = _lists_of(table, column, "tags")
    for row, (tags, sentence) in enumerate(zip(rows, words, strict=True)):
        if len(tags) != len(sentence):
            raise DataError(f"row {row + 1} has {len(sentence)} words and {len(tags)} {column}; each word needs one")
        if any(tag is None or tag == "" for tag in tags):
            raise DataError(f"row {row + 1} has a word without a tag; every word needs one")
    return [[str(tag) for tag in tags] for tags in rows]


def _lists_of(table: pa.Table, column: str, what: str) -> list[list[Any]]:
    if column not in table.column_names:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(table.column_names)}")
    rows: list[Any] = table[column].to_pylist()
    for row, value in enumerate(rows):
        if not isinstance(value, list):
            raise DataError(
                f"row {row + 1} has the {column} {value!r}, expected a list of {what}; JSONL and Parquet have lists"
            )
    return rows


def _spaced(words: Sequence[str]) -> list[str]:
    return [words[0], *(f" {word}" for word in words[1:])]


def _first_tokens(encoded: Encoded) -> NDArray[np.int64]:
    """Every token that is the first of its word."""
    word = encoded.notes["word"]
    is_first = word != NO_WORD
    is_first[1:] &= word[1:] != word[:-1]
    # Without special tokens between them, the last word of a row and the first of the next may have one number.
    begins = encoded.starts[:-1]
    is_first[begins] = word[begins] != NO_WORD
    return np.flatnonzero(is_first)


def _words_of_tokens(encoded: Encoded, tokens: NDArray[np.int64], lengths: Sequence[int]) -> NDArray[np.int64]:
    """The word of each of these tokens, counted through all rows."""
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.repeat(before, encoded.lengths)[tokens] + encoded.notes["word"][tokens])
