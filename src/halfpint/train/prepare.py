"""From data as it is to what a run needs: the task, complete splits, and every row as ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from halfpint.data.asked import checks_of, find_bad_rows
from halfpint.data.cache import cached, fingerprint
from halfpint.data.encoded import Encoded
from halfpint.data.sources import DataError, Dataset, read
from halfpint.data.splits import SplitReport, complete
from halfpint.data.task import Task
from halfpint.data.tasks import find_task
from halfpint.data.text_task import header_of
from halfpint.data.tokenizer import Tokenizer

DEFAULT_LENGTHS = {"text": 256, "tagging": 256, "pairs": 128, "span": 384, "choice": 512}
"""Tokens of a sequence, by the form of the task, where the encoder can take so many."""


UNLABELLED = {None, "", -1, "-1"}
"""What stands for a label where none is public."""


@dataclass(frozen=True)
class DataOptions:
    """What a user says about the data."""

    task: str | None = None
    text: str | None = None
    label: str | None = None
    pair: str | None = None
    columns: str | None = None
    """Of CSV and TSV without a header."""


@dataclass(frozen=True)
class Split:
    """Labelled rows, as they are and as ids."""

    table: pa.Table
    encoded: Encoded


@dataclass(frozen=True)
class Prepared:
    """All that is known of the data before a model sees it."""

    task: Task
    splits: dict[str, Split]
    """`train` and `dev`, and where there are labels for them `test` and others to be judged (`dev_mismatched`)."""
    report: SplitReport
    name: str
    hashes: dict[str, str]
    """Of the content of each split."""

    @property
    def judged(self) -> str:
        """The split whose figures are reported."""
        return "test" if "test" in self.splits else "dev"

    @property
    def others(self) -> list[str]:
        """Further splits whose figures are reported."""
        return [split for split in self.splits if split not in ("train", "dev", self.judged)]

    def lines(self) -> list[str]:
        """What a person should know of the data."""
        lines = self.report.lines()
        for split, part in self.splits.items():
            if cut := part.encoded.num_truncated:
                lines.append(f"{cut:,} of {part.encoded.num_rows:,} rows of {split} were cut to fit the length")
        return lines


def read_data(source: object, options: DataOptions) -> Dataset:
    """The data set; a built-in task knows the columns of its release."""
    return read(source, columns=options.columns or header_of(options.task))


def find_data_task(dataset: Dataset, options: DataOptions) -> Task:
    if "train" not in dataset.tables:
        raise DataError(f"{dataset.name} has no train split; it has {', '.join(dataset.tables)}")
    return find_task(dataset, options.task, options.text, options.label, options.pair)


def prepare(dataset: Dataset, task: Task, tokenizer: Tokenizer, max_length: int, *, seed: int) -> Prepared:
    """Splits completed, and their rows encoded (or read, where they were encoded before)."""
    _require_texts(dataset, task)
    whole, report = complete(dataset, task.columns, seed=seed, group=group_of(task))
    tables = {split: table for split, table in whole.tables.items() if _is_labelled(table, task.columns.label)}
    if "dev" not in tables:
        raise DataError(f"dev of {dataset.name} has no labels in its column {task.columns.label}; give a labelled dev")
    hashes = {split: fingerprint(table) for split, table in tables.items()}
    splits = {
        split: Split(table, encode(table, task, tokenizer, max_length))
        for split, table in tables.items()
        if split == "train" or split.startswith(("dev", "test"))
    }
    return Prepared(task, splits, report, dataset.name, hashes)


def group_of(task: Task) -> str | None:
    """The column whose text several rows share: the passage of questions."""
    return {"span": task.columns.pair, "choice": task.columns.text}.get(task.form)


def _require_texts(dataset: Dataset, task: Task) -> None:
    """Refuse a row without a text by its number in the data, before rows change their places."""
    checks = checks_of(task)
    for split, table in dataset.tables.items():
        if split.startswith(("train", "dev", "test")) and set(checks) <= set(table.column_names):
            for row, problem in find_bad_rows(table, checks).items():
                raise DataError(
                    f"row {row + 1:,} of {dataset.origins.get(split, split)} {problem}; take it out, or write what it "
                    "says"
                )


def encode(table: pa.Table, task: Task, tokenizer: Tokenizer, max_length: int, cache: Path | None = None) -> Encoded:
    """The rows as ids, from the cache where they are there."""
    key = fingerprint(table, task.to_dict(), tokenizer.to_json(), max_length)
    return cached(key, lambda: task.encode(table, tokenizer, max_length), cache)


def fit_length(task: Task, asked: int | None, longest: int) -> int:
    """The length of sequences: as asked, or as is usual for the task; never more than the encoder takes."""
    if asked is None:
        return min(DEFAULT_LENGTHS[task.form], longest)
    if not 4 <= asked <= longest:
        raise DataError(f"max_length is {asked}; this encoder takes 4 to {longest} tokens")
    return asked


def _is_labelled(table: pa.Table, label: str | None) -> bool:
    """Whether a split can be judged by: the labels of some test sets are not public, and stand there as -1 or null."""
    if label is None:
        return True
    if label not in table.column_names:
        return False
    column = table[label]
    if pa.types.is_nested(column.type):
        return bool(column.null_count < len(column))
    return not set(pc.unique(column).to_pylist()) <= UNLABELLED
