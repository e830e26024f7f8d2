"""Documents, one after the other, in bounded memory: of files, folders of files, the Hub, or any strings.

What is notable:
- A row of JSONL, Parquet, CSV or of a data set of the Hub is a document. In a text file blank lines part documents, as
  in BERT's release; in one without a blank line near its beginning every line is a document.
- The order is that of the files by name, and of the rows in them: the same source gives the same documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

from halfpint.data.columns import find_columns
from halfpint.data.delimited import DataError, not_utf8, open_bytes
from halfpint.data.hub import stream_hub
from halfpint.data.sources import is_readable, read_batches

SAMPLE_BYTES = 1 << 20
"""By so much of a text file is it told what parts its documents."""
ROWS_AT_ONCE = 1000

Source = str | PathLike[str] | Iterable[str]


def read_documents(source: Source | Sequence[PathLike[str]], *, text: str | None = None) -> Iterator[str]:
    """All documents of a file, a folder, a Hub name (`name:config`), several files, or an iterable of strings.

    `text` names the column, where there are several that might be it. An empty document is an empty string.
    """
    if isinstance(source, str | PathLike):
        place = Path(source).expanduser()
        if place.exists():
            for file in _files(place):
                yield from _of_file(file, text)
        else:
            yield from _of_hub(str(source), text)
        return
    for each in source:
        if isinstance(each, PathLike):
            yield from read_documents(each, text=text)
        elif isinstance(each, str):
            yield each
        else:
            raise DataError(f"a document is {each!r}, a {type(each).__name__}; give texts, or paths of files")


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    found = sorted(path for path in place.rglob("*") if path.is_file() and is_readable(path))
    if not found:
        raise DataError(f"{place} has no files with text in them; expected .txt, .jsonl, .parquet or .csv")
    return found


def _of_file(path: Path, text: str | None) -> Iterator[str]:
    if ".txt" in path.suffixes[-2:]:
        yield from _of_text(path)
        return
    column = None
    for table in read_batches(path, rows=ROWS_AT_ONCE):
        column = column or find_columns(table.column_names, text=text, table=table).text
        if column not in table.column_names:
            raise DataError(f"{path} has rows without the column {column}; it has {', '.join(table.column_names)}")
        for value in table[column].to_pylist():
            if value is not None and not isinstance(value, str):
                raise DataError(f"{path} has {value!r} in its column {column}, expected a text")
            yield value or ""


def _of_text(path: Path) -> Iterator[str]:
    parted = _has_blank_line(path)
    lines: list[str] = []
    for line in _lines(path):
        if not parted:
            yield line
        elif line.strip():
            lines.append(line)
        elif lines:
            yield "\n".join(lines)
            lines = []
    if lines:
        yield "\n".join(lines)


def _has_blank_line(path: Path) -> bool:
    with open_bytes(path) as file:
        sample = file.read(SAMPLE_BYTES)
    return any(not line.strip() for line in sample.splitlines())


def _lines(path: Path) -> Iterator[str]:
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, line[error.start]) from error


def _of_hub(name: str, text: str | None) -> Iterator[str]:
    column = None
    for row in stream_hub(name):
        column = column or find_columns(list(row), text=text).text
        yield row[column] or ""
