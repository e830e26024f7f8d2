"""Rows of CSV and TSV files, block by block, also compressed; and what is wrong with one, by the number of its line.

Every value stays the text that it is ("NA", "001", "1e5"): what a column means is the task's to say.

pyarrow parses. It does not count lines, though, and it takes a quote that is never closed for a field that runs on to
the end of the file, without a word. So the quotes are watched as the bytes pass, and a file that is refused or looks
wrong is read once more, slowly, by the csv module, which knows the line.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

READ_AHEAD_SECONDS = 0.05
"""In which a thread that is about to read comes to it."""
BLOCK_SIZES = (4 << 20, 64 << 20, 1 << 30)
"""Bytes parsed at a time. No row may be longer than its block, so the larger ones are for files with such rows."""
LONGEST_FIELD = 256 << 20


class DataError(ValueError):
    """Data that cannot be read or used; the message says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Dialect:
    """How the fields of a line are told apart: by RFC 4180 with its quotes, or by the delimiter alone."""

    name: str
    delimiter: str
    quoted: bool


CSV = Dialect("CSV", ",", quoted=True)
TSV = Dialect("TSV", "\t", quoted=False)


def _open_plain(path: Path) -> BinaryIO:
    return path.open("rb")


def _open_zstd(path: Path) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(pa.input_stream(str(path), compression="zstd"), 1 << 20))


Opener = Callable[[Path], BinaryIO]
OPENERS = {
    ".gz": cast(Opener, gzip.open),
    ".bz2": cast(Opener, bz2.open),
    ".xz": cast(Opener, lzma.open),
    ".zst": _open_zstd,
}
"""How a compressed file is opened, by its last ending."""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed by its ending; what goes wrong in the body while reading them, in words."""
    try:
        with OPENERS.get(path.suffix.lower(), _open_plain)(path) as file:
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.strerror is None:  # of the decompressors, not of the system
            raise _damaged(path, error) from error
        raise DataError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be decompressed ({error}); it is damaged or cut short, copy it again")


def read_delimited(path: Path, dialect: Dialect, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file in blocks, every column as strings; `columns` names those of a file without a header."""
    names = _header(path, dialect) if columns is None else _headerless(path, dialect, columns)
    # To the parser a header is a row like the others. (What it skips it counts by lines, blank ones too.)
    first_row = int(columns is None)
    num_rows = first_row
    for block_size in BLOCK_SIZES:
        start = 0
        try:
            for table in _parse(path, dialect, names, block_size):
                stop = start + len(table)
                if stop > num_rows:  # else it was yielded before a longer block was needed
                    yield table.slice(max(num_rows - start, 0))
                    num_rows = stop
                start = stop
        except pa.ArrowInvalid as error:
            if problem := _find_problem(path, dialect, names):
                raise problem from error
            if "straddling" not in str(error) or block_size == BLOCK_SIZES[-1]:
                raise DataError(f"{path} cannot be read as {dialect.name}: {reason(error)}") from error
        else:
            break
    if num_rows == first_row:
        raise DataError(f"{path} has a header ({', '.join(names)}) and no rows below it")


def _parse(path: Path, dialect: Dialect, names: list[str], block_size: int) -> Iterator[pa.Table]:
    with open_bytes(path) as file, closing(_Watched(file, dialect)) as source:
        suspicious = False
        with pa_csv.open_csv(
            source,
            read_options=pa_csv.ReadOptions(column_names=names, block_size=block_size),
            parse_options=pa_csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char='"' if dialect.quoted else False,
                double_quote=dialect.quoted,
                escape_char=False,
                newlines_in_values=dialect.quoted,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        ) as reader:
            for batch in reader:
                if source.suspicious and not suspicious:
                    suspicious = True
                    if problem := _find_problem(path, dialect, names):
                        raise problem
                yield pa.Table.from_batches([batch])


class _Watched(io.RawIOBase):
    """Passes the bytes of a file on to the parser, which reads ahead in a thread of its own.

    Where the parser is left before the end of the file, that thread may be about to read, and a process that ended
    meanwhile would be aborted; so `close` waits for it.

    Of CSV it notices whether quotes stand where RFC 4180 wants them. Of all quotes in their order, every other one
    opens: it follows a delimiter, a line's end or a quote (an inner quote is written as two). Each of the rest closes
    and is followed by one of these.
    """

    def __init__(self, file: BinaryIO, dialect: Dialect) -> None:
        self.suspicious = False
        self._file, self._quoted = file, dialect.quoted
        self._reading, self._ended = threading.Lock(), False
        self._neighbour = np.zeros(256, dtype=bool)
        self._neighbour[[ord(character) for character in f'{dialect.delimiter}\r\n"']] = True
        self._odd = False
        # The last two bytes seen: the second is judged when the one after it is known.
        self._held = b"\n"

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        with self._reading:
            if self._ended:
                return b""
            data = self._file.read(-1 if size is None else size)
            self._ended = not data
        if self._quoted:
            self._watch(data or b"\n")
            if not data and self._odd:
                self.suspicious = True
        return data

    def close(self) -> None:
        with self._reading:
            was_left, self._ended = not self._ended, True
        if was_left:
            time.sleep(READ_AHEAD_SECONDS)
        super().close()

    def _watch(self, data: bytes) -> None:
        text = np.frombuffer(self._held + data, dtype=np.uint8)
        quotes = np.flatnonzero(text[1:-1] == ord('"')) + 1
        opens, closes = (quotes[1::2], quotes[::2]) if self._odd else (quotes[::2], quotes[1::2])
        if not (self._neighbour[text[opens - 1]].all() and self._neighbour[text[closes + 1]].all()):
            self.suspicious = True
        self._odd ^= len(quotes) % 2 == 1
        self._held = text[-2:].tobytes()


def _header(path: Path, dialect: Dialect) -> list[str]:
    _, first = _first_record(path, dialect)
    names = [name.strip() or f"column {number}" for number, name in enumerate(first, 1)]
    require_distinct(names, path)
    separator = next((mark for mark in ";\t," if len(names) == 1 and mark in names[0]), None)
    if separator:
        raise DataError(
            f"{path} has one column, {names[0]!r}, which looks like several with {separator!r} between them; "
            "a .csv file is separated by commas, a .tsv file by tabs"
        )
    return names


def _headerless(path: Path, dialect: Dialect, columns: Sequence[str]) -> list[str]:
    line, first = _first_record(path, dialect)
    names = list(columns)
    if len(first) != len(names):
        raise DataError(
            f"{path}, line {line} has {_count(first, 'field')}, but {len(names)} columns were named "
            f"({', '.join(names)}); name every column, or leave the names out where the file has a header"
        )
    if [field.strip() for field in first] == names:
        raise DataError(f"{path} has these very names as its header ({', '.join(names)}); leave the names out")
    return names


def require_distinct(names: Sequence[str], where: object) -> None:
    """Refuse two columns of one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where} has {_count(twice, 'column name')} twice ({', '.join(twice)}); rename one of each")


def _first_record(path: Path, dialect: Dialect) -> tuple[int, list[str]]:
    with closing(_records(path, dialect)) as records:
        first = next(records, None)
    if first is None:
        raise DataError(f"{path} is empty; expected rows of {dialect.name}")
    return first


def _find_problem(path: Path, dialect: Dialect, names: list[str]) -> DataError | None:
    """What is wrong with a file, by a slow look at every line of it."""
    try:
        with closing(_records(path, dialect)) as records:
            for line, fields in records:
                if len(fields) != len(names):
                    hint = "a field with a comma in it stands in double quotes" if dialect is CSV else "look for tabs"
                    return DataError(
                        f"{path}, line {line} has {_count(fields, 'field')}, expected {len(names)} "
                        f"({', '.join(names)}); {hint}"
                    )
    except DataError as error:
        return error
    return None


def _records(path: Path, dialect: Dialect) -> Generator[tuple[int, list[str]], None, None]:
    """Every row that is not blank, with the number of the line in which it begins."""
    limit = csv.field_size_limit(LONGEST_FIELD)  # the module has but one, for all
    line = 1
    try:
        with open_lines(path) as lines:
            reader = csv.reader(
                lines,
                delimiter=dialect.delimiter,
                quoting=csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE,
                strict=True,
            )
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: the row that begins here has a quoted field that is not closed as it should be "
            f"({error}); quotes inside a quoted field are written twice"
        ) from error
    finally:
        csv.field_size_limit(limit)


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, with their ends as they are and without a byte-order mark; UTF-8 or refused."""
    with (
        open_bytes(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        yield _unicode_lines(path, text)


def _unicode_lines(path: Path, text: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(text, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            raise not_utf8(path, number, ord(line[error.start]) - 0xDC00) from error
        yield line


def not_utf8(path: Path, line: int, byte: int) -> DataError:
    return DataError(f"{path}, line {line} is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8")


def _count(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def reason(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).splitlines() or [type(error).__name__])[0]
