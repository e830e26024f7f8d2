"""Tasks that choose among options: RACE, and any rows of a text, a question and a list of options.

A row is one sequence for each option: the article, then the question with the option. As in the RACE runs of XLNet and
ALBERT the option takes the place of the question's blank (`_`, and a run of them is one blank) or, where there is
none, stands behind the question. What is too long loses the end of its article. Only where question and option have
more than 128 tokens (or half of the sequence) they are cut, too, from their start, so that the option stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from halfpint.config import Problem
from halfpint.data.calibration import expected_calibration_error, softmax
from halfpint.data.columns import Columns, find_column, require_column
from halfpint.data.encoded import Encoded
from halfpint.data.metrics import accuracy
from halfpint.data.pieces import Counts, join, read_frame, read_pieces
from halfpint.data.sources import DataError, Dataset
from halfpint.data.task import Array, Judged
from halfpint.data.text_task import label_values, texts_of
from halfpint.data.tokenizer import Tokenizer

ARTICLES, QUESTIONS = ("article", "context", "passage", "text"), ("question",)
OPTIONS, ANSWERS, LEVELS = ("options", "choices"), ("answer", "label"), ("level",)
LONGEST_QUESTION = 128
"""Tokens of a question with an option that the article makes room for, or half of what a sequence holds."""
MOST_LEVELS = 10
"""A column of more different values is something else."""

BLANK = re.compile("_+")


@dataclass(frozen=True)
class ChoiceTask:
    """An article, a question, and options of which one is right."""

    form: ClassVar[str] = "choice"
    head: ClassVar[str] = "choice"

    columns: Columns
    """The article, the question and the answer."""
    options: str = "options"
    """The column of the options."""
    level: str | None = None
    """The column by which the accuracy is broken down, as `middle` and `high` of RACE."""
    name: str = "choice"

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def problem(self) -> Problem:
        return "single_label"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("accuracy",)

    def to_dict(self) -> dict[str, Any]:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChoiceTask:
        fields = {**values, "columns": Columns(**values["columns"])}
        fields.pop("form", None)
        return cls(**fields)

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        assert self.columns.pair is not None
        options = options_of(table, self.options)
        asked = zip(texts_of(table, self.columns.pair), options, strict=True)
        filled = [fill_in(question, option) for question, several in asked for option in several]
        articles, of_article = read_pieces(tokenizer, texts_of(table, self.columns.text))
        questions, of_question = read_pieces(tokenizer, filled)
        frame = read_frame(tokenizer)
        room = frame.room(max_length, least=2)
        counts = np.array(list(map(len, options)), dtype=np.int64)
        row = np.repeat(np.arange(len(options)), counts)
        article, question = articles.slices(of_article[row]), questions.slices(of_question)
        kept_question = question.tail(np.maximum(min(LONGEST_QUESTION, room // 2), room - article.lengths))
        kept_article = article.head(room - kept_question.lengths)
        cut = (kept_question.lengths < question.lengths) | (kept_article.lengths < article.lengths)
        return replace(
            join(frame, kept_article, kept_question, tokenizer.size),
            row_starts=np.concatenate([[0], np.cumsum(counts)]),
            per_sequence={"label": self.read_labels(table)[row]} if labelled else {},
            num_truncated=len(np.unique(row[cut])),
        )

    def read_labels(self, table: pa.Table) -> Counts:
        """The number of the right option of each row, from 0."""
        answers = label_values(table, self.columns)
        return np.array(answers_of(answers, options_of(table, self.options), str(self.columns.label)), dtype=np.int64)

    def decide(self, encoded: Encoded, scores: Array) -> Counts:
        """The number of the option with the highest score."""
        return np.array([each.argmax() for each in _by_row(encoded, scores)], dtype=np.int64)

    def probabilities(self, encoded: Encoded, scores: Array) -> list[Array]:
        """Of the options of each row."""
        return [softmax(each) for each in _by_row(encoded, scores)]

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        sure = np.array([each.max() for each in self.probabilities(encoded, scores)])
        return self._judged(table, self.decide(encoded, scores)) | {"probability": sure}

    def _judged(self, table: pa.Table, predictions: Counts) -> dict[str, Array]:
        found: dict[str, Array] = {"label": self.read_labels(table), "prediction": predictions}
        if self.level in table.column_names:
            found["level"] = np.array(list(map(str, table[self.level].to_pylist())))
        return found

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array]:
        """The place in the list that is right most often, or the last one where a list is shorter."""
        commonest = np.bincount(self.read_labels(train)).argmax()
        last = [len(several) - 1 for several in options_of(table, self.options)]
        return self._judged(table, np.minimum(commonest, np.array(last, dtype=np.int64)))

    def measure(self, judged: Judged) -> dict[str, float]:
        labels, predictions = judged["label"], judged["prediction"]
        found = {"accuracy": accuracy(labels, predictions)}
        if "level" in judged:
            for level in np.unique(judged["level"]).tolist():
                rows = judged["level"] == level
                found[f"accuracy_{level}"] = accuracy(labels[rows], predictions[rows])
        if "probability" in judged:
            found["calibration_error"] = expected_calibration_error(judged["probability"], labels == predictions)
        return found

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> ChoiceTask:
        return self

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """`prediction`, the option's text, its `index` from 0, and the `probabilities` of all options."""
        chosen = self.decide(encoded, scores)
        options = options_of(table, self.options)
        return pa.table(
            {
                "prediction": [several[index] for several, index in zip(options, chosen, strict=True)],
                "index": chosen,
                "probabilities": [each.tolist() for each in self.probabilities(encoded, scores)],
            }
        )


def find_choice_task(
    dataset: Dataset,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> ChoiceTask:
    """The task of a data set with articles, questions and options: `text` names the articles, `pair` the questions."""
    table = dataset.tables["train"]
    names = table.column_names
    columns = Columns(
        text=require_column(names, ARTICLES, "the articles", flag="text", name=text),
        pair=require_column(names, QUESTIONS, "the questions", flag="pair", name=pair),
        label=require_column(names, ANSWERS, "the answers", flag="label", name=label),
    )
    options = require_column(names, OPTIONS, "the options")
    level = find_column(names, LEVELS)
    if level is not None and len(set(map(str, table[level].to_pylist()))) > MOST_LEVELS:
        level = None
    found = ChoiceTask(columns, options, level, task or "choice")
    found.read_labels(table)  # refused here, with its row, rather than in training
    return found


def _by_row(encoded: Encoded, scores: Array) -> list[Array]:
    return np.split(scores, encoded.row_starts[1:-1])


def fill_in(question: str, option: str) -> str:
    """The option in place of the question's blanks, or behind the question."""
    filled, num_blanks = BLANK.subn(lambda _: option, question)
    return filled if num_blanks else f"{question} {option}"


def options_of(table: pa.Table, column: str) -> list[list[str]]:
    if column not in table.column_names:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(table.column_names)}")
    rows: list[Any] = table[column].to_pylist()
    for row, several in enumerate(rows):
        if not isinstance(several, list) or not all(isinstance(option, str) for option in several):
            raise DataError(
                f"row {row + 1} has the {column} {several!r}, expected a list of texts; JSONL and Parquet have lists"
            )
        if len(several) < 2:
            raise DataError(f"row {row + 1} has {len(several)} {column}; there is nothing to choose")
        if not all(option.strip() for option in several):
            raise DataError(f"row {row + 1} has an empty text among its {column}; take it out, or write what it says")
    return rows


def answers_of(answers: Sequence[Any], options: Sequence[Sequence[str]], column: str) -> list[int]:
    """Numbers of options, from answers that all are one of: numbers, letters, texts of options, numbers as text."""
    rows = list(zip(answers, options, strict=True))
    if all(isinstance(answer, int) for answer in answers):
        found = [answer if 0 <= answer < len(several) else None for answer, several in rows]
    else:
        readings = ([read(str(answer), several) for answer, several in rows] for read in (_letter, _text, _digits))
        # If none fits all rows, the one that gets furthest tells best what is wrong.
        found = max(readings, key=lambda reading: next((i for i, it in enumerate(reading) if it is None), len(reading)))
    wrong = next((row for row, index in enumerate(found) if index is None), None)
    if wrong is not None:
        most = len(options[wrong])
        raise DataError(
            f"row {wrong + 1} has the {column} {answers[wrong]!r}; expected the number of an option (0 to {most - 1}), "
            f"its letter (A to {chr(ord('A') + most - 1)}) or its text, the same kind in all rows"
        )
    return [index for index in found if index is not None]


def _letter(answer: str, options: Sequence[str]) -> int | None:
    place = ord(answer) - ord("A") if len(answer) == 1 else -1
    return place if 0 <= place < len(options) else None


def _text(answer: str, options: Sequence[str]) -> int | None:
    return options.index(answer) if answer in options else None


def _digits(answer: str, options: Sequence[str]) -> int | None:
    return int(answer) if answer.isdecimal() and int(answer) < len(options) else None
