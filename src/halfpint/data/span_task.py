"""Tasks that answer a question with a span of a text: SQuAD 1.1 and, where some questions have no answer, 2.0.

What is notable:
- A long text is read in windows, each a sequence of its own, behind the question. An answer is learnt where a window
  holds the whole of it; every other window learns that it has none (its first token is start and end).
- `stride` is how many tokens neighbouring windows share, as `tokenizers` and `transformers` have it. (BERT's own script
  calls by that name how far the window moves.)
- How sure a model must be that there is no answer is fitted on dev, for F1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Problem
from halfpint.data.columns import Columns, require_column
from halfpint.data.encoded import Encoded
from halfpint.data.pieces import Counts, Slices, join, read_frame, read_pieces
from halfpint.data.sources import DataError, Dataset
from halfpint.data.spans import SpanPrediction, SpanScores, best_spans, squad1_scores, squad2_scores
from halfpint.data.task import Array, Judged
from halfpint.data.text_task import texts_of
from halfpint.data.tokenizer import Tokenizer

QUESTIONS, CONTEXTS, ANSWERS = ("question",), ("context", "passage", "paragraph"), ("answers",)
LONGEST_QUESTION = 64
"""Tokens of a question, as in BERT; never more than half of what a sequence holds."""


class Answer(NamedTuple):
    """A text, and where it starts in its context."""

    text: str
    start: int


@dataclass(frozen=True)
class SpanTask:
    """A question and a context, of which the answer is a part."""

    form: ClassVar[str] = "span"
    head: ClassVar[str] = "span"

    columns: Columns
    """The question, the context and the answers."""
    no_answer: bool = False
    """Whether a question may have none."""
    name: str = "span"
    stride: int = 128
    """Tokens of the context that neighbouring windows share; never more than half of a window."""
    longest_answer: int = 30
    """In tokens."""
    threshold: float = 0.0
    """A question with a higher score of no answer is answered by nothing."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def problem(self) -> Problem:
        return "single_label"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("f1", "exact")

    def to_dict(self) -> dict[str, Any]:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SpanTask:
        fields = {**values, "columns": Columns(**values["columns"])}
        fields.pop("form", None)
        return cls(**fields)

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        texts = self._contexts(table)
        questions, of_question = read_pieces(tokenizer, texts_of(table, self.columns.text))
        contexts, of_context = read_pieces(tokenizer, texts, places=True)
        frame = read_frame(tokenizer)
        room = frame.room(max_length, least=2)
        whole = questions.slices(of_question)
        question, context = whole.head(min(LONGEST_QUESTION, room // 2)), contexts.slices(of_context)
        left = room - question.lengths
        row, window = context.windows(left, np.minimum(self.stride, left // 2))
        question_of_window = question.take(row)
        found = replace(
            join(frame, question_of_window, window, tokenizer.size),
            row_starts=np.searchsorted(row, np.arange(table.num_rows + 1)),
            num_truncated=int((question.lengths < whole.lengths).sum()),
        )
        if not labelled:
            return found
        tokens = self._answer_tokens(table, texts, context)[row]
        # From tokens of the context to tokens of the window, and those to tokens of the sequence.
        within = tokens - (window.starts - context.starts[row])[:, None]
        holds = (tokens[:, 0] >= 0) & (within[:, 0] >= 0) & (within[:, 1] < window.lengths)
        ends = np.where(holds[:, None], within + frame.before_second(question_of_window)[:, None], 0)
        return replace(found, per_sequence={"label": ends})

    def _answer_tokens(self, table: pa.Table, texts: Sequence[str], context: Slices) -> Counts:
        """The first and the last token of each row's first answer in its context, -1 where there is none: (R, 2)."""
        assert context.pieces.places is not None
        tokens = np.full((table.num_rows, 2), -1, np.int64)
        for row, answers in enumerate(self.read_answers(table)):
            if answers:
                _require_place(answers[0], texts[row], row)
                places = context.pieces.places[context.starts[row] :][: context.lengths[row]]
                tokens[row] = _tokens_of(places, answers[0])
        return tokens

    def _contexts(self, table: pa.Table) -> list[str]:
        assert self.columns.pair is not None
        return texts_of(table, self.columns.pair)

    def read_answers(self, table: pa.Table) -> list[list[Answer]]:
        """Of every row; none where there is none."""
        assert self.columns.label is not None
        return answers_of(table, self.columns.label)

    def predict(self, table: pa.Table, encoded: Encoded, scores: Array) -> list[SpanPrediction]:
        """The best spans of every row, whether or not it may have an answer."""
        scores = scores.astype(np.float64)
        place, first = encoded.notes["place"], encoded.starts[:-1]
        # The third column is the score of a head of its own that a sequence holds no answer.
        absent = scores[first, 2] if self.no_answer and scores.shape[1] > 2 else None
        found = []
        for row in range(encoded.num_rows):
            windows = encoded.sequences_of(row)
            tokens = [encoded.tokens_of(window) for window in windows]
            found.append(
                best_spans(
                    [scores[each, 0] for each in tokens],
                    [scores[each, 1] for each in tokens],
                    [place[each] for each in tokens],
                    no_answer_scores=None if absent is None else absent[windows.start : windows.stop],
                    max_tokens=self.longest_answer,
                )
            )
        return found

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        predictions = self.predict(table, encoded, scores)
        texts = zip(predictions, self._contexts(table), strict=True)
        judged = self._judged(table, [each.text(context, self._line) for each, context in texts])
        return judged | {"no_answer_score": np.array([each.no_answer_score for each in predictions])}

    @property
    def _line(self) -> float | None:
        return self.threshold if self.no_answer else None

    def _judged(self, table: pa.Table, predictions: Sequence[str]) -> dict[str, Array]:
        answers = self.read_answers(table)
        found = self._scores(answers, predictions)
        return {"exact": found.exact, "f1": found.f1, "has_answer": np.array(list(map(bool, answers)))}

    def _scores(self, answers: Sequence[Sequence[Answer]], predictions: Sequence[str]) -> SpanScores:
        texts = [[answer.text for answer in several] for several in answers]
        return (squad2_scores if self.no_answer else squad1_scores)(texts, predictions)

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array] | None:
        """That no question has an answer."""
        return self._judged(table, [""] * table.num_rows) if self.no_answer else None

    def measure(self, judged: Judged) -> dict[str, float]:
        """Of SQuAD 2.0 also those of the questions that have an answer, and of those that have none."""
        found = {name: float(judged[name].mean()) for name in self.metrics}
        if self.no_answer:
            for prefix, rows in (("HasAns", judged["has_answer"]), ("NoAns", ~judged["has_answer"])):
                if rows.any():
                    found |= {f"{prefix}_{name}": float(judged[name][rows].mean()) for name in self.metrics}
        return found

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> SpanTask:
        """With the threshold that fits these rows (dev's)."""
        if not self.no_answer:
            return self
        predictions = self.predict(table, encoded, scores)
        contexts, answers = self._contexts(table), self.read_answers(table)
        answered = [each.text(context) for each, context in zip(predictions, contexts, strict=True)]
        gains = self._scores(answers, answered).f1 - self._scores(answers, [""] * len(answers)).f1
        return replace(self, threshold=fit_threshold(gains, np.array([each.no_answer_score for each in predictions])))

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """`prediction`, empty where there is no answer, its probability, and its characters in the context."""
        predictions = self.predict(table, encoded, scores)
        texts = [
            each.text(context, self._line) for each, context in zip(predictions, self._contexts(table), strict=True)
        ]
        has_head = self.no_answer and scores.shape[1] > 2
        spans = [each.spans[0] if text else None for each, text in zip(predictions, texts, strict=True)]
        found: dict[str, Any] = {
            "prediction": pa.array(texts, pa.string()),
            "probability": [
                _probability(each, bool(text), has_head) for each, text in zip(predictions, texts, strict=True)
            ],
            "start": pa.array([each.start if each else None for each in spans], pa.int64()),
            "end": pa.array([each.end if each else None for each in spans], pa.int64()),
        }
        found["n_best"] = pa.array(
            [_n_best(each, context) for each, context in zip(predictions, self._contexts(table), strict=True)], N_BEST
        )
        if self.no_answer:
            found["no_answer_score"] = [each.no_answer_score for each in predictions]
        return pa.table(found)


N_BEST = pa.list_(
    pa.struct([("text", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("probability", pa.float64())])
)


def _n_best(prediction: SpanPrediction, context: str) -> list[dict[str, Any]]:
    """The best spans, the best first, whether or not an answer was given."""
    return [
        {"text": span.text(context), "start": span.start, "end": span.end, "probability": span.probability}
        for span in prediction.spans
    ]


def find_span_task(
    dataset: Dataset,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> SpanTask:
    """The task of a data set with questions, contexts and answers: `text` names the questions, `pair` the contexts.

    Whether a question may have no answer is as in train and dev; `squad` and `squad2` say it beforehand.
    """
    names = dataset.tables["train"].column_names
    columns = Columns(
        text=require_column(names, QUESTIONS, "the questions", flag="text", name=text),
        pair=require_column(names, CONTEXTS, "the contexts", flag="pair", name=pair),
        label=require_column(names, ANSWERS, "the answers", flag="label", name=label),
    )
    assert columns.label is not None
    no_answer = task == "squad2"
    for split, table in dataset.tables.items():
        if split.startswith(("train", "dev")) and columns.label in table.column_names:
            answers = answers_of(table, columns.label)
            empty = next((row for row, several in enumerate(answers) if not several), None)
            if empty is not None and task == "squad":
                raise DataError(
                    f"row {empty + 1} of {split} has no answer, which SQuAD 1.1 does not know; name the task squad2"
                )
            no_answer |= empty is not None
    return SpanTask(columns, no_answer, task or "span")


def answers_of(table: pa.Table, column: str) -> list[list[Answer]]:
    """Answers as in SQuAD's files, one object each, or as on the Hub, a list of texts and one of starts."""
    if column not in table.column_names:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(table.column_names)}")
    rows = []
    for row, value in enumerate(table[column].to_pylist()):
        several = value
        if isinstance(value, dict) and isinstance(value.get("text"), list):
            starts = value.get("answer_start") or [None] * len(value["text"])
            several = [
                {"text": text, "answer_start": start} for text, start in zip(value["text"], starts, strict=False)
            ]
        if not isinstance(several, list | None) or not all(_is_answer(each) for each in several or []):
            raise DataError(
                f"row {row + 1} has the {column} {_short(value)}; expected a list of objects with text and "
                "answer_start, empty where there is no answer"
            )
        rows.append([Answer(each["text"], each["answer_start"]) for each in several or []])
    return rows


def _is_answer(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("text"), str) and isinstance(value.get("answer_start"), int)


def _short(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + " …"


def _require_place(answer: Answer, context: str, row: int) -> None:
    there = context[max(answer.start, 0) : max(answer.start, 0) + len(answer.text)]
    if not answer.text.strip() or answer.start < 0 or there != answer.text:
        raise DataError(
            f"row {row + 1} has the answer {_short(answer.text)} at character {answer.start}, where its context says "
            f"{_short(there)}; answer_start counts characters from 0"
        )


def _tokens_of(places: NDArray[np.int32], answer: Answer) -> tuple[int, int]:
    """The first and the last token with characters of the answer; (-1, -1) where no token has any."""
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    end = answer.start + len(answer.text.rstrip())
    visible = np.flatnonzero(places[:, 1] > places[:, 0])
    first = int(np.searchsorted(places[visible, 1], start, side="right"))
    last = int(np.searchsorted(places[visible, 0], end, side="left")) - 1
    return (int(visible[first]), int(visible[last])) if first <= last else (-1, -1)


def fit_threshold(gains: NDArray[np.float64], no_answer_scores: NDArray[np.float64]) -> float:
    """Where to draw the line, if answering a question gains so much over saying that it has no answer.

    Of equally good lines it is the lowest, halfway between two questions. Questions of one score go together.
    """
    order = np.argsort(no_answer_scores, kind="stable")
    scores = no_answer_scores[order]
    totals = np.concatenate([[0.0], np.cumsum(gains[order])])
    # A line between two equal scores is none.
    totals[1:-1][scores[1:] == scores[:-1]] = -np.inf
    best = int(np.argmax(totals > totals.max() - 1e-9))
    below, above = scores[max(best - 1, 0)], scores[min(best, len(scores) - 1)]
    if best == 0:
        return float(above - 1) if np.isfinite(above) else 0.0
    return float((below + above) / 2) if np.isfinite(above) else float(below)


def _probability(prediction: SpanPrediction, answered: bool, has_head: bool) -> float:
    """Of the answer that was given, if only that there is none."""
    if has_head:
        absent = float(np.exp(-np.logaddexp(0.0, -prediction.no_answer_score)))
        return (1 - absent) * prediction.spans[0].probability if answered else absent
    return prediction.spans[0].probability if answered else 1 - sum(each.probability for each in prediction.spans)
