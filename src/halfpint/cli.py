"""The command line: one command a verb; parse, call, print.

Exit codes: 0; 2 with one clear line on bad input; 130 when interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from halfpint.doctor import Diagnosis
    from halfpint.measure.profile import Profile

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Full-strength text encoders, half-pint size.",
)
out = Console()
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

MODELS_A_TABLE = 6


@app.command()
def profile(
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
    from halfpint.measure.profile import profile as run

    options = {"batch": batch, "length": length, "device": device, "precision": precision, "thorough": thorough}
    profiles = []
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=err, transient=True
    ) as progress:
        task = progress.add_task("", total=len(models))
        for name in models:
            progress.update(task, description=f"{'measuring' if measure else 'counting'} {name}")
            profiles.append(run(name, measure=measure, **options))  # type: ignore[arg-type]
    if as_json:
        print(json.dumps([each.to_dict() for each in profiles], indent=2))
        return
    for start in range(0, len(profiles), MODELS_A_TABLE):
        out.print(_profile_table(profiles[start : start + MODELS_A_TABLE]))
    for each in profiles:
        if each.note:
            out.print(f"{each.model}: {each.note}", style="dim")


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


def _profile_table(profiles: list[Profile]) -> Table:
    """Figures down, models across: five models fit a terminal of eighty columns."""
    first = profiles[0]
    caption = f"GFLOPs and latency: one text of {first.counts.length} tokens; training step: activations of "
    caption += f"{first.counts.batch} such texts in bf16"
    rows = COUNTED
    if first.cost is not None:
        rows = COUNTED + [row for row in MEASURED if first.latency_ms.p99 is not None or "p99" not in row[0]]
        rows = rows + [(_throughput_label(name), _throughput_cell(name)) for name in first.throughput]
        caption += f"; texts/s: batches of {first.cost.batch}; {first.cost.precision} on {first.cost.threads} "
        caption += f"{first.cost.device} threads; median (lowest–highest)"
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left", header_style="bold")
    table.add_column("", no_wrap=True)
    for each in profiles:
        table.add_column(each.model, justify="right", overflow="fold")
    for label, cell in rows:
        table.add_row(label, *(cell(each) for each in profiles))
    return table


def _throughput_label(name: str) -> str:
    return "texts/s, mixed lengths" if name == "mixed" else f"texts/s, {name} tokens"


def _throughput_cell(name: str) -> Cell:
    def cell(profile: Profile) -> str:
        spread = profile.throughput.get(name)
        return "–" if spread is None else f"{spread.median:,.0f} ({spread.low:,.0f}–{spread.high:,.0f})"

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
        table.add_row(name, value)
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
    return [(name.replace("[", "\\["), value.replace("[", "\\[")) for name, value in rows]


def _torch_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "not installed: counting works, loading and training do not (pip install 'halfpint[train]')"
    onednn = "oneDNN" if facts["onednn"] else "no oneDNN, so slower on this processor"
    return f"{facts['threads']} threads, {facts['capability']}, {onednn}"


def _accelerator_line(facts: dict[str, Any] | None) -> str:
    gpu = facts and facts["accelerator"]
    if not gpu:
        return "none that torch can use"
    ragged = "ragged attention" if gpu["ragged_attention"] else "no ragged attention: torch 2.11 or newer has it"
    return f"{gpu['count']} × {gpu['name']}, {gpu['memory_gb']:.0f} GB, {'bf16, ' if gpu['bf16'] else ''}{ragged}"


def main() -> None:
    """Run, and turn what went wrong into one line and an exit code."""
    try:
        app()
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except ValueError as error:
        # A user's mistake: every ValueError of ours says what was given, expected, and to be done.
        err.print(f"halfpint: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
