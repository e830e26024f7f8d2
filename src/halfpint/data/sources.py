"""Labelled text from where it is: files, folders of splits, the Hub, and what a Python program holds.

What is notable:
- Columns of CSV and TSV are strings, always. Those of JSON, Parquet and Python keep their types, and nested values
  stay nested; only a column that has no one type becomes text.
- Where a format names no columns, they are `text` (lines), `tokens` and `tags` (CoNLL), and those of SQuAD's questions.
- `read` holds a data set in Arrow's memory; `read_batches` holds a block of it at a time.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from halfpint.data.delimited import CSV, OPENERS, TSV, DataError, open_bytes, read_delimited, reason, require_distinct
from halfpint.data.formats import (
    BLOCK_ROWS,
    kind_of,
    not_unicode,
    read_conll,
    read_json,
    read_json_lines,
    read_rows,
    read_text,
    to_column,
    to_texts,
)
from halfpint.data.hub import read_hub, with_label_names

__all__ = ["DataError", "Dataset", "read", "read_batches"]

FORMATS = {
    ".csv": "CSV", ".tsv": "TSV", ".jsonl": "JSONL", ".ndjson": "JSONL", ".json": "JSON", ".parquet": "Parquet",
    ".conll": "CoNLL", ".bio": "CoNLL", ".iob": "CoNLL", ".txt": "text",
}  # fmt: skip
ENDINGS = f"{', '.join(FORMATS)} (all but Parquet also with {', '.join(OPENERS)})"

SPLIT = re.compile(
    r"(train|dev|valid|validation|val|test)(?:[-_](?:matched|(mismatched)))?(?:-v\d+\.\d+)?"
    r"(?:[-_]\d+[-_]of[-_](?P<shards>\d+))?"
)
"""The name of a split: `valid` is dev, `dev_matched` too, `dev_mismatched` is its own; many files may be one split.

SQuAD's have a version in their names (`dev-v1.1`).
"""
EXPECTED_SPLITS = "train, dev (or valid, validation, val) and test"


@dataclass(frozen=True)
class Dataset:
    """Tables by split: `train`, `dev`, `test`, and what else there is, such as `dev_mismatched`."""

    name: str
    tables: dict[str, pa.Table]
    origins: dict[str, str]
    """Where the rows of each split came from, in words: a path, a name on the Hub."""


def read(source: object, *, columns: str | Sequence[str] | None = None) -> Dataset:
    """The data set that `source` holds or names.

    A source is a file, a folder of splits, the name of a data set on the Hub (`name:config` where it has several), a
    table (pandas, pyarrow, anything that speaks Arrow), a dict of lists, a list of dicts, or a dict of splits of any
    of these. A single file is the split `train` unless it is named after another. `columns` ("label,text") names the
    columns of CSV and TSV without a header.
    """
    names = _names(columns)
    if isinstance(source, Dataset):
        return source
    if isinstance(source, str | PathLike):
        return _read_path(source, names)
    if _is_splits(source):
        return _read_splits(cast(Mapping[object, object], source), names)
    if names is not None:
        raise DataError("columns were named, and the data is in memory; only CSV and TSV without a header need names")
    return Dataset("data", {"train": _read_object(source, "the data")}, {"train": f"a {type(source).__name__}"})


def read_batches(
    path: str | PathLike[str], *, columns: str | Sequence[str] | None = None, rows: int = 10_000
) -> Iterator[pa.Table]:
    """The rows of a file in their order, at most `rows` at a time, in bounded memory.

    (A `.json` file that is one list or object is the exception: it is parsed whole.) In a JSONL file each batch has the
    columns and types of its own rows.
    """
    if rows < 1:
        raise DataError(f"rows is {rows}; a batch needs at least one")
    file = Path(path).expanduser()
    if not _exists(file):
        raise _missing(file)
    if file.is_dir():
        raise DataError(f"{file} is a folder; expected one file with {ENDINGS}")
    for table in _read_blocks(file, _names(columns)):
        for start in range(0, len(table), rows):
            yield table.slice(start, rows)


def _names(columns: str | Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    names = [name.strip() for name in (columns.split(",") if isinstance(columns, str) else columns)]
    if not all(names):
        raise DataError(f"columns is {columns!r}; give every column a name, as in label,text")
    require_distinct(names, "columns")
    return names


def _read_path(source: str | PathLike[str], columns: list[str] | None) -> Dataset:
    text = str(source)
    if not text.strip():
        raise DataError("the name of the data is empty; give a file, a folder of splits or a Hub name")
    path = Path(text).expanduser()
    if _exists(path) and path.is_dir():
        return _read_folder(path, columns)
    if _exists(path):
        found = _split_of(path)
        split = found[0] if found else "train"
        named = path.absolute().parent.name if found else _stem(path)
        return Dataset(named, {split: _concat(_read_blocks(path, columns))}, {split: str(path)})
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text
    if not isinstance(source, str) or looks_local or _format_of(path):
        raise _missing(path)
    if columns is not None:
        raise DataError(f"columns were named, and {text} is no file here; only CSV and TSV without a header need names")
    return _read_hub(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        shown = str(path) if len(str(path)) < 80 else f"{str(path)[:80]}…"
        raise DataError(f"{shown} cannot be looked for ({error.strerror}); give a file, a folder or a name") from error


def _missing(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"there is no file {path}, and no folder {path.parent}; check the path")
    near = difflib.get_close_matches(path.name, [other.name for other in _listed(path.parent)], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    return DataError(f"there is no file {path}; {hint}")


def _read_folder(folder: Path, columns: list[str] | None) -> Dataset:
    files: dict[str, list[Path]] = {}
    numbers: dict[str, set[int]] = {}
    for path in _listed(folder):
        found = _split_of(path)
        if found and _format_of(path) and path.is_file():
            files.setdefault(found[0], []).append(path)
            numbers.setdefault(found[0], set()).add(found[1])
    if not files:
        held = ", ".join(path.name for path in _listed(folder)[:8]) or "nothing"
        raise DataError(f"{folder} has no split; expected {EXPECTED_SPLITS} with {ENDINGS}, and it holds {held}")
    for split, paths in files.items():
        named, total = ", ".join(path.name for path in paths), max(numbers[split])
        if len(paths) < total and len(numbers[split]) == 1:
            raise DataError(
                f"{folder} has {len(paths)} of the {total} files of its {split} split ({named}); add the rest"
            )
        if numbers[split] != {len(paths)}:
            raise DataError(f"{folder} has {len(paths)} files for its {split} split ({named}); leave one")
    return Dataset(
        folder.absolute().name,
        {split: _concat(_read_all(paths, columns)) for split, paths in files.items()},
        {split: ", ".join(map(str, paths)) for split, paths in files.items()},
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder} cannot be looked into ({error.strerror}); check its permissions") from error


def _read_all(paths: list[Path], columns: list[str] | None) -> Iterator[pa.Table]:
    for path in paths:
        yield from _read_blocks(path, columns)


def is_readable(path: Path) -> bool:
    """Whether a file is of a kind that is known here, going by its name."""
    return _format_of(path) is not None


def _format_of(path: Path) -> str | None:
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    if endings and endings[-1] in OPENERS:
        found = FORMATS.get(endings[-2]) if len(endings) > 1 else None
        return None if found == "Parquet" else found
    return FORMATS.get(endings[-1]) if endings else None


def _stem(path: Path) -> str:
    """The name of a file without its endings, where they are ours."""
    name = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    return name.stem if name.suffix.lower() in FORMATS else name.name


def _split_of(path: Path) -> tuple[str, int] | None:
    """The split that a file is named after, and how many files it is one of."""
    found = SPLIT.fullmatch(_stem(path).lower())
    if found is None:
        return None
    split = found[1] if found[1] in ("train", "test") else "dev"
    return (f"{split}_{found[2]}" if found[2] else split), int(found["shards"] or 1)


def _read_parquet(path: Path) -> Iterator[pa.Table]:
    with open_bytes(path) as file:
        try:
            for batch in pq.ParquetFile(file).iter_batches(BLOCK_ROWS):
                yield pa.Table.from_batches([batch])
        except pa.ArrowException as error:
            raise DataError(f"{path} is not a whole Parquet file ({reason(error)}); copy it again") from error


READERS: dict[str, Callable[[Path], Iterator[pa.Table]]] = {
    "JSON": read_json,
    "JSONL": read_json_lines,
    "CoNLL": read_conll,
    "text": read_text,
    "Parquet": _read_parquet,
}


def _read_blocks(path: Path, columns: list[str] | None) -> Iterator[pa.Table]:
    """The tables that a file is made of: never none, and never one without rows."""
    kind = _format_of(path)
    if kind is None:
        raise DataError(f"{path.name} is of no kind that is known here; expected a file with {ENDINGS}")
    if kind in ("CSV", "TSV"):
        yield from read_delimited(path, CSV if kind == "CSV" else TSV, columns)
        return
    if columns is not None:
        raise DataError(f"columns were named, and {path.name} names its own; only CSV and TSV without a header need it")
    num_rows = 0
    for table in READERS[kind](path):
        if len(table):
            num_rows += len(table)
            yield _plain(table, path)
    if not num_rows:
        raise DataError(f"{path} has no rows")


def _concat(tables: Iterable[pa.Table]) -> pa.Table:
    """One table of many. A column whose types cannot be joined becomes text, as it does within one block."""
    parts = list(tables)
    types: dict[str, set[Any]] = {}
    for schema in {part.schema for part in parts}:
        for field in schema:
            types.setdefault(field.name, set()).add(field.type)
    mixed = {name for name, kinds in types.items() if not _can_join(kinds)}
    return pa.concat_tables([_with_texts(part, mixed) for part in parts], promote_options="permissive")


def _can_join(types: set[Any]) -> bool:
    try:
        pa.unify_schemas([pa.schema([("column", kind)]) for kind in types], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _with_texts(table: pa.Table, names: set[str]) -> pa.Table:
    for index, name in enumerate(table.column_names):
        if name in names and not pa.types.is_string(table.schema.types[index]):
            table = table.set_column(index, name, to_texts(table.column(index).to_pylist()))
    return table


def _plain(table: pa.Table, where: object) -> pa.Table:
    """The same values in the simplest of Arrow's types: no dictionaries, and one kind of string."""
    require_distinct(table.column_names, where)
    for index, field in enumerate(table.schema):
        kind = _plain_type(field.type)
        if kind != field.type:
            # In pieces, since those of a plain string may hold no more than 2 GB.
            chunks = [
                chunk.slice(start, BLOCK_ROWS).cast(kind)
                for chunk in table.column(index).chunks
                for start in range(0, len(chunk), BLOCK_ROWS)
            ]
            table = table.set_column(index, field.name, pa.chunked_array(chunks, kind))
    return table.replace_schema_metadata(None)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def _is_splits(source: object) -> bool:
    """Whether a dict is of splits, not of columns."""
    if not isinstance(source, Mapping) or not any(SPLIT.fullmatch(str(key).lower()) for key in source):
        return False
    return all(
        isinstance(value, str | PathLike | Mapping | Dataset)
        or hasattr(value, "__arrow_c_stream__")
        or _is_of(value, "datasets", "Dataset")
        or (isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], Mapping))
        for value in source.values()
    )


def _read_splits(source: Mapping[object, object], columns: list[str] | None) -> Dataset:
    tables: dict[str, pa.Table] = {}
    origins: dict[str, str] = {}
    names = _split_names(map(str, source))
    for key, value in source.items():
        split = names[str(key)]
        if isinstance(value, str | PathLike | Dataset):
            part = read(value, columns=None if isinstance(value, Dataset) else columns)
            if len(part.tables) > 1:
                raise DataError(f"the {split} split was given as {value}, which has splits itself; name one file")
            ((tables[split], origins[split]),) = zip(part.tables.values(), part.origins.values(), strict=True)
        else:
            tables[split] = _read_object(value, f"the {split} split")
            origins[split] = f"a {type(value).__name__}"
    return Dataset("data", tables, origins)


def _split_names(names: Iterable[str]) -> dict[str, str]:
    """What each of these names of splits is called here."""
    found = {name: _split_of(Path(name)) for name in names}
    splits = {name: split[0] if split else name for name, split in found.items()}
    if len(set(splits.values())) < len(splits):
        twice = next(split for name, split in splits.items() if list(splits.values()).count(split) > 1)
        raise DataError(f"two of {', '.join(splits)} are the {twice} split; leave one")
    return splits


def _read_object(source: Any, where: str) -> pa.Table:
    try:
        table = _to_table(source, where)
    except UnicodeEncodeError as error:
        raise not_unicode(where) from error
    if not len(table):
        raise DataError(f"{where} has no rows")
    return _plain(table, where)


def _to_table(source: Any, where: str) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if _is_of(source, "pandas", "DataFrame"):
        return pa.table({str(name): _from_series(source[name]) for name in _distinct(source.columns, where)})
    if _is_of(source, "datasets", "Dataset"):
        return with_label_names(source)
    if isinstance(source, Mapping):
        return _read_columns(source, where)
    if isinstance(source, list | tuple):
        return read_rows(source, [f"{where}, row {number}" for number in range(1, len(source) + 1)])
    if hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    raise DataError(
        f"{where} was given as {kind_of(source)}; give a file, a folder, a Hub name, a DataFrame, a dict of lists, "
        "a list of dicts, or a dict of splits of these"
    )


def _from_series(series: Any) -> pa.Array:
    missing_is_none = series.where(series.notna(), None) if series.dtype == object else series
    return to_column(missing_is_none)


def _distinct(names: Iterable[object], where: str) -> list[object]:
    listed = list(names)
    require_distinct([str(name) for name in listed], where)
    return listed


def _is_of(value: object, package: str, name: str) -> bool:
    """Whether a value is of a class of a package that need not be installed."""
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _read_columns(columns: Mapping[object, Any], where: str) -> pa.Table:
    for name, values in columns.items():
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise DataError(f"{where} has {kind_of(values)} as its column {name}; expected a list of values")
    lengths = {str(name): len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DataError(f"the columns of {where} have unequal lengths ({told}); give each a value for every row")
    return pa.table({str(name): to_column(columns[name]) for name in _distinct(columns, where)})


def _read_hub(name: str) -> Dataset:
    splits = read_hub(name)
    tables = {new: _plain(splits[split], name) for split, new in _split_names(splits).items()}
    title = name.partition(":")[0].rpartition("/")[2]
    return Dataset(title, tables, dict.fromkeys(tables, f"{name} on the Hub"))
