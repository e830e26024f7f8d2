"""`finetune`, `evaluate` and `rerun`: train a model, and say how good it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from halfpint.cli.frame import AsJson, Estimate, app, err, out
from halfpint.engines.requirements import require_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfpint.train.evaluate import Evaluation
    from halfpint.train.finetune import Finetuned

Data = Annotated[str, typer.Argument(metavar="DATA", help="A file, a folder of splits, or a Hub name.")]
Out = Annotated[Path, typer.Option("--out", help="The folder for the model.")]
TaskName = Annotated[str | None, typer.Option("--task", help="The task, where the columns do not tell: sst2, squad …")]
TextColumnName = Annotated[str | None, typer.Option("--text", help="The column of the text.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column of the label.")]
PairColumn = Annotated[str | None, typer.Option("--pair", help="The column of a second text.")]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names for a file without a header: label,text")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data; by default more for small data.")]
Batch = Annotated[int | None, typer.Option(help="Rows of a step; by default 32.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate; by default by the encoder's width.")]
Length = Annotated[int | None, typer.Option("--max-length", help="Tokens at most; by default as usual for the task.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default a GPU, where there is one.")]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="fp32 or bf16; by default what is fast here.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other setting.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the model at --out, and begin anew.")]


@app.command()
def finetune(
    data: Data,
    model: Annotated[str, typer.Option("--model", help="A preset, an artifact, a Hub-layout folder or a Hub name.")],
    out_folder: Out,
    task: TaskName = None,
    text: TextColumnName = None,
    label: LabelColumn = None,
    pair: PairColumn = None,
    columns: ColumnNames = None,
    seeds: Annotated[int, typer.Option(help="Runs with different seeds, for the interval of the figures.")] = 1,
    seed: Seed = 0,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    max_length: Length = None,
    device: Device = None,
    precision: PrecisionName = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Random weights of a preset's shape, and a tokenizer of the data.")
    ] = False,
    class_weights: Annotated[str, typer.Option(help="none, or balanced: rare labels weigh more.")] = "none",
    abstain: Annotated[
        float | None, typer.Option(help="Answer only where this precision is reached, as measured on dev.")
    ] = None,
    changes: Changes = None,
    allow_weak: Annotated[
        bool, typer.Option("--allow-weak", help="Save a model that is no better than a constant answer.")
    ] = False,
    overwrite: Overwrite = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Write TensorBoard's files into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model for labelled data and measure it.

    A run that was stopped goes on when the same command is given again.
    """
    require_torch("training")
    from halfpint.train.finetune import finetune as run

    with ExitStack() as stack:
        watchers = [stack.enter_context(_training_progress(seeds))]
        if tensorboard is not None:
            from halfpint.train.tensorboard import tensorboard_watcher

            watchers.append(stack.enter_context(tensorboard_watcher(tensorboard)))
        done = run(
            data,
            model=model,
            out=out_folder,
            task=task,
            text=text,
            label=label,
            pair=pair,
            columns=columns,
            seeds=seeds,
            seed=seed,
            epochs=epochs,
            batch=batch,
            lr=lr,
            max_length=max_length,
            device=device,
            precision=precision,  # type: ignore[arg-type]  # checked with the settings
            from_scratch=from_scratch,
            class_weights=class_weights,  # type: ignore[arg-type]
            abstain=abstain,
            allow_weak=allow_weak,
            overwrite=overwrite,
            set=parse_changes(changes or []),
            watchers=watchers,
        )
    _print_finetuned(done, as_json=as_json)


def parse_changes(changes: list[str]) -> dict[str, str]:
    found = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set was given {change!r}; expected FIELD=VALUE, as in --set weight_decay=0.1")
        found[name.strip()] = value.strip()
    return found


def _print_finetuned(done: Finetuned, *, as_json: bool) -> None:
    if os.environ.get("RANK", "0") != "0":  # of processes that torchrun started, the first one tells
        return
    if as_json:
        print(json.dumps(done.to_dict(), indent=2))
        return
    beside = {"TF-IDF": done.baseline, "constant": done.trivial}
    out.print(_metrics_table(done.metrics, {name: each for name, each in beside.items() if each}))
    for split, metrics in done.others.items():
        told = ", ".join(f"{name} {interval.mean:.4f}" for name, interval in metrics.items())
        out.print(Text(f"{split}: {told}"))
    for note in done.notes:
        out.print(Text(note, style="dim"), soft_wrap=True)
    out.print(Text(f"figures are of {done.split}; the model is in {done.artifact}"), soft_wrap=True)


def _metrics_table(metrics: Mapping[str, Any], beside: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "model", "95% interval", *beside):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for name, interval in metrics.items():
        known = interval.low is not None and interval.high is not None
        spread = f"{interval.low:.4f} – {interval.high:.4f}" if known else "–"
        others = [f"{each[name]:.4f}" if name in each else "–" for each in beside.values()]
        table.add_row(name, f"{interval.mean:.4f}", spread, *others)
    return table


@contextmanager
def _training_progress(seeds: int = 1) -> Iterator[Any]:
    """A bar for each seed, with the loss and the rate; nothing where nobody watches."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    bars: dict[int, Any] = {}
    estimate = Estimate()

    def watch(event: Mapping[str, Any]) -> None:
        seed = event["seed"]
        if event["event"] == "step":
            if seed not in bars:
                bars[seed] = progress.add_task("", total=event["steps"])
            told = f"seed {seed}, loss {event['loss']:.3f}, {event['rows_per_second']:,.0f} rows/s"
            progress.update(bars[seed], completed=event["step"], description=told)
            all_steps = event["steps"] * seeds
            estimate.tell((len(bars) - 1) * event["steps"] + event["step"], all_steps, f"{all_steps:,} steps")

    with progress:
        yield watch


@app.command()
def evaluate(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="An artifact, or a Hub model with a head.")],
    data: Data,
    split: Annotated[str | None, typer.Option(help="Which split; by default test, else dev.")] = None,
    task: TaskName = None,
    text: TextColumnName = None,
    label: LabelColumn = None,
    pair: PairColumn = None,
    columns: ColumnNames = None,
    max_length: Length = None,
    device: Device = None,
    precision: PrecisionName = None,
    against: Annotated[str | None, typer.Option(help="Another model of the task, judged on the same rows.")] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a model on labelled data, with intervals."""
    require_torch("evaluating")
    from halfpint.train.evaluate import evaluate as run

    done = run(
        artifact,
        data,
        split=split,
        task=task,
        text=text,
        label=label,
        pair=pair,
        columns=columns,
        max_length=max_length,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        against=against,
    )
    _print_evaluation(done, as_json=as_json)


def _print_evaluation(done: Evaluation, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(done), indent=2))
        return
    out.print(_metrics_table(done.metrics, {"constant": done.trivial} if done.trivial else {}))
    for note in done.notes:
        out.print(Text(note, style="dim"), soft_wrap=True)
    if done.against is not None:
        found = done.against.difference
        ends = f" (95% interval {found.low:+.4f} – {found.high:+.4f})" if found.low is not None else ""
        out.print(Text(f"{done.against.metric} against the other model: {found.mean:+.4f}{ends}, the same rows"))
    out.print(Text(f"{done.rows:,} rows of {done.split}, task {done.task}"))


@app.command()
def rerun(
    settings: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run.toml of an earlier run.")],
    out_folder: Annotated[Path | None, typer.Option("--out", help="Another folder than the first time.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Do a run again, with every setting as it was resolved then."""
    require_torch("training")
    from halfpint.train.rerun import rerun as run

    with _training_progress() as watch:
        done = run(settings, out=out_folder, overwrite=overwrite, watchers=[watch])
    _print_finetuned(done, as_json=as_json)
