"""`profile` and `doctor`: what models cost, and what this machine can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from halfpint.cli.frame import AsJson, app, out, show_progress
from halfpint.measure.cost import SECONDS_A_MODEL, CostRequest

if TYPE_CHECKING:
    from halfpint.doctor import Diagnosis
    from halfpint.measure.profile import Profile

WIDEST_NAME = 14
"""Of a column whose figures are narrower; longer names are folded, figures never."""
FOR_MEASURING = ("device", "precision", "thorough")
"""Options that counting has no use for."""


@app.command()
def profile(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL…", help="Presets, artifacts, Hub-layout folders or Hub names.")
    ],
    measure: Annotated[bool, typer.Option("--measure", help="Measure load time, RAM, latency and throughput.")] = False,
    batch: Annotated[int, typer.Option(help="Texts at a time.")] = 32,
    length: Annotated[int, typer.Option(help="Tokens of a text.")] = 128,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    thorough: Annotated[bool, typer.Option("--thorough", help="Time enough texts for a p99.")] = False,
    as_json: AsJson = False,
) -> None:
    """What models cost: parameters, bytes, FLOPs; with --measure, time and memory on this machine.

    A preset needs no weights: random ones cost the same.
    """
    from halfpint.measure.profile import profile_all

    request = CostRequest("", batch, length, device, precision, thorough)
    if not measure and (unused := [name for name in FOR_MEASURING if _is_given(context, name)]):
        raise ValueError(f"--{unused[0]} is for measuring, and nothing is measured; add --measure, or leave it out")
    profiles = []
    found = profile_all(models, request, measure=measure)
    with show_progress(SECONDS_A_MODEL if measure else None) as progress:
        task = progress.add_task("", total=len(models))
        for name in models:
            progress.update(task, description=f"{'measuring' if measure else 'counting'} {name}")
            profiles.append(next(found))
            progress.advance(task)
    if as_json:
        print(json.dumps([each.to_dict() for each in profiles], indent=2))
        return
    for table in _profile_tables(profiles):
        out.print(table)
    remarks = [_profile_caption(profiles), *(f"{each.model}: {each.note}" for each in profiles if each.note)]
    for remark in remarks:
        out.print(Text(remark, style="dim"))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


Cell = Callable[["Profile"], str]

COUNTED: list[tuple[str, Cell]] = [
    ("parameters stored", lambda p: f"{p.stored_parameters:,}"),
    ("  effective", lambda p: f"{p.effective_parameters:,}"),
    ("  embeddings", lambda p: f"{p.parts['embeddings']:,}"),
    ("  attention", lambda p: f"{p.parts['attention']:,}"),
    ("  FFN", lambda p: f"{p.parts['ffn']:,}"),
    ("  pooler and heads", lambda p: f"{p.parts['pooler'] + p.parts['head']:,}"),
    ("MB in fp32", lambda p: f"{p.bytes['fp32'] / 1e6:,.1f}"),
    ("  bf16", lambda p: f"{p.bytes['bf16'] / 1e6:,.1f}"),
    ("  int8", lambda p: f"{p.bytes['int8'] / 1e6:,.1f}"),
    ("GFLOPs a text", lambda p: f"{p.flops / 1e9:,.2f}"),
    ("training step, MB", lambda p: f"{p.activation_bytes / 1e6:,.0f}"),
]
MEASURED: list[tuple[str, Cell]] = [
    ("load, ms", lambda p: f"{p.load_ms.median:,.0f}"),
    ("RAM, MB", lambda p: f"{p.memory_mb:,.0f}"),
    ("latency p50, ms", lambda p: f"{p.latency_ms.p50:,.1f}"),
    ("  p90", lambda p: f"{p.latency_ms.p90:,.1f}"),
    ("  p99", lambda p: "–" if p.latency_ms.p99 is None else f"{p.latency_ms.p99:,.1f}"),
]


def _profile_tables(profiles: list[Profile]) -> Iterator[Table]:
    """Figures down, models across: as many in a table as fit the terminal, which are five in eighty columns."""
    rows = COUNTED
    if profiles[0].cost is not None:
        rows = COUNTED + [row for row in MEASURED if profiles[0].latency_ms.p99 is not None or "p99" not in row[0]]
        # A model with few positions has lengths of its own.
        lengths = {name for each in profiles for name in each.throughput}
        rows = rows + [(_throughput_label(name), _throughput_cell(name)) for name in sorted(lengths, key=_by_number)]
    labels = max(len(label) for label, _ in rows)
    columns = [(each.model, [cell(each) for _, cell in rows]) for each in profiles]
    widths = [max(min(len(name), WIDEST_NAME), *map(len, cells)) for name, cells in columns]
    start = 0
    for end in range(1, len(profiles) + 1):
        if end == len(profiles) or labels + sum(2 + width for width in widths[start : end + 1]) > out.width:
            yield _table([label for label, _ in rows], columns[start:end], widths[start:end])
            start = end


def _table(labels: list[str], columns: list[tuple[str, list[str]]], widths: list[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    for (name, _), width in zip(columns, widths, strict=True):
        table.add_column(Text(name), justify="right", overflow="fold", width=width)
    for label, cells in zip(labels, zip(*(cells for _, cells in columns), strict=True), strict=True):
        table.add_row(label, *cells)
    return table


def _profile_caption(profiles: list[Profile]) -> str:
    longest = max(profiles, key=lambda each: each.counts.length)
    caption = f"GFLOPs and latency: one text of {longest.counts.length} tokens; training step: activations of "
    caption += f"{longest.counts.batch} such texts in bf16"
    if longest.cost is not None:
        caption += f"; texts/s: batches of {longest.cost.batch}, by length in tokens, median ± half the range; "
        caption += f"{longest.cost.precision} on {longest.cost.threads} {longest.cost.device} threads"
    return caption


def _by_number(name: str) -> tuple[bool, int]:
    return (False, int(name)) if name.isdecimal() else (True, 0)


def _throughput_label(name: str) -> str:
    return f"texts/s, {name}"


def _throughput_cell(name: str) -> Cell:
    def cell(profile: Profile) -> str:
        spread = profile.throughput.get(name)
        if spread is None:
            return "–"
        return f"{spread.median:,.0f} ±{50 * (spread.high - spread.low) / spread.median:.0f}%"

    return cell


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine and installation can do, and what is missing."""
    from halfpint.doctor import diagnose

    found = diagnose()
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _doctor_rows(found):
        table.add_row(Text(name), Text(value))
    out.print(table)


def _doctor_rows(found: Diagnosis) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    memory = f", {found.memory_gb:.0f} GB of memory" if found.memory_gb else ""
    rows = [
        ("installed", f"Python {found.python}, {versions}"),
        ("processor", f"{found.processor}, {found.cores} usable cores{memory}"),
        ("instructions", ", ".join(found.instructions) or "not known on this system"),
        ("torch", _torch_line(found.torch)),
        ("accelerator", _accelerator_line(found.torch)),
    ]
    for extra in found.extras:
        state = f"missing {', '.join(extra.missing)}: {extra.remedy}" if extra.missing else "installed"
        rows.append((f"[{extra.name}]", f"{extra.purpose}: {state}"))
    rows.append(("Hub cache", f"{found.cache}: {found.cache_mb:,.0f} MB, {found.disk_free_gb:,.0f} GB free"))
    return rows


def _torch_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "not installed: counting works, loading and training do not (pip install 'halfpint[train]')"
    if "error" in facts:
        return f"torch is installed but does not import: {facts['error']}"
    onednn = "oneDNN" if facts["onednn"] else "no oneDNN, so slower on this processor"
    return f"{facts['threads']} threads, {facts['capability']}, {onednn}"


def _accelerator_line(facts: dict[str, Any] | None) -> str:
    gpu = facts and facts["accelerator"]
    if not gpu:
        return "none that torch can use"
    ragged = "ragged attention" if gpu["ragged_attention"] else "no ragged attention: torch 2.11 or newer has it"
    return f"{gpu['count']} × {gpu['name']}, {gpu['memory_gb']:.0f} GB, {'bf16, ' if gpu['bf16'] else ''}{ragged}"
