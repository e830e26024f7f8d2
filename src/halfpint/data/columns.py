"""Which column holds the text, which the label: as named, by the names that people use, or by what is left."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from halfpint.data.sources import DataError

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
    ("text_a", "text_b"),
)
TEXTS = ("text", "sentence", "message", "review", "content", "comment", "body", "utterance", "question")
OTHER_PAIRS = (("source1", "source2"),)
"""Where nothing else fits: in STS-B columns of these names say where the sentences are from."""
LABELS = (
    "label", "labels", "class", "category", "topic", "intent", "target", "sentiment", "score", "tag",
)  # fmt: skip
IDS = ("id", "ids", "idx", "index", "guid", "uid", "uuid", "unnamed: 0", "__index_level_0__", "column 1")
"""Numbers of rows, which are neither text nor label. `column 1` is what `to_csv` of pandas leaves without a name."""

SAMPLE = 10_000
"""Rows by which two columns of unknown names are told apart."""


@dataclass(frozen=True)
class Columns:
    """The names of the columns that a task of texts reads."""

    text: str
    pair: str | None = None
    """The second text, where a row has two."""
    label: str | None = None


def find_columns(
    names: Sequence[str],
    *,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    need_label: bool = False,
    table: pa.Table | None = None,
) -> Columns:
    """Which of `names` are text, pair and label.

    What is named is taken. The rest is found by convention, whatever its case: a pair of texts, else one text; then a
    label. Where that leaves open and there are only two columns (row numbers apart), the other one is meant; of two
    unknown ones in `table`, the text is the one with longer values. A text that was named alone stands alone.
    """
    named = {flag: _named(names, flag, name) for flag, name in (("text", text), ("label", label), ("pair", pair))}
    text, label, pair = named["text"], named["label"], named["pair"]
    _require_different(named)
    free = [name for name in names if name not in named.values()]
    if text is None:
        text, pair = _find_texts(free, pair)
    if text is None:
        text = _find_text_among_two(free, label, table)
    if text is None:
        raise DataError(f"which column is the text? Name it with --text; the columns are {_listed(names)}")
    if label is None:
        rest = [name for name in free if name not in (text, pair)]
        label = _first(rest, LABELS) or _only(rest, names, text, pair)
    if label is None and need_label:
        raise DataError(f"which column is the label? Name it with --label; the columns are {_listed(names)}")
    return Columns(text, pair, label)


def find_column(
    names: Sequence[str], known: Sequence[str], *, flag: str | None = None, name: str | None = None
) -> str | None:
    """The column that was named for a flag, or else the first of these names that is there, whatever its case."""
    return _first(names, known) if name is None else _named(names, flag or "", name)


def require_column(
    names: Sequence[str], known: Sequence[str], what: str, *, flag: str | None = None, name: str | None = None
) -> str:
    """The same, where a task cannot do without it."""
    found = find_column(names, known, flag=flag, name=name)
    if found is None:
        way_out = f"name it with --{flag}" if flag else f"name it {known[0]}"
        raise DataError(
            f"which column holds {what}? Expected {' or '.join(known)}; {way_out}; the columns are {_listed(names)}"
        )
    return found


def _named(names: Sequence[str], flag: str, name: str | None) -> str | None:
    if name is None or name in names:
        return name
    alike = [other for other in names if other.casefold() == name.casefold()]
    if len(alike) == 1:
        return alike[0]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise DataError(f"there is no column {name!r} for --{flag}{hint}; the columns are {_listed(names)}")


def _require_different(named: dict[str, str | None]) -> None:
    given = [(flag, name) for flag, name in named.items() if name is not None]
    for index, (flag, name) in enumerate(given):
        for other, same in given[:index]:
            if name == same:
                raise DataError(f"--{other} and --{flag} both name the column {name!r}; name two different ones")


def _find_texts(free: list[str], pair: str | None) -> tuple[str | None, str | None]:
    """The text and its pair by convention; where the pair was named, only the text is looked for."""
    if pair is not None:
        first = {second: first for first, second in (*PAIRS, *OTHER_PAIRS)}.get(pair.casefold())
        return _first(free, (first, *TEXTS) if first else TEXTS), pair
    for conventions in (PAIRS, [(text, None) for text in TEXTS], OTHER_PAIRS):
        for first, second in conventions:
            text, other = _first(free, (first,)), _first(free, (second,)) if second else None
            if text is not None and (other is not None or second is None):
                return text, other
    return None, None


def _find_text_among_two(free: list[str], label: str | None, table: pa.Table | None) -> str | None:
    candidates = _without_ids(free)
    if label is None and (known := _first(candidates, LABELS)) and len(candidates) == 2:
        candidates.remove(known)
    if len(candidates) == 1:
        return candidates[0]
    if len(candidates) == 2 and label is None and table is not None:
        # Of equals the first is the text, as in most files.
        return max(candidates, key=lambda name: _mean_length(table, name))
    return None


def _only(rest: list[str], names: Sequence[str], text: str, pair: str | None) -> str | None:
    """The one column that is left where there are but two, a pair counting as one."""
    others = [name for name in _without_ids(rest) if name not in (text, pair)]
    return others[0] if len(others) == 1 and len(_without_ids(names)) <= 2 + (pair is not None) else None


def _mean_length(table: pa.Table, name: str) -> float:
    column = table[name].slice(0, SAMPLE)
    return float(pc.mean(pc.utf8_length(column)).as_py() or 0) if pa.types.is_string(column.type) else 0.0


def _first(names: Iterable[str], conventions: Iterable[str | None]) -> str | None:
    by_name: dict[str, str] = {}
    for name in names:
        by_name.setdefault(name.casefold(), name)
    return next((by_name[known] for known in conventions if known in by_name), None)


def _without_ids(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.casefold() not in IDS]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
