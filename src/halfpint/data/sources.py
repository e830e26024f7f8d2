"""Labelled text from where it is: files, folders of splits, the Hub, and what a Python program holds.

What is notable:
- Columns of CSV and TSV are strings, always. Those of JSON, Parquet and Python keep their types, and nested values
  stay nested; only a column that has no one type becomes text.
- `read` holds a data set in Arrow's memory; `read_batches` holds a block of it at a time.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from halfpint.data.delimited import (
    BLOCK_ROWS,
    CSV,
    OPENERS,
    TSV,
    DataError,
    open_bytes,
    read_delimited,
    read_json,
    read_rows,
    reason,
    require_distinct,
    to_column,
    to_texts,
)

__all__ = ["DataError", "Dataset", "read", "read_batches"]

FORMATS = {".csv": "CSV", ".tsv": "TSV", ".jsonl": "JSONL", ".ndjson": "JSONL", ".json": "JSON", ".parquet": "Parquet"}
ENDINGS = f"{', '.join(FORMATS)} (all but Parquet also with {', '.join(OPENERS)})"

SPLIT = re.compile(
    r"(train|dev|valid|validation|val|test)(?:[-_](?:matched|(mismatched)))?(?P<shard>[-_]\d+[-_]of[-_]\d+)?"
)
"""The name of a split: `valid` is dev, `dev_matched` too, `dev_mismatched` is its own; many files may be one split."""
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

    (A `.json` file with one list is the exception: it is parsed whole.) In a JSONL file each batch has the columns and
    types of its own rows.
    """
    if rows < 1:
        raise DataError(f"rows is {rows}; a batch needs at least one")
    file = Path(path).expanduser()
    if not file.exists():
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
    if path.is_dir():
        return _read_folder(path, columns)
    if path.exists():
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


def _missing(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(f"there is no file {path}, and no folder {path.parent}; check the path")
    near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    return DataError(f"there is no file {path}; {hint}")


def _read_folder(folder: Path, columns: list[str] | None) -> Dataset:
    files: dict[str, list[Path]] = {}
    shards: set[Path] = set()
    for path in sorted(folder.iterdir()):
        found = _split_of(path)
        if found and _format_of(path) and path.is_file():
            files.setdefault(found[0], []).append(path)
            if found[1]:
                shards.add(path)
    if not files:
        held = ", ".join(path.name for path in sorted(folder.iterdir())[:8]) or "nothing"
        raise DataError(f"{folder} has no split; expected {EXPECTED_SPLITS} with {ENDINGS}, and it holds {held}")
    for split, paths in files.items():
        if len(paths) > 1 and not shards.issuperset(paths):
            raise DataError(
                f"{folder} has {len(paths)} files for its {split} split ({', '.join(path.name for path in paths)}); "
                "leave one"
            )
    return Dataset(
        folder.absolute().name,
        {split: _concat(_read_all(paths, columns)) for split, paths in files.items()},
        {split: ", ".join(map(str, paths)) for split, paths in files.items()},
    )


def _read_all(paths: list[Path], columns: list[str] | None) -> Iterator[pa.Table]:
    for path in paths:
        yield from _read_blocks(path, columns)


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


def _split_of(path: Path) -> tuple[str, bool] | None:
    """The split that a file is named after, and whether it is one of several files of it."""
    found = SPLIT.fullmatch(_stem(path).lower())
    if found is None:
        return None
    split = found[1] if found[1] in ("train", "test") else "dev"
    return (f"{split}_{found[2]}" if found[2] else split), found["shard"] is not None


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
    tables = _read_parquet(path) if kind == "Parquet" else read_json(path, lines=kind == "JSONL")
    num_rows = 0
    for table in tables:
        if len(table):
            num_rows += len(table)
            yield _plain(table, path)
    if not num_rows:
        raise DataError(f"{path} has no rows")


def _read_parquet(path: Path) -> Iterator[pa.Table]:
    with open_bytes(path) as file:
        try:
            for batch in pq.ParquetFile(file).iter_batches(BLOCK_ROWS):
                yield pa.Table.from_batches([batch])
        except pa.ArrowException as error:
            raise DataError(f"{path} is not a whole Parquet file ({reason(error)}); copy it again") from error


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
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            kind = pa.string()
        if kind != field.type:
            # In pieces, since those of a plain string may hold no more than 2 GB.
            chunks = [
                chunk.slice(start, BLOCK_ROWS).cast(kind)
                for chunk in table.column(index).chunks
                for start in range(0, len(chunk), BLOCK_ROWS)
            ]
            table = table.set_column(index, field.name, pa.chunked_array(chunks, kind))
    return table.replace_schema_metadata(None)


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
    for key, value in source.items():
        split = _split_name(str(key))
        if split in tables:
            raise DataError(f"two of {', '.join(map(str, source))} are the {split} split; leave one")
        if isinstance(value, str | PathLike | Dataset):
            part = read(value, columns=None if isinstance(value, Dataset) else columns)
            if len(part.tables) > 1:
                raise DataError(f"the {split} split was given as {value}, which has splits itself; name one file")
            ((tables[split], origins[split]),) = zip(part.tables.values(), part.origins.values(), strict=True)
        else:
            tables[split] = _read_object(value, f"the {split} split")
            origins[split] = f"a {type(value).__name__}"
    return Dataset("data", tables, origins)


def _split_name(name: str) -> str:
    found = _split_of(Path(name))
    return found[0] if found else name


def _read_object(source: Any, where: str) -> pa.Table:
    if isinstance(source, pa.Table):
        table = source
    elif _is_of(source, "pandas", "DataFrame"):
        table = pa.table({str(name): _from_series(source[name]) for name in _distinct(source.columns, where)})
    elif _is_of(source, "datasets", "Dataset"):
        table = _from_hub(source)
    elif isinstance(source, Mapping):
        table = _read_columns(source, where)
    elif isinstance(source, list | tuple):
        table = read_rows(source, [f"{where}, row {number}" for number in range(1, len(source) + 1)])
    elif hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source)
    else:
        raise DataError(
            f"{where} was given as {_a(source)}; give a file, a folder, a Hub name, a DataFrame, a dict of lists, "
            "a list of dicts, or a dict of splits of these"
        )
    if not len(table):
        raise DataError(f"{where} has no rows")
    return _plain(table, where)


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
            raise DataError(f"{where} has {_a(values)} as its column {name}; expected a list of values")
    lengths = {str(name): len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise DataError(f"the columns of {where} have unequal lengths ({told}); give each a value for every row")
    return pa.table({str(name): to_column(columns[name]) for name in _distinct(columns, where)})


def _read_hub(name: str) -> Dataset:
    try:
        datasets = importlib.import_module("datasets")  # has no types
    except ImportError as error:
        raise DataError(
            f"there is no file or folder {name} here, and to look on the Hub needs the datasets package; "
            "check the path, or install it with: pip install 'halfpint[train]'"
        ) from error
    from huggingface_hub.errors import HfHubHTTPError

    # What else the Hub's HTTP library raises; that is not the same library in every version, but always this base.
    http_error = cast(type[Exception], HfHubHTTPError.__bases__[0])
    repository, _, config = name.partition(":")
    try:
        found = datasets.load_dataset(repository, config or None)
    except (http_error, OSError, ValueError) as error:
        raise DataError(
            f"{name} is no file or folder here, and cannot be had from the Hub ({reason(error)}); check the path or "
            "the name, or give a file"
        ) from error
    splits = {_split_name(str(split)): _plain(_from_hub(part), name) for split, part in found.items() if len(part)}
    if not splits:
        raise DataError(f"{name} has no rows on the Hub; check the name")
    return Dataset(repository.rpartition("/")[2], splits, dict.fromkeys(splits, f"{name} on the Hub"))


def _from_hub(part: Any) -> pa.Table:
    """A split of `datasets`, with the names of its labels in place of their numbers (none where that is -1)."""
    table = part.with_format("arrow")[:]
    for index, name in enumerate(table.column_names):
        labels = getattr(part.features.get(name), "names", None)
        if labels:
            numbers = table.column(index).to_pylist()
            texts = [None if number is None or number < 0 else str(labels[number]) for number in numbers]
            table = table.set_column(index, name, pa.array(texts, pa.string()))
    return table


def _a(value: object) -> str:
    return f"a value of type {type(value).__name__}"
