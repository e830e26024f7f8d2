"""GLUE's submissions: for each task the name of its file, and its answers in the words that the server expects.

A file has two columns, `index` (from 0) and `prediction`: a number with three digits for STS-B, from 0 to 5; words for
the tasks of inference; 0 or 1 for all others.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from halfpint.data.sources import DataError
from halfpint.data.task import Task

ENTAILMENT = ("entailment", "not_entailment")
SUBMISSIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cola": (("CoLA.tsv",), ("0", "1")),
    "sst2": (("SST-2.tsv",), ("0", "1")),
    "mrpc": (("MRPC.tsv",), ("0", "1")),
    "stsb": (("STS-B.tsv",), ()),
    "qqp": (("QQP.tsv",), ("0", "1")),
    "mnli": (("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"), ("entailment", "neutral", "contradiction")),
    "qnli": (("QNLI.tsv",), ENTAILMENT),
    "rte": (("RTE.tsv",), ENTAILMENT),
    "wnli": (("WNLI.tsv",), ("0", "1")),
}
"""By task: the files it may be, and the answers in the order in which the Hub's copies number them."""
HIGHEST = 5.0


def require_submission(task: Task, file: str) -> None:
    """Refuse what the server would not take, before any work."""
    if task.name not in SUBMISSIONS:
        raise DataError(
            f"the model's task is {task.name}, and GLUE takes {', '.join(SUBMISSIONS)}; train it with --task, or leave "
            "--glue out"
        )
    files, labels = SUBMISSIONS[task.name]
    if file not in files:
        raise DataError(f"--out is called {file}, and GLUE knows {task.name} as {' or '.join(files)}")
    if labels:
        _words(task, labels)
    if getattr(task, "abstain_below", 0.0) > 0:
        raise DataError("the model abstains where it is not sure, and GLUE takes an answer to every row")


def submission_of(task: Task, answers: pa.Table) -> pa.Table:
    """The column `prediction` of a submission, from a task's answers."""
    _, labels = SUBMISSIONS[task.name]
    given = answers["prediction"]
    if not labels:
        within = pc.min_element_wise(pc.max_element_wise(given, 0.0), HIGHEST)
        return pa.table({"prediction": [f"{value:.3f}" for value in within.to_pylist()]})
    words = _words(task, labels)
    return pa.table({"prediction": [words[label] for label in given.to_pylist()]})


def _words(task: Task, labels: tuple[str, ...]) -> dict[str, str]:
    """By the model's labels those of GLUE: the same, or the numbers that stand for them."""
    if set(task.labels) == set(labels):
        return {label: label for label in labels}
    if set(task.labels) == set(map(str, range(len(labels)))):
        return {str(number): label for number, label in enumerate(labels)}
    raise DataError(f"the model answers {', '.join(task.labels)}, and GLUE expects {', '.join(labels)}")
