"""The contract between a task and whatever trains, judges or asks a model: what a row is, and what a good answer.

A task is a small frozen spec: which columns it reads, which head it needs, how it is scored. It goes from a table to
`Encoded` rows, and from a head's scores back to answers and figures; it never sees a network. What it knows goes into
`halfpint.json`, so that a model can be asked and judged without being told again.

Scores are those of the head, in the order of `Encoded`: one a sequence, (S, …), or one a token, (T, …). Judged rows are
arrays with one entry a row, (R, …) each, and every metric is a function of them: so a bootstrap draws rows, and two
models are compared on the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Problem
from halfpint.data.columns import Columns
from halfpint.data.encoded import Encoded
from halfpint.data.tokenizer import Tokenizer

Array = NDArray[Any]
Judged = Mapping[str, Array]
"""By name, one entry a row."""

LOWER_IS_BETTER = frozenset({"mean_squared_error"})


class Task(Protocol):
    """What every task knows and does."""

    form: ClassVar[str]
    """Which class of task it is, in `halfpint.json`."""
    head: ClassVar[str]
    """The kind of head that answers it."""

    @property
    def name(self) -> str:
        """As the user may name it: `text`, `sst2`, `squad` …"""

    @property
    def columns(self) -> Columns:
        """The columns that tell rows apart, and the label."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the head's outputs; empty where they have none."""

    @property
    def problem(self) -> Problem:
        """Of a sequence head; `single_label` for all others."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The first is the one that decides."""

    def encode(self, table: pa.Table, tokenizer: Tokenizer, max_length: int, *, labelled: bool = True) -> Encoded:
        """All rows as ids, with their labels where asked."""

    def judge(self, table: pa.Table, encoded: Encoded, scores: Array) -> dict[str, Array]:
        """Labelled rows against the answers that the scores give."""

    def trivial(self, train: pa.Table, table: pa.Table) -> dict[str, Array] | None:
        """The same of an answer that never looks at the text: the commonest, or the mean; None where there is none."""

    def measure(self, judged: Judged) -> dict[str, float]:
        """All metrics of these rows, by name."""

    def calibrate(self, table: pa.Table, encoded: Encoded, scores: Array) -> Task:
        """With what labelled rows that were not trained on (dev's) teach: a temperature, thresholds; often nothing."""

    def answer(self, table: pa.Table, encoded: Encoded, scores: Array) -> pa.Table:
        """What is predicted, as columns, one row a row."""

    def to_dict(self) -> dict[str, Any]:
        """For `halfpint.json`; each class has a `from_dict`."""


def score_of(task: Task, metrics: Mapping[str, float]) -> float:
    """The metric that decides, turned so that more is better."""
    name = task.metrics[0]
    return -metrics[name] if name in LOWER_IS_BETTER else metrics[name]


def draw(judged: Judged, rows: NDArray[np.int64]) -> dict[str, Array]:
    """These rows, in this order, any of them as often as it is named."""
    return {name: each[rows] for name, each in judged.items()}
