"""`finetune`: a model for labelled data, over one or several seeds, with the evidence of how good it is.

What is notable:
- every seed draws its own head, order and dropout; the model of the best dev score is kept, and figures are those of
  all seeds;
- dev chooses epochs, temperatures and thresholds; test, where there is one, is judged once;
- a model that does not beat an answer without looking at the text is no model: `TooWeak`;
- a run that was stopped goes on: seeds that are done are not trained again, the one at work resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from halfpint.config import Precision
from halfpint.data.task import Judged, Task, score_of
from halfpint.data.text_task import TextTask
from halfpint.doctor import describe_hardware
from halfpint.engines.device import find_device
from halfpint.engines.identity import hash_model
from halfpint.engines.model import Model
from halfpint.train.baseline import tfidf_baseline
from halfpint.train.failures import TooWeak
from halfpint.train.loop import Watcher
from halfpint.train.parallel import joined
from halfpint.train.precision import usual_precision
from halfpint.train.prepare import DataOptions, Prepared, find_data_task, fit_length, prepare, read_data
from halfpint.train.quality import Interval, over_rows, over_seeds
from halfpint.train.recipe import IN_MEMORY, ClassWeights, Recipe, split_changes, usual_settings
from halfpint.train.run import HASHES, LOG, SETTINGS, require_free, run_folder
from halfpint.train.seeds import SeedResult, SeedWork
from halfpint.train.settings import Settings
from halfpint.train.start import start_model


@dataclass(frozen=True)
class Finetuned:
    """What `finetune` returns."""

    artifact: Path
    task: str
    split: str
    """The rows that the figures are of: test, or dev where there is no test."""
    metrics: dict[str, Interval]
    """Over seeds, or of one seed over rows."""
    others: dict[str, dict[str, Interval]]
    """The same of further splits that have labels: MNLI's `dev_mismatched`."""
    trivial: dict[str, float]
    """The same of an answer that never looks at the text; empty where there is none."""
    baseline: dict[str, float]
    """The same of TF-IDF with a linear model; empty where it does not apply."""
    scores: dict[int, float]
    """The deciding metric on dev, by seed."""
    notes: tuple[str, ...]
    """What a person should know of data and settings."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "artifact": str(self.artifact)}


def finetune(
    data: object,
    *,
    model: str | PathLike[str] | Model,
    out: str | PathLike[str],
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    pair: str | None = None,
    columns: str | None = None,
    seeds: int = 1,
    seed: int = 0,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    max_length: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    from_scratch: bool = False,
    class_weights: ClassWeights = "none",
    abstain: float | None = None,
    allow_weak: bool = False,
    overwrite: bool = False,
    set: Mapping[str, Any] | None = None,
    watchers: Sequence[Watcher] = (),
) -> Finetuned:
    """Train a model on labelled data and write it to `out`, with everything that is known of its quality.

    What is not given is found in the data or usual for its size. `set` changes any other field of the settings
    (`weight_decay`, `warmup`, `patience` …) or of the encoder (`dropout`, `attention_dropout`).
    """
    out = Path(out).expanduser().absolute()
    require_free(out, overwrite=overwrite)
    options = DataOptions(task, text, label, pair, columns)
    dataset = read_data(data, options)
    found = find_data_task(dataset, options)
    place = find_device(device)
    start, base = start_model(model, dataset.tables["train"], found, from_scratch=from_scratch)
    assert start.tokenizer is not None
    of_settings, of_encoder = split_changes(set or {})
    width = int(start.encoder.config.hidden_size)
    usual = usual_settings(dataset.tables["train"].num_rows, width, from_scratch=from_scratch)
    given = {name: value for name, value in (("epochs", epochs), ("batch", batch), ("lr", lr)) if value is not None}
    chosen = precision or usual_precision(place)
    recipe = Recipe(
        data=_place(data) if isinstance(data, str | PathLike) else IN_MEMORY,
        model=_place(base),
        settings=Settings(**{**usual, **given, "seed": seed, "precision": chosen, **of_settings}),
        max_length=fit_length(found, max_length, start.max_length),
        device=str(place),
        options=options,
        seeds=seeds,
        from_scratch=from_scratch,
        encoder=of_encoder,
        class_weights=class_weights,
        abstain=abstain,
        allow_weak=allow_weak,
    )
    recipe.require_fit(found)
    prepared = prepare(dataset, found, start.tokenizer, recipe.max_length, seed=seed)
    values = {"out": str(out), "start_hash": None if from_scratch else hash_model(start), **recipe.to_values()}
    values |= {HASHES: prepared.hashes}
    with (
        joined(place) as ranks,
        run_folder(out, "finetune", values, overwrite=overwrite, ranks=ranks) as folder,
    ):
        return _run(SeedWork(recipe, prepared, start, folder, place, ranks, watchers), out, overwrite=overwrite)


def _place(name: str | PathLike[str]) -> str:
    """A path that is there as it can be found from anywhere; any other name as it is."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else str(name)


@dataclass(frozen=True)
class _Evidence:
    """What stands beside the figures of a model."""

    trivial: dict[str, float]
    baseline: dict[str, float]


def _run(work: SeedWork, out: Path, *, overwrite: bool) -> Finetuned:
    recipe, prepared = work.recipe, work.prepared
    evidence = _find_evidence(prepared) if work.ranks.is_first else _Evidence({}, {})
    results = [work.result_of(recipe.of_seed(index)) for index in range(recipe.seeds)]
    best = max(results, key=lambda result: result.dev_score)
    figures = {
        split: _summarize(best.task, [result.judged[split] for result in results])
        for split in (prepared.judged, *prepared.others)
    }
    outcome = Finetuned(
        artifact=out,
        task=prepared.task.name,
        split=prepared.judged,
        metrics=figures.pop(prepared.judged),
        others=figures,
        trivial=evidence.trivial,
        baseline=evidence.baseline,
        scores={result.seed: result.dev_score for result in results},
        notes=(*prepared.lines(), *work.notes),
    )
    try:
        _require_strength(outcome, prepared.task, allow_weak=recipe.allow_weak)
    except TooWeak:
        if work.ranks.is_first:
            work.folder.mark_weak()
        raise
    if work.ranks.is_first:
        _save(work, best, outcome, overwrite=overwrite)
        work.folder.remove()
    return outcome


def _find_evidence(prepared: Prepared) -> _Evidence:
    task, judged = prepared.task, prepared.splits[prepared.judged].table
    train = prepared.splits["train"].table
    trivial = task.trivial(train, judged)
    baseline = tfidf_baseline(task, train, judged) if isinstance(task, TextTask) else None
    return _Evidence(*({} if rows is None else task.measure(rows) for rows in (trivial, baseline)))


def _summarize(task: Task, judged: Sequence[Judged]) -> dict[str, Interval]:
    """Of one seed over its rows, of several over the seeds."""
    if len(judged) == 1:
        return over_rows(task, judged[0])
    measured = [task.measure(rows) for rows in judged]
    return {name: over_seeds([each[name] for each in measured]) for name in measured[0]}


def _require_strength(outcome: Finetuned, task: Task, *, allow_weak: bool) -> None:
    if not outcome.trivial or allow_weak:
        return
    reached = score_of(task, {name: interval.mean for name, interval in outcome.metrics.items()})
    constant = score_of(task, outcome.trivial)
    if not reached > constant:
        metric = task.metrics[0]
        raise TooWeak(
            f"the model reaches {metric} {outcome.metrics[metric].mean:.4f} on {outcome.split}, no better than "
            f"{outcome.trivial[metric]:.4f} of an answer that never looks at the text; nothing was saved as a model; "
            "try another --lr, more --epochs or more data, or save it all the same with --allow-weak"
        )


def _save(work: SeedWork, best: SeedResult, outcome: Finetuned, *, overwrite: bool) -> None:
    recipe, prepared, folder = work.recipe, work.prepared, work.folder
    work.load(best)
    told = {name: asdict(interval) for name, interval in outcome.metrics.items()}
    predictions = {path.relative_to(folder.path).as_posix(): path for path in folder.predictions.glob("*.npz")}
    metric = best.task.metrics[0]
    weak = bool(outcome.trivial) and told[metric]["mean"] <= outcome.trivial[metric]
    facts = {
        "task": best.task.name,
        "data": prepared.name,
        **{f"{name} ({outcome.split})": _shown(interval) for name, interval in outcome.metrics.items()},
        **({f"{metric} of TF-IDF": f"{outcome.baseline[metric]:.4f}"} if outcome.baseline else {}),
        **({"warning": "no better than an answer that never looks at the text"} if weak else {}),
    }
    Model(work.network, work.start.tokenizer, work.start.embedding, work.start.source).save(
        outcome.artifact,
        overwrite=overwrite,
        base_model=None if recipe.from_scratch else recipe.model,
        facts=facts,
        metadata={
            "task": best.task.to_dict(),
            "max_length": recipe.max_length,
            "metrics": told,
            "split": outcome.split,
            "others": {
                split: {name: asdict(interval) for name, interval in metrics.items()}
                for split, metrics in outcome.others.items()
            },
            "trivial": outcome.trivial,
            "baseline": outcome.baseline,
            "dev_scores": outcome.scores,
            "rows": {split: part.encoded.num_rows for split, part in prepared.splits.items()},
            "data": {"name": prepared.name, "hashes": prepared.hashes},
            "notes": outcome.notes,
            "run": recipe.to_values(),
            "hardware": describe_hardware(),
        },
        files={SETTINGS: folder.settings, LOG: folder.log, **predictions},
    )


def _shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.4f}"
    return f"{interval.mean:.4f} ({interval.low:.4f} to {interval.high:.4f})"
