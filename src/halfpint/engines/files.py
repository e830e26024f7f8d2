"""Files of any size, answered or embedded: in bounded memory, in the order of their rows, going on where a run ended.

What is notable:
- A file is looked over first, which costs little beside the answers: how many rows there are, and whether every one can
  be answered. So a broken row is refused at once and not after hours, by its number: from 1, a header not counted.
- What comes out is the file's own columns and behind them the answers. A column of the file that has the name of an
  answer (`prediction`) comes out as `input_prediction`, so that a name means the same in every output.
- Values lie in pieces (`pieces.py`) until all are there, so the disk holds what is written twice for a while.
- Other sizes of blocks may change answers in their last digits, as any other batch does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from os.path import realpath
from pathlib import Path
from typing import Any

import pyarrow as pa

from halfpint.config import Precision
from halfpint.data.asked import Check, check_text, checks_of, find_bad_rows, match_columns, rename_columns
from halfpint.data.columns import find_columns
from halfpint.data.delimited import OPENERS
from halfpint.data.glue import require_submission, submission_of
from halfpint.data.sources import DataError, read_batches
from halfpint.data.write import find_unfit, form_of, join_schemas, write_tables
from halfpint.engines.device import ready
from halfpint.engines.identity import hash_model
from halfpint.engines.model import Model
from halfpint.engines.pieces import Piece, Pieces, Watch, beside, open_pieces
from halfpint.engines.vectors import EMBEDDING, to_column, without_columns, write_npy

VERSION = 1
"""One more whenever the same job gives something else, so that old pieces are not joined with new ones."""

ROWS_AT_ONCE = 4096
"""Rows of a block: what is in memory at a time, and what is lost where a run is ended."""

FIRST_ROWS = 256

PREDICTIONS = (".csv", ".tsv", ".jsonl", ".parquet")
EMBEDDINGS = (".npy", ".parquet")
BEGINNING = 1 << 20
"""So many bytes of a file tell it from others, with its size and when it was changed."""

Name = str | PathLike[str]
Answer = Callable[[pa.Table], tuple[pa.Table, int]]
"""What is made of rows with the columns of the task: one row each, and how many rows were cut."""


@dataclass(frozen=True)
class Written:
    """What was written, and what is to be told about it."""

    path: Path
    num_rows: int
    num_resumed: int
    """Rows that an earlier run had done."""
    num_cut: int
    """Rows that were too long and lost their ends."""
    num_bad: int
    """Rows that have nothing to answer, and so no answer."""
    columns: Mapping[str, str]
    """By the name that the model has for a column, the file's column that was read for it."""
    renamed: Mapping[str, str]
    """Columns of the file that have the name of an answer, and what they are called in the output."""


def predict(
    model: Model | Name,
    path: Name,
    out: Name | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    text: str | None = None,
    pair: str | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    glue: bool = False,
    rows_at_once: int = ROWS_AT_ONCE,
    skip_bad: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Written:
    """Write a file's rows with the model's answers: .csv, .tsv, .jsonl or .parquet, as `out` ends.

    Without `out` it is NAME.predictions.csv beside the file. `columns` names those of a file without a header, `text`
    and `pair` say which are read, where the names do not tell. A row that has nothing to answer (an empty text, no
    text) is refused; with `skip_bad` its answers are empty. `glue` writes a submission to GLUE instead.
    """
    ready_model = ready(model, device, precision)
    task, _ = ready_model.require_task()
    source = _Source.of(path, columns, rows_at_once)
    target = _target(source, out, PREDICTIONS, overwrite)
    if glue:
        require_submission(task, target.name)
        if skip_bad:
            raise DataError("a submission to GLUE has an answer to every row; leave --skip-bad (skip_bad) out")

    def choose(first: pa.Table) -> dict[str, str]:
        return match_columns(task, first, text=text, pair=pair)

    asked = _look_over(source, choose, checks_of(task), skip_bad=skip_bad, target=target)
    if glue:

        def submit(block: pa.Table) -> tuple[pa.Table, int]:
            answers, num_cut = ready_model.answer_and_count(block)
            return submission_of(task, answers), num_cut

        return _write(asked, target, asked.job("glue", ready_model), submit, without_columns, _join_submission, watch)
    job = asked.job("predict", ready_model)
    return _write(asked, target, job, ready_model.answer_and_count, lambda block: block, _join_rows, watch)


def embed(
    model: Model | Name,
    path: Name,
    out: Name,
    *,
    columns: str | Sequence[str] | None = None,
    text: str | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
    skip_bad: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Written:
    """Write a vector for each row of a file: to .npy all of them, (rows, dimensions); to .parquet beside its columns.

    With `skip_bad` a row without a text has zeros in .npy, and nothing in the column `embedding` of .parquet.
    """
    ready_model = ready(model, device, precision)
    source = _Source.of(path, columns, rows_at_once)
    target = _target(source, out, EMBEDDINGS, overwrite)

    def choose(first: pa.Table) -> dict[str, str]:
        return {"text": find_columns(first.column_names, text=text, table=first).text}

    def answer(asked: pa.Table) -> tuple[pa.Table, int]:
        vectors, num_cut = ready_model.embed_and_count(asked["text"].to_pylist())
        return pa.table({EMBEDDING: to_column(vectors)}), num_cut

    asked = _look_over(source, choose, {"text": check_text}, skip_bad=skip_bad, target=target)
    job = asked.job("embed", ready_model)
    if target.suffix.lower() == ".npy":
        return _write(asked, target, job, answer, without_columns, _join_vectors, watch)
    return _write(asked, target, job, answer, lambda block: block, _join_rows, watch)


@dataclass(frozen=True)
class _Source:
    """A file, and what tells it from others."""

    path: Path
    columns: str | Sequence[str] | None
    rows_at_once: int
    stamp: Mapping[str, Any]

    @classmethod
    def of(cls, path: Name, columns: str | Sequence[str] | None, rows_at_once: int) -> _Source:
        file = Path(path).expanduser()
        next(read_batches(file, columns=columns, rows=rows_at_once))  # in words where there is no such file
        return cls(file, columns, rows_at_once, _stamp(file))

    def blocks(self) -> Iterator[pa.Table]:
        """All rows; the first few come first, so that it is soon known how long the rest takes."""
        for number, block in enumerate(read_batches(self.path, columns=self.columns, rows=self.rows_at_once)):
            if number == 0:
                yield block.slice(0, FIRST_ROWS)
                block = block.slice(FIRST_ROWS)
            if len(block):
                yield block

    def require_unchanged(self, num_rows: int, expected: int) -> None:
        if num_rows != expected or _stamp(self.path) != self.stamp:
            raise DataError(f"{self.path} was changed while it was read; run the same again")


def _stamp(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
        with path.open("rb") as file:
            begins = hashlib.blake2b(file.read(BEGINNING), digest_size=16).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the file and its permissions") from error
    return {"bytes": status.st_size, "changed": status.st_mtime_ns, "begins": begins}


def _target(source: _Source, out: Name | None, endings: Sequence[str], overwrite: bool) -> Path:
    """Where to write, if one may; beside the file where nothing is said."""
    path = source.path.with_name(f"{_stem(source.path)}.predictions.csv") if out is None else Path(out).expanduser()
    form_of(path, endings)
    # A link is followed: what it points to is replaced, and the link stays.
    target = Path(realpath(path))
    if target.is_dir():
        raise DataError(f"{path} is a folder; give --out the name of a file")
    if target.exists() and target.samefile(source.path):
        raise DataError(f"{path} is the file that is read; give another --out")
    if target.exists() and not overwrite:
        raise DataError(f"{path} is there already; give another --out, or --overwrite (overwrite=True) to replace it")
    return target


def _stem(path: Path) -> str:
    """The name of a file without the endings of its form."""
    return (path.with_suffix("") if path.suffix.lower() in OPENERS else path).stem


@dataclass(frozen=True)
class _Asked:
    """A file that was looked over: all of its rows can be answered, or may be passed over."""

    source: _Source
    matched: Mapping[str, str]
    checks: Mapping[str, Check]
    skip_bad: bool
    num_rows: int

    def job(self, verb: str, model: Model) -> dict[str, Any]:
        """All that decides what comes out."""
        return {
            "version": VERSION,
            "model": hash_model(model),
            "input": self.source.stamp,
            "settings": [verb, self.source.columns, self.matched, self.skip_bad],
        }

    def piece(self, block: pa.Table, first_row: int, answer: Answer, keep: Callable[[pa.Table], pa.Table]) -> Piece:
        """A block with its answers; rows that are passed over have nulls."""
        table = rename_columns(block, self.matched)
        bad = find_bad_rows(table, self.checks)
        good = [row for row in range(len(table)) if row not in bad]
        answers, num_cut = pa.table({}), 0
        if good:
            try:
                answers, num_cut = answer(table.take(good) if bad else table)
            except DataError as error:
                raise DataError(
                    f"of rows {first_row + 1:,} to {first_row + len(block):,} of {self.source.path}: {error}"
                ) from error
        if good and bad:
            places = dict(zip(good, range(len(good)), strict=True))
            answers = answers.take(pa.array([places.get(row) for row in range(len(table))], pa.int64()))
        return Piece(keep(block), answers, {"cut": num_cut, "bad": len(bad)})


def _look_over(
    source: _Source,
    choose: Callable[[pa.Table], dict[str, str]],
    checks: Mapping[str, Check],
    *,
    skip_bad: bool,
    target: Path,
) -> _Asked:
    """Read the whole file once: refuse it now if it cannot be answered, or if the form of the output cannot hold it."""
    matched: dict[str, str] = {}
    num_rows = num_bad = 0
    for block in source.blocks():
        matched = matched or choose(block)
        for row, problem in find_bad_rows(rename_columns(block, matched), checks).items():
            if not skip_bad:
                raise DataError(
                    f"row {num_rows + row + 1:,} of {source.path} {problem}; mend it, or pass over such rows "
                    "(--skip-bad, skip_bad=True)"
                )
            num_bad += 1
        if target.suffix.lower() == ".tsv" and (unfit := find_unfit(block)):
            raise DataError(
                f"row {num_rows + unfit[0] + 1:,} of {source.path} has a tab or a line break in its {unfit[1]}, which "
                "no TSV file can hold; give --out a name in .csv, .jsonl or .parquet"
            )
        num_rows += len(block)
    if num_bad == num_rows:
        raise DataError(f"no row of {source.path} can be answered: none has a text in {', '.join(matched.values())}")
    return _Asked(source, matched, checks, skip_bad, num_rows)


def _write(
    asked: _Asked,
    target: Path,
    job: Mapping[str, Any],
    answer: Answer,
    keep: Callable[[pa.Table], pa.Table],
    join: Callable[[Pieces], dict[str, str]],
    watch: Watch | None,
) -> Written:
    with open_pieces(target, job) as pieces:
        num_resumed = pieces.num_rows
        pieces.fill(
            asked.source.blocks(), lambda block, row: asked.piece(block, row, answer, keep), asked.num_rows, watch
        )
        asked.source.require_unchanged(pieces.num_rows, asked.num_rows)
        renamed = join(pieces)
    counts = pieces.counts
    return Written(target, pieces.num_rows, num_resumed, counts["cut"], counts["bad"], asked.matched, renamed)


def _join_rows(pieces: Pieces) -> dict[str, str]:
    """The file's columns, then the answers'."""
    given, answers = map(join_schemas, pieces.schemas())
    renamed = beside(given, answers)

    def tables() -> Iterator[pa.Table]:
        for part, answered in pieces.tables():
            names = [renamed.get(name, name) for name in part.column_names]
            yield pa.table([*part.columns, *answered.columns], names=[*names, *answered.column_names])

    schema = pa.schema([*(field.with_name(renamed.get(field.name, field.name)) for field in given), *answers])
    pieces.join(lambda path: write_tables(path, schema, tables()))
    return renamed


def _join_submission(pieces: Pieces) -> dict[str, str]:
    """Numbered answers, and nothing else."""

    def tables() -> Iterator[pa.Table]:
        first = 0
        for _, answered in pieces.tables():
            numbers = pa.array(range(first, first + len(answered)), pa.int64())
            yield pa.table({"index": numbers, **{name: answered[name] for name in answered.column_names}})
            first += len(answered)

    schema = pa.schema([("index", pa.int64()), *pieces.schemas()[1][0]])
    pieces.join(lambda path: write_tables(path, schema, tables()))
    return {}


def _join_vectors(pieces: Pieces) -> dict[str, str]:
    pieces.join(lambda path: write_npy(path, pieces))
    return {}
