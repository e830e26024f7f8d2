"""Tables written to files, part by part in bounded memory: CSV, TSV, JSONL and Parquet, as `read` reads them.

What is notable:
- A part may have other columns than the next, or others of their types. All columns are told beforehand; a part has
  nulls in those that it lacks.
- Nested values are JSON in CSV and TSV, and nulls are empty.
- TSV has no quotes, so no value can hold a tab or a line break; such a row is refused.
- In JSONL and CSV values keep the type they have in their part. Parquet has one type a column, and where the types
  of two parts cannot be joined it is text, as in `read`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from halfpint.data.formats import to_texts
from halfpint.data.sources import DataError

QUOTED = re.compile('[",\r\n]')
UNFIT = "[\t\r\n]"
"""What a value in a TSV file cannot hold."""

GROUP_ROWS = 1 << 16
GROUP_BYTES = 64 << 20
"""A row group of a Parquet file is full at so many rows, or at so many bytes."""

Writer = Callable[[BinaryIO, pa.Schema, Iterable[pa.Table]], None]


def write_tables(path: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """All rows of all parts, in their order, in the form that the ending of the file says."""
    with path.open("wb") as file:
        WRITERS[path.suffix.lower()](file, schema, parts)


def form_of(path: Path, endings: Sequence[str]) -> str:
    """The ending that says in what form a file is to be written, one of these."""
    ending = path.suffix.lower()
    if ending not in endings:
        given = f"ends in {ending}" if ending else "has no ending"
        raise DataError(f"{path.name} {given}, and the form is told by it; give --out a name in {', '.join(endings)}")
    return ending


def join_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema of the parts of a file: every column that is in any, with a type that holds all of its values."""
    types: dict[str, list[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            kinds = types.setdefault(field.name, [])
            if field.type not in kinds:
                kinds.append(field.type)
    return pa.schema([(name, _join_types(kinds)) for name, kinds in types.items()])


def find_unfit(table: pa.Table) -> tuple[int, str] | None:
    """The first row with a value that no TSV file can hold, and its column."""
    for name in table.column_names:
        column = table[name]
        if pa.types.is_string(column.type) and len(rows := _where(pc.match_substring_regex(column, UNFIT))):
            return rows[0], name
    return None


def _where(mask: pa.ChunkedArray) -> list[int]:
    rows: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()
    return rows


def _join_types(types: Sequence[pa.DataType]) -> pa.DataType:
    try:
        joined = pa.unify_schemas([pa.schema([("it", kind)]) for kind in types], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()
    return pa.string() if _has_empty_struct(joined.types[0]) else joined.types[0]


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Objects without a key, which Parquet does not know."""
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return pa.types.is_nested(kind) and any(_has_empty_struct(kind.field(i).type) for i in range(kind.num_fields))


def _write_csv(file: BinaryIO, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    _write_lines(file, schema, parts, ",", _quoted)


def _write_tsv(file: BinaryIO, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    _write_lines(file, schema, parts, "\t", _without_tabs)


def _write_lines(
    file: BinaryIO, schema: pa.Schema, parts: Iterable[pa.Table], delimiter: str, field: Callable[[str], str]
) -> None:
    file.write(f"{delimiter.join(map(field, schema.names))}\n".encode())
    for part in parts:
        columns = [map(field, map(_as_text, values)) for values in _values(part, schema)]
        file.writelines(f"{delimiter.join(row)}\n".encode() for row in zip(*columns, strict=True))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if QUOTED.search(text) else text


def _without_tabs(text: str) -> str:
    if re.search(UNFIT, text):
        raise DataError(
            f"{text[:60]!r} has a tab or a line break in it, which no TSV file can hold; give --out a name in .csv, "
            ".jsonl or .parquet"
        )
    return text


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return _as_json(value) if isinstance(value, bool | list | dict) else str(value)


def _write_json_lines(file: BinaryIO, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    for part in parts:
        for row in zip(*_values(part, schema), strict=True):
            file.write(f"{_as_json(dict(zip(schema.names, row, strict=True)))}\n".encode())


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        # JSON has no NaN and no infinity.
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _values(part: pa.Table, schema: pa.Schema) -> list[list[Any]]:
    """The columns of the schema, as Python values."""
    there = set(part.column_names)
    return [part[name].to_pylist() if name in there else [None] * len(part) for name in schema.names]


def _write_parquet(file: BinaryIO, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for group in _groups(_fit(part, schema) for part in parts):
            writer.write_table(group, row_group_size=len(group))


def _fit(part: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema, in its order and of its types."""
    columns = []
    for field in schema:
        if field.name not in part.column_names:
            columns.append(pa.chunked_array([pa.nulls(len(part), field.type)]))
            continue
        column = part[field.name]
        if column.type != field.type and pa.types.is_string(field.type):
            column = pa.chunked_array([to_texts(column.to_pylist())])
        # `cast` knows no structs with other fields; joining tables does.
        alone = [pa.table({field.name: each}) for each in (pa.array([], field.type), column)]
        columns.append(pa.concat_tables(alone, promote_options="permissive")[field.name])
    return pa.table(columns, schema=schema)


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables: as many as make a row group."""
    waiting: list[pa.Table] = []
    for table in chain(tables, [None]):
        is_full = sum(map(len, waiting)) >= GROUP_ROWS or sum(each.nbytes for each in waiting) >= GROUP_BYTES
        if waiting and (table is None or is_full):
            yield pa.concat_tables(waiting)
            waiting = []
        if table is not None:
            waiting.append(table)


WRITERS: dict[str, Writer] = {
    ".csv": _write_csv, ".tsv": _write_tsv, ".jsonl": _write_json_lines, ".parquet": _write_parquet,
}  # fmt: skip
"""By the ending of the file."""
