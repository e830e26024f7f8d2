"""`profile`: the counts of any model, and on request what it costs here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from halfpint.artifact import ArtifactError, read_artifact
from halfpint.artifact.folder import INDEX, WEIGHTS
from halfpint.checkpoints.describe import describe
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.hub import find_folder, local_folder
from halfpint.checkpoints.registry import OWN
from halfpint.config import EncoderConfig, ModelConfig
from halfpint.engines.requirements import require_torch
from halfpint.measure.cost import Cost, CostRequest, measure_cost
from halfpint.measure.counts import Counts, count
from halfpint.presets import find_preset


@dataclass(frozen=True)
class Profile:
    """One model's figures. Every figure is also an attribute of the profile itself."""

    model: str
    counts: Counts
    cost: Cost | None
    note: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for part in (self.counts, self.cost):
            if part is not None and hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(
            f"a profile has no {name}{'; measure=True adds what is measured' if self.cost is None else ''}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same fields under the same names, flat, for `--json`."""
        measured = asdict(self.cost) if self.cost else {}
        return {"model": self.model, **asdict(self.counts), **measured, "note": self.note}


@dataclass(frozen=True)
class Subject:
    """What is profiled: a shape, a folder, or both."""

    name: str
    config: ModelConfig | None
    folder: Path | None
    notes: tuple[str, ...] = ()


def profile(
    model: str | Path | EncoderConfig | ModelConfig,
    *,
    measure: bool = False,
    batch: int = 32,
    length: int = 128,
    device: str = "cpu",
    precision: str = "fp32",
    thorough: bool = False,
) -> Profile:
    """Profile a preset, an artifact, a Hub-layout folder, a Hub name or a config. Presets and configs need no weights.

    A config is called `config` in the profile.
    """
    request = CostRequest("", batch, length, device, precision, thorough)
    return next(profile_all([model], request, measure=measure))


def profile_all(
    models: Sequence[str | Path | EncoderConfig | ModelConfig], request: CostRequest, *, measure: bool
) -> Iterator[Profile]:
    """One profile a model; every one is found and counted before the first is measured, which takes long."""
    if measure:
        require_torch("measuring")
    subjects = [find_subject(model, weights=measure) for model in models]
    counted = [_profile_counts(subject, request) for subject in subjects]
    for subject, each in zip(subjects, counted, strict=True):
        yield replace(each, cost=_measure(subject, request)) if measure else each


def _profile_counts(subject: Subject, request: CostRequest) -> Profile:
    counts = _count(subject, request.batch, request.length)
    notes = list(subject.notes)
    if counts.length < request.length:
        notes.append(f"figures are for {counts.length} tokens, the longest text it takes, not {request.length}")
    return Profile(subject.name, counts, None, "; ".join(notes) or None)


def find_subject(model: str | Path | EncoderConfig | ModelConfig, *, weights: bool = True) -> Subject:
    """A folder of that name goes before a preset, as everywhere. To count, no weights are fetched from the Hub."""
    if isinstance(model, EncoderConfig | ModelConfig):
        return Subject("config", model if isinstance(model, ModelConfig) else ModelConfig(model), None)
    is_local = local_folder(model) is not None
    preset = None if is_local else find_preset(str(model))
    if preset is not None:
        return Subject(preset.name, ModelConfig(preset.config), None)
    # Halfpint's hashes cover all files of a folder, and without weights some are not here.
    artifact = read_artifact(find_folder(model, weights=weights), verify=is_local or weights)
    notes = []
    if not artifact.has(WEIGHTS) and not artifact.has(INDEX):
        notes.append("counted without its weights: pooler and heads are those of the class that config.json names")
    if artifact.config.get("model_type") == OWN:
        notes.append("in Halfpint's own format")
    try:
        return Subject(str(model), describe(artifact).config, artifact.folder, tuple(notes))
    except Inexpressible as reason:
        notes.append(f"through the transformers adapter: {reason}")
        return Subject(str(model), None, artifact.folder, tuple(notes))


def _count(subject: Subject, batch: int, length: int) -> Counts:
    if subject.config is not None:
        return count(subject.config, length=min(length, subject.config.encoder.num_positions), batch=batch)
    require_torch("counting an architecture outside the family")
    from halfpint.measure.foreign import count_foreign

    assert subject.folder is not None
    return count_foreign(subject.folder, length=length, batch=batch)


def _measure(subject: Subject, request: CostRequest) -> Cost:
    if subject.folder is not None:
        return measure_cost(replace(request, folder=str(subject.folder)))
    assert subject.config is not None
    with ExitStack() as stack:
        folder = _write_scratch(subject.name, subject.config, stack)
        return measure_cost(replace(request, folder=str(folder)))


def _write_scratch(name: str, config: ModelConfig, stack: ExitStack) -> Path:
    """Random weights in a temporary folder, which is gone when the stack is."""
    from halfpint.checkpoints.random import write_random

    place = "a temporary folder"
    try:
        place = tempfile.gettempdir()
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="halfpint-"))
        return write_random(config, Path(scratch) / name)
    except (OSError, ArtifactError) as error:
        # The folder's own message advises another --out, and nobody gave one.
        cause = error.__cause__ or error
        raise ArtifactError(
            f"random weights of {name} cannot be written to {place}: {getattr(cause, 'strerror', None) or cause}; "
            "free some space there, or set TMPDIR to a place that has some"
        ) from error
