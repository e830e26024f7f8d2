"""A long output made block by block: what is finished stays, and a run that was ended goes on behind it.

Beside OUT lies the folder OUT.pieces: `job.json` says what is made of what, and each block of rows that is done is an
Arrow file, named by its first row and written whole or not at all. At the end the pieces are joined into one file that
takes the place of OUT, and the folder goes. Pieces of another job (another model, a file that was changed) are removed,
with a word.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from halfpint.artifact import hold_folder
from halfpint.data.sources import DataError

JOB = "job.json"
JOINED = "joined"
UNFINISHED = "unfinished"
ENDING = ".arrow"
OURS = re.compile(rf"{JOB}|{UNFINISHED}|{JOINED}(\.\w+)?|\d{{12}}\{ENDING}")

Watch = Callable[[int, int], None]
"""Is told how many rows are done, and of how many."""


@dataclass(frozen=True)
class Piece:
    """A block of rows: what was read, what was answered, and what is to be counted over all."""

    given: pa.Table
    answers: pa.Table
    """As many rows as `given`, if it has any columns at all."""
    counts: Mapping[str, int] = field(default_factory=dict)


class Pieces:
    """The finished blocks of one output, in the order of their rows."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.num_rows = 0
        self.counts: dict[str, int] = {}
        self.paths: list[Path] = []
        while (path := self._path(self.num_rows)).is_file():
            try:
                facts = _facts(path)
            except (pa.ArrowInvalid, KeyError, ValueError):
                # Cut short where the power failed: it is done again, and those after it.
                break
            self._count(path, facts)
        for path in set(folder.glob(f"*{ENDING}")) - set(self.paths):
            path.unlink()

    def fill(
        self,
        blocks: Iterable[pa.Table],
        work: Callable[[pa.Table, int], Piece],
        total: int,
        watch: Watch | None = None,
    ) -> None:
        """Do the work on every row that was not done before; `work` is told the number of its first row."""
        tell = watch or (lambda done, of: None)
        tell(self.num_rows, total)
        row = 0
        for block in blocks:
            done = min(max(self.num_rows - row, 0), len(block))
            row += len(block)
            if done < len(block):
                self._add(work(block.slice(done), self.num_rows))
                tell(self.num_rows, total)

    def schemas(self) -> tuple[list[pa.Schema], list[pa.Schema]]:
        """Of all pieces: the columns that were given, and those of the answers."""
        given, answers = zip(*(_split_schema(_schema(path)) for path in self.paths), strict=True)
        return list(given), list(answers)

    def tables(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """All rows, a piece at a time."""
        for path in self.paths:
            with path.open("rb") as file, pa.ipc.open_file(file) as reader:
                table, num_given = reader.read_all(), len(_split_schema(reader.schema)[0])
            names = range(table.num_columns)
            yield table.select(names[:num_given]), table.select(names[num_given:])

    def join(self, write: Callable[[Path], None]) -> None:
        """Write the whole to a path, put it in place of the output, and remove the pieces."""
        joined = self.folder / f"{JOINED}{self.out.suffix}"
        try:
            with explained(self.folder):
                write(joined)
                _sync(joined)
                os.replace(joined, self.out)
                _sync(self.out.parent)
        finally:
            joined.unlink(missing_ok=True)
        with suppress(OSError):  # the output is in place: nothing may fail any more
            shutil.rmtree(self.folder)

    def _path(self, first_row: int) -> Path:
        return self.folder / f"{first_row:012d}{ENDING}"

    def _add(self, piece: Piece) -> None:
        path = self._path(self.num_rows)
        num_rows = max(len(piece.given), len(piece.answers))
        facts = {"rows": num_rows, "given": piece.given.num_columns, "counts": dict(piece.counts)}
        columns = [*piece.given.columns, *piece.answers.columns]
        schema = pa.schema([*piece.given.schema, *piece.answers.schema], {"facts": json.dumps(facts)})
        with explained(self.folder):
            _write(path, lambda file: _write_table(file, pa.table(columns, schema=schema)))
        self._count(path, facts)

    def _count(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.paths.append(path)
        self.num_rows += facts["rows"]
        for name, count in facts["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + count


@contextmanager
def open_pieces(out: Path, job: Mapping[str, Any]) -> Iterator[Pieces]:
    """What an earlier run of the same job has finished, for this process alone; the folder is made where it is not.

    `job` is all that decides what comes out, in words by which a difference can be told.
    """
    folder = out.with_name(f"{out.name}.pieces")
    with hold_folder(folder) as held:
        if not held:
            raise DataError(f"another process is writing {out}; wait for it, or write elsewhere")
        with explained(folder):
            _settle(folder, json.loads(json.dumps(job)))
        yield Pieces(folder, out)


def _settle(folder: Path, job: Mapping[str, Any]) -> None:
    """Leave the folder as this job needs it: its own pieces, or none."""
    before = _read_job(folder / JOB)
    if before is None and folder.exists() and (folder.is_file() or any(_strangers(folder))):
        raise DataError(f"{folder} is in the way, and no run of this kind has made it; move it, or give another --out")
    if before == job:
        return
    if before is not None:
        other = ", ".join(name for name in job if before.get(name) != job[name]) or "job"
        warnings.warn(f"{folder} was left by a run that differs in its {other}; starting anew", stacklevel=2)
        # First of all, so that pieces which are left in a crash are never taken for those of this job.
        (folder / JOB).unlink()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    _write(folder / JOB, lambda file: file.write(json.dumps(job, indent=2).encode()))


def _strangers(folder: Path) -> Iterator[Path]:
    """What this module does not write. (Without its job, a folder may be what a crash left of one.)"""
    return (each for each in folder.iterdir() if not OURS.fullmatch(each.name))


def _read_job(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """The file is there whole, also after a loss of power, or not at all."""
    unfinished = path.with_name(UNFINISHED)
    with unfinished.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _write_table(file: BinaryIO, table: pa.Table) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)


def _schema(path: Path) -> pa.Schema:
    with path.open("rb") as file, pa.ipc.open_file(file) as reader:
        return reader.schema


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((_schema(path).metadata or {})[b"facts"])
    return facts


def _split_schema(schema: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
    num_given = json.loads(schema.metadata[b"facts"])["given"]
    fields = list(schema)
    return pa.schema(fields[:num_given]), pa.schema(fields[num_given:])


def beside(given: pa.Schema, answers: pa.Schema) -> dict[str, str]:
    """New names for those columns that were given and have the name of an answer: `input_NAME`."""
    taken = {*given.names, *answers.names}
    renamed = {}
    for name in given.names:
        if name in answers.names:
            new = f"input_{name}"
            while new in taken:
                new = f"input_{new}"
            taken.add(new)
            renamed[name] = new
    return renamed


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What the system refuses, in words."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.strerror or error} while writing in {folder}; what was done so far is kept there: free some space "
            "or mend it, and run the same again, and it goes on from there"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
