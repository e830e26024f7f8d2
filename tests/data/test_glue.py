"""Submissions to GLUE: files and words as its server takes them, and refusals before any work."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from halfpint.data.columns import Columns
from halfpint.data.glue import SUBMISSIONS, require_submission, submission_of
from halfpint.data.sources import DataError
from halfpint.data.text_task import BUILT_IN, TextTask


def task_of(name: str, *labels: str) -> TextTask:
    known = BUILT_IN[name]
    columns = Columns(known.text, known.pair, known.label)
    return TextTask(columns, known.problem, labels or ("score",), known.metrics, name=name)


def predicted(task: TextTask, *answers: object) -> list[str]:
    return submission_of(task, pa.table({"prediction": list(answers)}))["prediction"].to_pylist()


def test_every_task_of_glue_has_a_file() -> None:
    assert set(SUBMISSIONS) == set(BUILT_IN)


def test_words_of_the_release_stay() -> None:
    task = task_of("rte", "entailment", "not_entailment")
    assert predicted(task, "not_entailment", "entailment") == ["not_entailment", "entailment"]


def test_numbers_of_the_hub_s_copies_become_words() -> None:
    assert predicted(task_of("qnli", "0", "1"), "0", "1") == ["entailment", "not_entailment"]
    assert predicted(task_of("mnli", "0", "1", "2"), "2", "0", "1") == ["contradiction", "entailment", "neutral"]


def test_scores_have_three_digits_and_stay_within_the_scale() -> None:
    assert predicted(task_of("stsb"), 2.34567, -0.2, 5.4) == ["2.346", "0.000", "5.000"]


@pytest.mark.parametrize(
    ("task", "file", "words"),
    [
        (replace(task_of("rte", "0", "1"), name="text"), "RTE.tsv", "the model's task is text, and GLUE takes cola"),
        (task_of("rte", "0", "1"), "rte.tsv", "GLUE knows rte as RTE.tsv"),
        (task_of("mnli", "0", "1", "2"), "MNLI.tsv", "as MNLI-m.tsv or MNLI-mm.tsv or AX.tsv"),
        (task_of("rte", "yes", "no"), "RTE.tsv", "the model answers yes, no, and GLUE expects entailment"),
        (replace(task_of("rte", "0", "1"), abstain_below=0.9), "RTE.tsv", "the model abstains"),
    ],
)
def test_what_the_server_would_not_take_is_refused(task: TextTask, file: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        require_submission(task, file)
