"""Every kind of task: found in a data set by its name or by the columns, and read back from `halfpint.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from halfpint.data import choice_task, span_task, tagging_task
from halfpint.data.choice_task import ChoiceTask, find_choice_task
from halfpint.data.columns import find_column
from halfpint.data.pair_task import PairTask, find_pair_task
from halfpint.data.sources import DataError, Dataset
from halfpint.data.span_task import SpanTask, find_span_task
from halfpint.data.tagging_task import TaggingTask, find_tagging_task
from halfpint.data.task import Task
from halfpint.data.text_task import BUILT_IN, PROBLEMS, TextTask, find_text_task


class _Find(Protocol):
    def __call__(
        self, dataset: Dataset, *, task: str | None, text: str | None, label: str | None, pair: str | None
    ) -> Task: ...


class _Kind(Protocol):
    form: ClassVar[str]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Task: ...


KINDS: dict[str, type[_Kind]] = {kind.form: kind for kind in (TextTask, PairTask, SpanTask, ChoiceTask, TaggingTask)}
"""By the form that `halfpint.json` names."""

FINDERS: dict[str, _Find] = {
    "squad": find_span_task,
    "squad2": find_span_task,
    "span": find_span_task,
    "race": find_choice_task,
    "choice": find_choice_task,
    "conll": find_tagging_task,
    "tagging": find_tagging_task,
    "pairs": find_pair_task,
    "triplets": find_pair_task,
    "similarity": find_pair_task,
}
"""By the name of a task; those of texts apart."""


def find_task(
    dataset: Dataset,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
) -> Task:
    """The task that a data set holds: by its name where it has one, else by the shape of its columns."""
    if task is not None and task not in FINDERS and task not in ("text", *PROBLEMS, *BUILT_IN):
        known = ", ".join(["text", *PROBLEMS, *BUILT_IN, *FINDERS])
        raise DataError(f"there is no task {task!r}; known are {known}; without a name it is found")
    find = FINDERS.get(_form_of(dataset.tables["train"], text) if task is None else task)
    if find is not None:
        return find(dataset, task=task, text=text, label=label, pair=pair)
    return find_text_task(dataset, task=None if task == "text" else task, text=text, label=label, pair=pair)


def _form_of(table: pa.Table, text: str | None) -> str:
    names = table.column_names

    def has(*several: tuple[str, ...]) -> bool:
        return all(find_column(names, known) for known in several)

    def is_nested(known: tuple[str, ...]) -> bool:
        name = find_column(names, known)
        return name is not None and pa.types.is_nested(table.schema.field(name).type)

    words = (text,) if text is not None else tagging_task.WORDS
    if is_nested(words):
        return "tagging"
    if has(("anchor",), ("positive",)):
        return "pairs"
    if is_nested(span_task.ANSWERS) and has(span_task.QUESTIONS, span_task.CONTEXTS):
        return "span"
    if is_nested(choice_task.OPTIONS) and has(choice_task.QUESTIONS, choice_task.ANSWERS):
        return "choice"
    return "text"


def read_task(values: Mapping[str, Any]) -> Task:
    """What the `to_dict` of a task gave to `halfpint.json`."""
    problem = _problem(values)
    if problem is not None:
        raise DataError(f"the task in halfpint.json is malformed ({problem}); train the model again")
    return KINDS[values["form"]].from_dict(values)


def _problem(values: object) -> str | None:
    """What is wrong with a task that was read, if anything."""
    if not isinstance(values, Mapping):
        return f"it is {values!r}"
    kind = KINDS.get(str(values.get("form")))
    if kind is None:
        return f"its form is {values.get('form')!r}, none of {', '.join(KINDS)}"
    return _misfit({name: value for name, value in values.items() if name != "form"}, kind)


def _misfit(values: Mapping[str, Any], kind: Any) -> str | None:
    """The first field that the dataclass does not have, or whose value is not of its type."""
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name, value in values.items():
        if name not in known:
            return f"there is no {name}"
        if not _fits(value, hints[name]):
            return f"{name} is {value!r}"
    return next(
        (f"it has no {name}" for name, it in known.items() if it.default is MISSING and name not in values), None
    )


def _fits(value: object, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:  # as JSON has it, a list
        return isinstance(value, list | tuple) and all(_fits(each, arguments[0]) for each in value)
    if is_dataclass(kind):
        return isinstance(value, Mapping) and _misfit(value, kind) is None
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)
