"""`predict`, `embed` and `search`: a model over files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from halfpint.cli.frame import AsJson, Estimate, app, err, out
from halfpint.engines.requirements import require_torch

if TYPE_CHECKING:
    from halfpint.engines.files import Written
    from halfpint.engines.search import Hit, Index

Artifact = Annotated[str, typer.Argument(metavar="ARTIFACT", help="An artifact, a Hub-layout folder or a Hub name.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="CSV, TSV, JSONL, Parquet or plain lines, also packed.")]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names for a file without a header: label,text")]
TextColumnName = Annotated[str | None, typer.Option("--text", help="The column of the text.")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column of a second text.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default a GPU, where there is one.")]
PrecisionName = Annotated[
    str | None, typer.Option("--precision", help="fp32 or bf16; by default bf16 on a GPU, fp32 on a CPU.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Give rows without a text no answer, and go on.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file at --out.")]

WIDEST_TEXT = 200


@app.command()
def predict(
    artifact: Artifact,
    file: File,
    out_file: Annotated[
        Path | None, typer.Option("--out", help=".csv, .tsv, .jsonl or .parquet; by default NAME.predictions.csv.")
    ] = None,
    columns: ColumnNames = None,
    text: TextColumnName = None,
    pair: PairColumn = None,
    device: Device = None,
    precision: PrecisionName = None,
    skip_bad: SkipBad = False,
    glue: Annotated[bool, typer.Option("--glue", help="Write a submission to GLUE: --out RTE.tsv.")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Answer every row of a file: its columns, and behind them labels, scores, tags or spans.

    A run that was stopped goes on when the same command is given again.
    """
    require_torch("predicting")
    from halfpint.engines.files import predict as run

    with _row_progress("rows") as watch:
        done = run(
            artifact,
            file,
            out_file,
            columns=columns,
            text=text,
            pair=pair,
            device=device,
            precision=precision,  # type: ignore[arg-type]  # checked there
            skip_bad=skip_bad,
            glue=glue,
            overwrite=overwrite,
            watch=watch,
        )
    _print_written(done, "answered", as_json=as_json)


@app.command()
def embed(
    artifact: Artifact,
    file: File,
    out_file: Annotated[Path, typer.Option("--out", help=".npy (vectors alone), or .parquet (beside the columns).")],
    columns: ColumnNames = None,
    text: TextColumnName = None,
    device: Device = None,
    precision: PrecisionName = None,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make a vector of every text of a file.

    A run that was stopped goes on when the same command is given again.
    """
    require_torch("embedding")
    from halfpint.engines.files import embed as run

    with _row_progress("rows") as watch:
        done = run(
            artifact,
            file,
            out_file,
            columns=columns,
            text=text,
            device=device,
            precision=precision,  # type: ignore[arg-type]
            skip_bad=skip_bad,
            overwrite=overwrite,
            watch=watch,
        )
    _print_written(done, "embedded", as_json=as_json)


@app.command()
def search(
    artifact: Artifact,
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="A file of texts; it is embedded once.")],
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY…]", help="What to look for; without any, lines are read.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many texts to find.")] = 10,
    columns: ColumnNames = None,
    text: TextColumnName = None,
    device: Device = None,
    precision: PrecisionName = None,
    as_json: AsJson = False,
) -> None:
    """Find the texts that are nearest to a query by what they mean.

    The vectors of a corpus are kept: the first search takes long, the next ones do not.
    """
    require_torch("searching")
    from halfpint.engines.device import ready
    from halfpint.engines.search import index_texts

    if k < 1:
        raise ValueError(f"-k is {k}; it must be at least 1")
    with _row_progress("texts") as watch:
        model = ready(artifact, device, precision)  # type: ignore[arg-type]
        texts = index_texts(model, corpus, columns=columns, text=text, watch=watch)
    if as_json:
        asked = list(queries or _lines())
        print(json.dumps([_as_dict(*each) for each in _found(texts, asked, k)], indent=2, ensure_ascii=False))
        return
    if texts.num_cut:
        err.print(Text(f"{texts.num_cut:,} texts of the corpus were cut to fit the length", style="dim"))
    for query in queries or _lines():
        for _, hits in _found(texts, [query], k):
            out.print(Text(query, style="bold"))
            out.print(_hits_table(hits))


def _lines() -> Iterator[str]:
    """Queries from a pipe or from the keyboard; blank lines count for nothing."""
    if sys.stdin.isatty():
        err.print(Text("a query a line; Ctrl-D ends", style="dim"))
    return (line.strip() for line in sys.stdin if line.strip())


def _found(texts: Index, queries: Sequence[str], k: int) -> Iterable[tuple[str, list[Hit]]]:
    return zip(queries, texts.search(queries, k), strict=True) if queries else ()


def _as_dict(query: str, hits: list[Hit]) -> dict[str, Any]:
    return {"query": query, "hits": [asdict(hit) for hit in hits]}


def _hits_table(hits: Sequence[Hit]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for hit in hits:
        shown = " ".join(hit.text.split())
        shown = shown if len(shown) <= WIDEST_TEXT else f"{shown[:WIDEST_TEXT]} …"
        table.add_row(f"{hit.score:.3f}", f"row {hit.index + 1:,}", Text(shown))
    return table


def _print_written(done: Written, verb: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(done), "path": str(done.path)}, indent=2))
        return
    for note in _notes(done):
        out.print(Text(note, style="dim"), soft_wrap=True)
    out.print(Text(f"{done.num_rows - done.num_bad:,} rows {verb}; they are in {done.path}"), soft_wrap=True)


def _notes(done: Written) -> Iterator[str]:
    if done.num_resumed:
        yield f"{done.num_resumed:,} rows had been done by an earlier run"
    for name, column in done.columns.items():
        if name != column:
            yield f"the column {column} was read as {name}"
    for name, new in done.renamed.items():
        yield f"the column {name} of the file is called {new} in the output"
    if done.num_cut:
        yield f"{done.num_cut:,} rows were cut to fit the length"
    if done.num_bad:
        yield f"{done.num_bad:,} rows have no text, and so no answer"


@contextmanager
def _row_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over the rows, with the time that is left; nothing where nobody watches."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    bars: list[Any] = []
    estimate = Estimate()

    def watch(done: int, total: int) -> None:
        if not bars:
            bars.append(progress.add_task(what, total=total, completed=done))
        progress.update(bars[0], completed=done)
        estimate.tell(done, total, f"{total:,} {what}")

    with progress:
        yield watch
