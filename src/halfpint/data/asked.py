"""What is asked of a file: which of its columns a task reads, and whether every row has something in them.

A task knows its columns by the names of the data it was trained on, and a file may have others. The columns that
stand for them are found here, for `predict` and `evaluate` alike: as named, by the task's own names, by those that
people use, or because there is only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from halfpint.data import choice_task, pair_task, span_task, tagging_task
from halfpint.data.choice_task import ChoiceTask
from halfpint.data.columns import IDS, PAIRS, find_column, find_columns, require_column
from halfpint.data.pair_task import PairTask
from halfpint.data.sources import DataError
from halfpint.data.tagging_task import TaggingTask
from halfpint.data.task import Task

KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "pairs": {"text": pair_task.FIRSTS, "pair": pair_task.SECONDS, "label": pair_task.SCORES},
    "span": {"text": span_task.QUESTIONS, "pair": span_task.CONTEXTS, "label": span_task.ANSWERS},
    "choice": {"text": choice_task.ARTICLES, "pair": choice_task.QUESTIONS, "label": choice_task.ANSWERS},
    "tagging": {"text": tagging_task.WORDS, "label": tagging_task.TAGS},
}
"""By the form of a task, and by the flag that names a column. Those of texts are `find_columns`' to find."""
MEANINGS = {"text": "the text", "pair": "the second text", "label": "the label"}

LONGEST_SHOWN = 60

Matched = Mapping[str, str]
"""By the name that a task has for a column, the name that the file has for it."""


def match_columns(
    task: Task,
    table: pa.Table,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labelled: bool = False,
) -> dict[str, str]:
    """Which columns of a file stand for those that the task reads; with `labelled`, also those that it is judged by."""
    names = table.column_names
    own = {"text": task.columns.text, "pair": task.columns.pair, "label": task.columns.label if labelled else None}
    found: dict[str, str | None] = {}
    for flag, name in (("text", text), ("pair", pair), ("label", label)):
        if own[flag] is not None:
            found[flag] = _own(names, own[flag]) if name is None else find_column(names, (), flag=flag, name=name)
        elif name is not None:
            raise DataError(f"the model's task reads no {flag}; leave --{flag} {name} out")
    if None in found.values():
        guess = _guess_texts if task.form == "text" else _guess_known
        found = guess(task, table, found)
    matched = {str(own[flag]): str(name) for flag, name in found.items()} | _match_others(task, names, labelled)
    twice = next((name for name in matched.values() if list(matched.values()).count(name) > 1), None)
    if twice is not None:
        wanted = " and ".join(own for own, theirs in matched.items() if theirs == twice)
        raise DataError(
            f"the task reads {wanted}, and for them the column {twice!r} was found or named; name two different "
            f"ones with --text and --pair; the columns are {', '.join(names)}"
        )
    return matched


def rename_columns(table: pa.Table, matched: Matched) -> pa.Table:
    """The columns that a task reads, by its names for them. One that this part of a file lacks is null."""
    there = set(table.column_names)
    return pa.table(
        {own: table[theirs] if theirs in there else pa.nulls(len(table)) for own, theirs in matched.items()}
    )


def _guess_texts(task: Task, table: pa.Table, found: Mapping[str, str | None]) -> dict[str, str | None]:
    names = table.column_names
    # Predictions are also asked for rows with labels, whose column is not to be taken for the text.
    label = found["label"] if "label" in found else _own(names, task.columns.label)
    guess = find_columns(
        names, text=found["text"], pair=found.get("pair"), label=label, need_label="label" in found, table=table
    )
    guessed = {"text": guess.text, "pair": guess.pair, "label": guess.label}
    if "pair" in found and guess.pair is None:
        free = [name for name in names if name.casefold() not in IDS and name != guess.label]
        guessed |= _guess_pair(names, free, found["text"])
    return {flag: guessed[flag] for flag in found}


def _guess_pair(names: Sequence[str], free: Sequence[str], text: str | None) -> dict[str, str | None]:
    """The texts of rows that have two, where no convention named both."""
    if text is None and len(free) == 2:
        return {"text": free[0], "pair": free[1]}
    if text is None:
        raise DataError(
            f"which columns are the two texts? Name them with --text and --pair; the columns are {', '.join(names)}"
        )
    rest = [name for name in free if name != text]
    usual = [second for first, second in PAIRS if first == text.casefold()]
    if len(rest) == 1:
        return {"pair": rest[0]}
    return {"pair": require_column(names, usual or [PAIRS[0][1]], MEANINGS["pair"], flag="pair")}


def _guess_known(task: Task, table: pa.Table, found: Mapping[str, str | None]) -> dict[str, str | None]:
    names, known = table.column_names, KNOWN[task.form]
    free = [name for name in names if name.casefold() not in IDS]
    if list(found) == ["text"] and len(free) == 1:
        return {"text": free[0]}
    return {flag: name or require_column(names, known[flag], MEANINGS[flag], flag=flag) for flag, name in found.items()}


def _match_others(task: Task, names: Sequence[str], labelled: bool) -> dict[str, str]:
    """Columns of some tasks that no flag names."""
    if isinstance(task, ChoiceTask):
        options = _own(names, task.options) or require_column(names, choice_task.OPTIONS, "the options")
        level = _own(names, task.level) if labelled else None
        return {task.options: options} | ({str(task.level): level} if level else {})
    if isinstance(task, PairTask) and labelled:
        return {name: require_column(names, (name,), "the negatives") for name in task.negatives}
    return {}


def _own(names: Sequence[str], name: str | None) -> str | None:
    """The column of this very name, or else the first of it in another case."""
    if name is None or name in names:
        return name
    return find_column(names, (name.casefold(),))


Check = Callable[[Any], str | None]
"""What is wrong with a value, if anything."""


def checks_of(task: Task) -> dict[str, Check]:
    """By column, what a task needs of the rows that it is to answer."""
    if isinstance(task, TaggingTask):
        return {task.columns.text: _check_words}
    texts = [name for name in (task.columns.text, task.columns.pair) if name is not None]
    options: dict[str, Check] = {task.options: _check_options} if isinstance(task, ChoiceTask) else {}
    return dict.fromkeys(texts, check_text) | options


def find_bad_rows(table: pa.Table, checks: Mapping[str, Check]) -> dict[int, str]:
    """The rows that cannot be answered, by their number from 0, with what is wrong with each."""
    found: dict[int, str] = {}
    for name, check in checks.items():
        for row, value in enumerate(table[name].to_pylist()):
            if (problem := check(value)) is not None:
                found.setdefault(row, f"has {_shown(value)} as its {name}, expected {problem}")
    return dict(sorted(found.items()))


def check_text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a text"


def _check_words(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return None
    return "a list of words; JSONL, Parquet and CoNLL files have lists"


def _check_options(value: Any) -> str | None:
    if isinstance(value, list) and len(value) > 1 and not any(map(check_text, value)):
        return None
    return "a list of two texts or more; JSONL and Parquet have lists"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
