"""Tasks that give a text, or a pair of texts, one answer: a class, several labels, or a number.

A task is a small spec: which columns, what the labels are called, how it is scored. It is found in the data, or named
(`BUILT_IN`: GLUE's tasks by the columns of their release). What it knows goes into `halfpint.json`, so that a model
can be asked and judged without being told again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Problem
from halfpint.data.calibration import (
    DEFAULT_THRESHOLD,
    abstention_threshold,
    expected_calibration_error,
    fit_temperature,
    fit_temperature_multi_label,
    fit_thresholds,
    softmax,
)
from halfpint.data.columns import Columns, find_columns
from halfpint.data.encoded import Encoded, encode_sequences
from halfpint.data.metrics import GLUE_METRICS, METRICS
from halfpint.data.sources import DataError, Dataset
from halfpint.data.task import Array, Judged
from halfpint.data.tokenizer import Tokenizer

DEFAULT_METRICS: dict[Problem, tuple[str, ...]] = {
    "single_label": ("accuracy", "f1_macro"),
    "multi_label": ("multi_label_f1_micro", "multi_label_f1_macro"),
    "regression": ("spearman", "pearson", "mean_squared_error"),
}
MOST_CLASSES = 1000
"""A label column of more different values is taken for a mistake."""
WHOLE = re.compile(r"-?\d{1,18}")
CHUNK = 10_000
"""Texts that are tokenized together, which bounds the memory."""


@dataclass(frozen=True)
class BuiltIn:
    """The columns and metrics of a known data set."""

    text: str
    pair: str | None
    label: str
    problem: Problem
    metrics: tuple[str, ...]
    header: str | None = None
    """The columns of a release without a header."""


def _glue(name: str, text: str, pair: str | None, label: str = "label", **fields: Any) -> BuiltIn:
    problem: Problem = "regression" if name == "stsb" else "single_label"
    return BuiltIn(text, pair, label, problem, GLUE_METRICS[name], **fields)


BUILT_IN: dict[str, BuiltIn] = {
    "cola": _glue("cola", "sentence", None, header="source,label,mark,sentence"),
    "sst2": _glue("sst2", "sentence", None),
    "mrpc": _glue("mrpc", "#1 String", "#2 String", "Quality"),
    "stsb": _glue("stsb", "sentence1", "sentence2", "score"),
    "qqp": _glue("qqp", "question1", "question2", "is_duplicate"),
    "mnli": _glue("mnli_matched", "sentence1", "sentence2", "gold_label"),
    "qnli": _glue("qnli", "question", "sentence"),
    "rte": _glue("rte", "sentence1", "sentence2"),
    "wnli": _glue("wnli", "sentence1", "sentence2"),
}


PROBLEMS: dict[str, Problem] = {
    "classification": "single_label", "multi_label": "multi_label", "regression": "regression",
}  # fmt: skip
"""Names by which a task says what its labels are, where they could be taken for something else."""


@dataclass(frozen=True)
class TextTask:
    """What a model is asked of a text, and how its answers are judged."""

    form: ClassVar[str] = "text"
    head: ClassVar[str] = "sequence"

    columns: Columns
    problem: Problem
    labels: tuple[str, ...]
    """Names of the classes; of a regression, the name of the number."""
    metrics: tuple[str, ...]
    """The first is the one that decides."""
    name: str = "text"
    temperature: float = 1.0
    """Scores are divided by it before they become probabilities."""
    thresholds: tuple[float, ...] | None = None
    """Of several labels, the probability from which on each is given."""
    abstain_below: float = 0.0
    """With less confidence there is no answer."""

    def __post_init__(self) -> None:
        for name in ("labels", "metrics"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", tuple(map(float, self.thresholds)))

    def to_dict(self) -> dict[str, Any]:
        return {"form": self.form, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TextTask:
        fields = {**values, "columns": Columns(**values["columns"])}
        fields.pop("form", None)
        return cls(**fields)

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        ids: list[list[int]] = []
        segments: list[list[int]] = []
        cut = 0
        for start in range(0, table.num_rows, CHUNK):
            done = tokenizer(self.texts(table.slice(start, CHUNK), start), max_length)
            ids += done.ids
            segments += done.segments
            cut += done.num_truncated
        return encode_sequences(
            ids,
            segments if any(map(any, segments)) else None,
            vocab_size=tokenizer.size,
            per_sequence={"label": self.read_labels(table)} if labelled else None,
            num_truncated=cut,
        )

    def texts(self, table: pa.Table, first_row: int = 0) -> list[str] | list[tuple[str, str]]:
        """What is tokenized. Anything but a text with something in it is refused, with its row."""
        columns = [texts_of(table, name, first_row) for name in (self.columns.text, self.columns.pair) if name]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def read_labels(self, table: pa.Table) -> Array:
        """A class, a row of zeros and ones, or a number, for each row."""
        values = label_values(table, self.columns)
        if self.problem == "regression":
            return numbers(values, str(self.columns.label))
        index = {label: number for number, label in enumerate(self.labels)}
        if self.problem == "single_label":
            self._require_known(set(map(str, values)) - set(index))
            return np.array([index[str(value)] for value in values], dtype=np.int64)
        self._require_known({str(label) for each in values for label in each} - set(index))
        sets = np.zeros((len(values), len(index)), dtype=np.uint8)
        for row, each in enumerate(values):
            sets[row, [index[str(label)] for label in each]] = 1
        return sets

    def _require_known(self, strange: set[str]) -> None:
        if strange:
            shown = ", ".join(sorted(strange)[:5]) + (" …" if len(strange) > 5 else "")
            raise DataError(
                f"the column {self.columns.label} has labels that are not in train: {shown}; "
                f"known are {', '.join(self.labels[:10])}{' …' if len(self.labels) > 10 else ''}"
            )

    def probabilities(self, scores: Array) -> Array:
        """Of every label: (R, L)."""
        if self.problem == "multi_label":
            return np.asarray(1 / (1 + np.exp(-scores.astype(np.float64) / self.temperature)))
        return softmax(scores, self.temperature)

    def decide(self, scores: Array) -> Array:
        """Predictions of a head's scores, in the form of `read_labels`."""
        if self.problem == "regression":
            return scores[:, 0].astype(np.float64)
        if self.problem == "single_label":
            return np.asarray(scores.argmax(axis=1))
        thresholds = DEFAULT_THRESHOLD if self.thresholds is None else np.array(self.thresholds)
        return np.asarray(self.probabilities(scores) >= thresholds).astype(np.uint8)

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        return self._judged(self.read_labels(table), scores)

    def _judged(self, labels: Array, scores: Array) -> dict[str, Array]:
        found = {"label": labels, "prediction": self.decide(scores)}
        if self.problem != "regression":
            found["probabilities"] = self.probabilities(scores)
        return found

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array]:
        """The commonest class, the labels that most rows have, or the mean."""
        seen, labels = self.read_labels(train), self.read_labels(table)
        if self.problem == "regression":
            answer = seen.mean()
        elif self.problem == "single_label":
            answer = np.bincount(seen, minlength=len(self.labels)).argmax()
        else:
            answer = (seen.mean(axis=0) >= DEFAULT_THRESHOLD).astype(np.uint8)
        return {"label": labels, "prediction": np.repeat(answer[None], len(labels), axis=0)}

    def measure(self, judged: Judged) -> dict[str, float]:
        found = {name: METRICS[name].score(judged["label"], judged["prediction"]) for name in self.metrics}
        if self.problem == "single_label" and "probabilities" in judged:
            sure, right = judged["probabilities"].max(axis=1), judged["label"] == judged["prediction"]
            found["calibration_error"] = expected_calibration_error(sure, right)
            if self.abstain_below > 0:
                answered = sure >= self.abstain_below
                found["coverage"] = float(answered.mean())
                found["answered_accuracy"] = float(right[answered].mean()) if answered.any() else 0.0
        return found

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> TextTask:
        """With the temperature that fits these rows (dev's), and of several labels the threshold of each."""
        if self.problem == "regression":
            return self
        labels = self.read_labels(table)
        if self.problem == "multi_label":
            fitted = replace(self, temperature=fit_temperature_multi_label(scores, labels))
            return replace(fitted, thresholds=tuple(fit_thresholds(fitted.probabilities(scores), labels).tolist()))
        return replace(self, temperature=fit_temperature(scores, labels))

    def abstain(self, table: pa.Table, encoded: Encoded, scores: Array, precision: float) -> TextTask:
        """With the confidence below which nothing is answered, so that on these rows so many answers are right."""
        if self.problem != "single_label":
            raise DataError(f"only a task of one label a row can abstain; this one is {self.problem}")
        sure = self.probabilities(scores).max(axis=1)
        line = abstention_threshold(sure, self.decide(scores) == self.read_labels(table), precision)
        return replace(self, abstain_below=line.threshold)

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """`prediction`, and the probability of each label under its name."""
        decided = self.decide(scores)
        if self.problem == "regression":
            return pa.table({"prediction": decided})
        shares = self.probabilities(scores)
        if self.problem == "multi_label":
            names: list[Any] = [[self.labels[each] for each in np.flatnonzero(row)] for row in decided]
        else:
            sure = shares.max(axis=1) >= self.abstain_below
            names = [self.labels[each] if known else None for each, known in zip(decided, sure, strict=True)]
        kind = pa.list_(pa.string()) if self.problem == "multi_label" else pa.string()
        columns = {"prediction": pa.array(names, kind)}
        return pa.table(columns | {f"p({label})": shares[:, index] for index, label in enumerate(self.labels)})


def find_text_task(
    dataset: Dataset,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> TextTask:
    """The task that a data set holds: by its name where it has one, else by its columns and labels."""
    table = dataset.tables["train"]
    known = _built_in(task)
    if known is not None:
        # The Hub's copies of GLUE have columns of other names, found by convention.
        text, pair, label = (
            named or (usual if usual in table.column_names else None)
            for named, usual in ((text, known.text), (pair, known.pair), (label, known.label))
        )
    columns = find_columns(table.column_names, text=text, label=label, pair=pair, need_label=True, table=table)
    values = label_values(table, columns)
    problem = known.problem if known else PROBLEMS.get(task or "") or _find_problem(values)
    if problem == "regression":
        numbers(values, str(columns.label))  # refused here, with its row, rather than in training
        labels: tuple[str, ...] = (str(columns.label),)
    else:
        labels = _names(values, problem, str(columns.label))
    metrics = known.metrics if known else DEFAULT_METRICS[problem]
    if "f1" in metrics:  # of the second class, which is the one without a "not" where classes have names
        labels = tuple(sorted(labels, key=lambda name: not name.startswith("not")))
    return TextTask(columns, problem, labels, metrics, task if known and task else "text")


def header_of(task: str | None) -> str | None:
    """The columns of a named data set whose files have no header."""
    known = BUILT_IN.get(task or "")
    return known.header if known else None


def _built_in(task: str | None) -> BuiltIn | None:
    if task is None or task in PROBLEMS:
        return None
    if task not in BUILT_IN:
        raise DataError(f"there is no task {task!r}; known are {', '.join(BUILT_IN)}; without a name it is found")
    return BUILT_IN[task]


def label_values(table: pa.Table, columns: Columns) -> list[Any]:
    """Every row's label as it stands there; none may be missing."""
    assert columns.label is not None
    if columns.label not in table.column_names:
        raise DataError(f"there is no column {columns.label!r}; the columns are {', '.join(table.column_names)}")
    values: list[Any] = table[columns.label].to_pylist()
    empty = next((row for row, value in enumerate(values) if _is_missing(value)), None)
    if empty is not None:
        raise DataError(f"row {empty + 1} has no {columns.label}; every row needs a label")
    return values


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, list) and any(map(_is_missing, value)))


def numbers(values: Sequence[Any], column: str) -> NDArray[np.float64]:
    found = np.empty(len(values))
    for row, value in enumerate(values):
        try:
            found[row] = float(value)
        except (TypeError, ValueError) as error:
            raise DataError(f"row {row + 1} has the {column} {value!r}; expected a number") from error
    strange = np.flatnonzero(~np.isfinite(found))
    if len(strange):
        raise DataError(f"row {strange[0] + 1} has the {column} {values[strange[0]]!r}; expected a finite number")
    return found


def _find_problem(values: Sequence[Any]) -> Problem:
    if any(isinstance(value, list) for value in values):
        return "multi_label"
    different = set(map(str, values))
    # Whole numbers are names of classes; numbers with fractions are measured.
    if len(different) > 2 and all(map(_is_number, different)) and any("." in each for each in different):
        whole = all(float(each).is_integer() for each in different)
        return "single_label" if whole else "regression"
    return "single_label"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _names(values: Sequence[Any], problem: Problem, column: str) -> tuple[str, ...]:
    flat = [label for each in values for label in each] if problem == "multi_label" else values
    different = set(map(str, flat))
    if len(different) < 2:
        shown = next(iter(different), "none at all")
        raise DataError(f"the column {column} has one label only ({shown}); there is nothing to tell apart")
    if len(different) > MOST_CLASSES:
        raise DataError(
            f"the column {column} has {len(different):,} different labels in {len(values):,} rows; at most "
            f"{MOST_CLASSES:,} can be classes: is it the right column? Name another with --label"
        )
    return tuple(sort_labels(different))


def sort_labels(labels: Iterable[str]) -> list[str]:
    """By size where all are whole numbers, else by the alphabet."""
    ordered = sorted(labels)
    return sorted(ordered, key=int) if all(WHOLE.fullmatch(label) for label in ordered) else ordered


def texts_of(table: pa.Table, name: str, first_row: int = 0) -> list[str]:
    """A column of texts with something in each. Any other value is refused, with its row."""
    if name not in table.column_names:
        raise DataError(f"there is no column {name!r}; the columns are {', '.join(table.column_names)}")
    texts: list[Any] = table[name].to_pylist()
    for row, value in enumerate(texts, first_row + 1):
        if not isinstance(value, str):
            raise DataError(f"row {row} has the {name} {value!r}, expected a text")
        if not value.strip():
            raise DataError(f"row {row} has an empty {name}; take it out, or write what it says")
    return texts
