"""`profile`: the counts of any model, and on request what it costs here."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfpint.artifact import Artifact, read_artifact
from halfpint.checkpoints.describe import describe
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.hub import find_folder
from halfpint.config import ModelConfig
from halfpint.measure.counts import Counts, count
from halfpint.presets import find_preset

if TYPE_CHECKING:
    from halfpint.measure.cost import Cost, CostRequest


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
    note: str | None


def profile(
    name: str | Path,
    *,
    measure: bool = False,
    batch: int = 32,
    length: int = 128,
    device: str = "cpu",
    precision: str = "fp32",
    thorough: bool = False,
) -> Profile:
    """Profile a preset, an artifact, a Hub-layout folder or a Hub name. A preset needs no weights."""
    if batch < 1 or length < 1:
        raise ValueError(f"batch is {batch} and length {length}; both must be positive")
    subject = find_subject(name)
    counts = _count(subject, batch, length)
    cost = None
    if measure:
        from halfpint.measure.cost import CostRequest

        cost = _measure(subject, CostRequest("", batch, length, device, precision, thorough))
    return Profile(subject.name, counts, cost, subject.note)


def find_subject(name: str | Path) -> Subject:
    """A folder of that name goes before a preset, as everywhere."""
    preset = None if Path(name).is_dir() else find_preset(str(name))
    if preset is not None:
        return Subject(preset.name, ModelConfig(preset.config), None, None)
    artifact = read_artifact(find_folder(name))
    try:
        return Subject(str(name), describe(artifact).config, artifact.folder, _note(artifact))
    except Inexpressible as reason:
        return Subject(str(name), None, artifact.folder, f"through the transformers adapter: {reason}")


def _note(artifact: Artifact) -> str | None:
    return "in Halfpint's own format" if artifact.config.get("model_type") == "halfpint" else None


def _count(subject: Subject, batch: int, length: int) -> Counts:
    if subject.config is not None:
        return count(subject.config, length=min(length, subject.config.encoder.num_positions), batch=batch)
    from halfpint.measure.foreign import count_foreign

    assert subject.folder is not None
    return count_foreign(subject.folder, length=length, batch=batch)


def _measure(subject: Subject, request: CostRequest) -> Cost:
    from dataclasses import replace

    from halfpint.checkpoints.random import write_random
    from halfpint.measure.cost import measure_cost

    if subject.folder is not None:
        return measure_cost(replace(request, folder=str(subject.folder)))
    assert subject.config is not None
    with tempfile.TemporaryDirectory(prefix="halfpint-") as scratch:
        folder = write_random(subject.config, Path(scratch) / subject.name)
        return measure_cost(replace(request, folder=str(folder)))
