"""`evaluate`: any model against labelled data, with intervals over the rows; two models on the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, cast

import pyarrow as pa

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.config import Precision, SequenceHead
from halfpint.data.asked import match_columns, rename_columns
from halfpint.data.cache import fingerprint
from halfpint.data.sources import DataError, Dataset
from halfpint.data.splits import complete
from halfpint.data.task import Array, Task
from halfpint.data.text_task import find_text_task
from halfpint.engines.device import answer_precision, find_device
from halfpint.engines.model import Model, load
from halfpint.engines.scoring import score_rows
from halfpint.train.prepare import DataOptions, encode, fit_length, group_of, read_data
from halfpint.train.quality import Comparison, Interval, compare, over_rows


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` returns."""

    task: str
    split: str
    rows: int
    metrics: dict[str, Interval]
    trivial: dict[str, float]
    """Of an answer that never looks at the text, where the data has a train split to learn it from."""
    notes: tuple[str, ...]
    against: Comparison | None = None
    """The deciding metric less that of the other model, by the paired bootstrap."""


def evaluate(
    model: str | PathLike[str] | Model,
    data: object,
    *,
    split: str | None = None,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    columns: str | None = None,
    max_length: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    against: str | PathLike[str] | Model | None = None,
) -> Evaluation:
    """Judge a model on the labelled rows of a split: test where it is there, else dev, else all there is.

    With `against`, another model of the same task is judged on the same rows.
    """
    options = DataOptions(task, text, label, pair, columns)
    dataset = read_data(data, options)
    place = find_device(device)
    loaded = (model if isinstance(model, Model) else load(str(model))).to(place)
    asked = loaded.task or _task_of_head(loaded, dataset, options)
    dataset, note = _held_out(dataset, loaded, asked, split)
    name = _choose_split(dataset, split)
    matched = match_columns(asked, dataset.tables[name], text=text, label=label, pair=pair, labelled=True)
    table = rename_columns(dataset.tables[name], matched)
    chosen = precision or answer_precision(place)
    judged, cut = judge(loaded, asked, table, max_length=max_length, precision=chosen)
    trivial = {}
    if "train" in dataset.tables and name != "train":
        constant = asked.trivial(rename_columns(dataset.tables["train"], matched), table)
        trivial = {} if constant is None else asked.measure(constant)
    notes = ((f"{cut:,} of {table.num_rows:,} rows were cut to fit the length",) if cut else ()) + note
    comparison = None
    if against is not None:
        other = (against if isinstance(against, Model) else load(str(against))).to(place)
        theirs = _like(other.task or _task_of_head(other, dataset, options), asked)
        comparison = compare(asked, judged, judge(other, theirs, table, max_length=max_length, precision=chosen)[0])
    return Evaluation(asked.name, name, table.num_rows, over_rows(asked, judged), trivial, notes, comparison)


def _held_out(dataset: Dataset, model: Model, task: Task, split: str | None) -> tuple[Dataset, tuple[str, ...]]:
    """The data with the splits that were cut off it in training, where the model was trained on it."""
    told = model.source.metadata if model.source else {}
    seed, hashes = told.get("run", {}).get("seed"), told.get("data", {}).get("hashes", {})
    if set(dataset.tables) != {"train"} or not isinstance(seed, int) or "train" not in hashes:
        return dataset, ()
    try:
        whole, _ = complete(dataset, task.columns, seed=seed, group=group_of(task))
    except DataError:  # other columns, or too few rows: it was not this data
        return dataset, ()
    if fingerprint(whole.tables["train"]) != hashes["train"]:
        return dataset, ()
    if split == "train":
        return whole, ("these rows are those that the model was trained on",)
    return whole, ("the model was trained on this data: judged are the rows that were cut off it then",)


def _like(task: Task, asked: Task) -> Task:
    """The other model's task, if it is the same; in the columns of the first."""
    if task.form != asked.form or task.labels != asked.labels:
        raise DataError(
            f"the models were trained for different tasks: {asked.name} with the labels {_listed(asked.labels)}, and "
            f"{task.name} with {_listed(task.labels)}"
        )
    like: Task = replace(cast(Any, task), columns=asked.columns)
    return like


def judge(
    model: Model, task: Task, table: pa.Table, *, max_length: int | None = None, precision: Precision = "fp32"
) -> tuple[dict[str, Array], int]:
    """The judged rows of a table, and how many of them lost tokens."""
    if model.tokenizer is None:
        raise DataError("this model has no tokenizer.json, so it cannot read texts; put its tokenizer beside it")
    length = model.task_length if max_length is None and model.task else fit_length(task, max_length, model.max_length)
    encoded = encode(table, task, model.tokenizer, length)
    scores = score_rows(model.module, encoded, task.head, precision)
    return task.judge(table, encoded, scores), encoded.num_truncated


def _choose_split(dataset: Dataset, asked: str | None) -> str:
    if asked is not None and asked not in dataset.tables:
        raise DataError(f"{dataset.name} has no split {asked!r}; it has {', '.join(dataset.tables)}")
    return asked or next(name for name in ("test", "dev", *dataset.tables) if name in dataset.tables)


def _task_of_head(model: Model, dataset: Dataset, options: DataOptions) -> Task:
    """The task of a model that was trained elsewhere: its head's labels, in the data's columns."""
    network: AnyNetwork = model.module
    head = network.head_config("sequence")
    if not isinstance(head, SequenceHead):
        raise DataError(
            "this model was not trained for a task by Halfpint and has no sequence head, so there is nothing to judge; "
            "train it first (halfpint finetune)"
        )
    whole = Dataset(dataset.name, {"train": next(iter(dataset.tables.values()))}, dataset.origins)
    found = find_text_task(whole, task=options.task, text=options.text, label=options.label, pair=options.pair)
    if found.problem == "regression":
        return found
    if set(found.labels) <= set(head.labels):
        return replace(found, labels=head.labels)
    if len(found.labels) == len(head.labels) and all(each.startswith("LABEL_") for each in head.labels):
        # transformers' names for outputs nobody named: the labels of the data in their order are meant.
        return found
    raise DataError(
        f"the data has the labels {_listed(found.labels)}, and the model's head {_listed(head.labels)}; "
        "rename one of them"
    )


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:10]) + (" …" if len(labels) > 10 else "")
