"""Tasks that teach embeddings: texts that belong together, triplets with negatives, pairs with a score of likeness.

What is notable:
- A row is a text and its partner, and its negatives where it has some, each a sequence of its own.
- Pairs and triplets are learnt against the other rows of a batch, and judged as a search: each first text looks for
  its partner among all second texts and negatives of the split. A text that stands in several rows is one document,
  and another partner of the same first text is no mistake.
- Scores of likeness are learnt as cosines from 0 to 1, and judged by rank, as STS-B is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Problem
from halfpint.data.columns import Columns, find_column, require_column
from halfpint.data.encoded import Encoded, encode_sequences
from halfpint.data.metrics import METRICS
from halfpint.data.sources import DataError, Dataset
from halfpint.data.task import Array, Judged
from halfpint.data.text_task import CHUNK, label_values, numbers, texts_of
from halfpint.data.tokenizer import Tokenized, Tokenizer

FIRSTS = ("anchor", "query", "question", "sentence1", "text")
SECONDS = ("positive", "answer", "passage", "sentence2")
NEGATIVE = "negative"
"""With this begin the names of the columns of negatives."""
SCORES = ("score", "similarity", "label")

RECALLS = (1, 10)
NUMBERS_AT_ONCE = 1 << 22
"""How many cosines are held at a time: 16 MiB."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairTask:
    """What an embedding is to say of two texts."""

    form: ClassVar[str] = "pairs"
    head: ClassVar[str] = "embedding"

    columns: Columns
    """The first text, its partner, and the score where there is one."""
    negatives: tuple[str, ...] = ()
    name: str = "pairs"
    lowest: float = 0.0
    highest: float = 1.0
    """The scores that are learnt as the cosines 0 and 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "negatives", tuple(self.negatives))
        for name in ("lowest", "highest"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def problem(self) -> Problem:
        return "single_label"

    @property
    def is_scored(self) -> bool:
        return self.columns.label is not None

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("spearman", "pearson") if self.is_scored else ("mrr", *(f"recall@{k}" for k in RECALLS))

    def to_dict(self) -> dict[str, Any]:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PairTask:
        fields = {**values, "columns": Columns(**values["columns"])}
        fields.pop("form", None)
        return cls(**fields)

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        """Without labels there are no negatives either: they are there to learn from, and to be mistaken for."""
        names = self._text_columns(labelled)
        ids: list[list[int]] = []
        segments: list[list[int]] = []
        num_cut = 0
        for start in range(0, table.num_rows, CHUNK):
            part = table.slice(start, CHUNK)
            cut: set[int] = set()
            done = []
            for name in names:
                texts = texts_of(part, name, start)
                done.append(tokenizer(texts, max_length))
                cut |= _cut(texts, done[-1], tokenizer, max_length)
            ids += _interleaved([each.ids for each in done])
            segments += _interleaved([each.segments for each in done])
            num_cut += len(cut)
        return encode_sequences(
            ids,
            segments if any(map(any, segments)) else None,
            vocab_size=tokenizer.size,
            row_sequences=np.full(table.num_rows, len(names)),
            per_sequence={"label": np.repeat(self._wanted(table), len(names))} if labelled and self.is_scored else None,
            num_truncated=num_cut,
        )

    def _text_columns(self, with_negatives: bool) -> list[str]:
        assert self.columns.pair is not None
        return [self.columns.text, self.columns.pair, *(self.negatives if with_negatives else ())]

    def read_labels(self, table: pa.Table) -> Floats:
        """The scores, on their own scale."""
        return numbers(label_values(table, self.columns), str(self.columns.label))

    def _wanted(self, table: pa.Table) -> Floats:
        """The cosines that the scores ask for."""
        return np.asarray((self.read_labels(table) - self.lowest) / (self.highest - self.lowest))

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        if self.is_scored:
            return {"label": self.read_labels(table), "prediction": self.similarities(encoded, scores)}
        return {"rank": self.ranks(table, encoded, scores)}

    def similarities(self, encoded: Encoded, vectors: Array) -> Floats:
        """The cosine of the first two texts of each row."""
        vectors, first = _at_length_one(vectors), encoded.row_starts[:-1]
        return np.asarray(np.einsum("rd,rd->r", vectors[first], vectors[first + 1], dtype=np.float64))

    def ranks(self, table: pa.Table, encoded: Encoded, vectors: Array) -> NDArray[np.int64]:
        """From 1, at which place each row's first text finds its partner."""
        num_texts = encoded.num_sequences // encoded.num_rows
        queries, *others = (texts_of(table, name) for name in self._text_columns(True)[:num_texts])
        documents: dict[str, int] = {}
        number = np.array(
            [documents.setdefault(text, len(documents)) for row in zip(*others, strict=True) for text in row]
        )
        # Of the sequences of one document any will do.
        is_first = np.isin(np.arange(encoded.num_sequences), encoded.row_starts[:-1])
        vector_of = np.empty((len(documents), vectors.shape[1]), np.float32)
        vector_of[number] = _at_length_one(vectors[~is_first])
        own = number[:: num_texts - 1]
        # The text itself and its other partners are neither right nor wrong.
        passed_over: dict[str, set[int]] = {}
        for text, partner in zip(queries, own.tolist(), strict=True):
            passed_over.setdefault(text, {documents[text]} if text in documents else set()).add(partner)
        return _ranks(_at_length_one(vectors[is_first]), vector_of, own, [passed_over[text] for text in queries])

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array] | None:
        """The mean score; a search has no such answer."""
        if not self.is_scored:
            return None
        labels = self.read_labels(table)
        return {"label": labels, "prediction": np.full(len(labels), self.read_labels(train).mean())}

    def measure(self, judged: Judged) -> dict[str, float]:
        if self.is_scored:
            return {name: METRICS[name].score(judged["label"], judged["prediction"]) for name in self.metrics}
        ranks = judged["rank"]
        found = {"mrr": float(np.mean(1 / ranks))}
        return found | {f"recall@{k}": float(np.mean(ranks <= k)) for k in RECALLS}

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> PairTask:
        return self

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """`similarity`, the cosine of the two texts."""
        return pa.table({"similarity": self.similarities(encoded, scores)})


def find_pair_task(
    dataset: Dataset,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> PairTask:
    """The task of a data set of pairs: `pairs`, `triplets` or `similarity` as named, else by the columns."""
    table = dataset.tables["train"]
    names = table.column_names
    first = require_column(names, FIRSTS, "the first texts", flag="text", name=text)
    second = require_column(names, SECONDS, "their partners", flag="pair", name=pair)
    if first == second:
        raise DataError(f"--text and --pair both name the column {first!r}; name two different ones")
    negatives = tuple(name for name in names if name.casefold().startswith(NEGATIVE) and name not in (first, second))
    if task is None:
        scored = label is not None or find_column(names, SCORES) is not None
        task = "triplets" if negatives else "similarity" if scored else "pairs"
    if task == "similarity":
        score = require_column(names, SCORES, "the scores", flag="label", name=label)
        return _scored(PairTask(Columns(first, second, score), name=task), table)
    if label is not None:
        raise DataError(f"{task} have no label; leave --label {label} out, or name the task similarity")
    if task == "triplets" and not negatives:
        raise DataError(
            f"triplets need a column of negatives, and none begins with {NEGATIVE}; rename it, or name the task pairs; "
            f"the columns are {', '.join(names)}"
        )
    return PairTask(Columns(first, second), negatives if task == "triplets" else (), task)


def _scored(task: PairTask, train: pa.Table) -> PairTask:
    """With the scale of the scores: from 0 to 1 where they lie there, else from the lowest to the highest of train."""
    scores = task.read_labels(train)
    lowest, highest = float(scores.min()), float(scores.max())
    if lowest == highest:
        raise DataError(f"the column {task.columns.label} has one score only ({lowest:g}); there is nothing to learn")
    within = lowest >= 0 and highest <= 1
    return task if within else replace(task, lowest=lowest, highest=highest)


def _interleaved(columns: Sequence[Sequence[list[int]]]) -> list[list[int]]:
    """Row by row, what stands there in each column."""
    return [each for row in zip(*columns, strict=True) for each in row]


def _cut(texts: Sequence[str], done: Tokenized, tokenizer: Tokenizer, max_length: int) -> set[int]:
    """Which of the texts lost tokens."""
    full = [row for row, ids in enumerate(done.ids) if len(ids) == max_length]
    if len(full) == done.num_truncated:
        return set(full)
    # Some just fit.
    whole = tokenizer.backend.encode_batch_fast([texts[row] for row in full])
    return {row for row, encoding in zip(full, whole, strict=True) if len(encoding) > max_length}


def _ranks(queries: Array, documents: Array, own: Array, passed_over: Sequence[set[int]]) -> NDArray[np.int64]:
    """The place of each query's own document, of equal ones the lower first; others may be passed over."""
    number = np.arange(len(documents))
    found = np.empty(len(queries), np.int64)
    step = max(1, NUMBERS_AT_ONCE // len(documents))
    for start in range(0, len(queries), step):
        mine = own[start : start + step, None]
        likeness = queries[start : start + step] @ documents.T
        likeness_of_own = np.take_along_axis(likeness, mine, axis=1)
        # Told by what is behind, so that a vector of NaN finds its own last.
        ahead = ~((likeness < likeness_of_own) | ((likeness == likeness_of_own) & (number > mine)))
        for row, several in enumerate(passed_over[start : start + step]):
            ahead[row, list(several)] = False
        found[start : start + step] = 1 + ahead.sum(axis=1)
    return found


def _at_length_one(vectors: Array) -> NDArray[np.float32]:
    lengths = np.sqrt(np.einsum("sd,sd->s", vectors, vectors, dtype=np.float64))[:, None]
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
