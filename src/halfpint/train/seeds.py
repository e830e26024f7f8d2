"""The work of one seed: a network with a head of its own, trained, calibrated on dev and judged."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from safetensors.torch import load_file

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.data.calibration import Unreachable
from halfpint.data.loader import Loader
from halfpint.data.task import Array, Judged, Task, score_of
from halfpint.data.text_task import TextTask
from halfpint.engines.device import answer_precision
from halfpint.engines.model import Model
from halfpint.engines.scoring import score_rows
from halfpint.model.encoder import Encoder
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.train.failures import TooWeak, TrainingFailed
from halfpint.train.loop import Event, Watcher, train
from halfpint.train.parallel import Ranks
from halfpint.train.prepare import Prepared
from halfpint.train.recipe import Recipe
from halfpint.train.run import RunFolder
from halfpint.train.settings import Settings
from halfpint.train.start import head_for, with_dropouts


@dataclass(frozen=True)
class SeedResult:
    """What one seed came to."""

    seed: int
    dev_score: float
    """By which the best is chosen: the task's deciding metric, turned so that more is better."""
    task: Task
    """Calibrated on dev."""
    judged: dict[str, Judged]
    """The rows of each split that figures are of."""


@dataclass
class SeedWork:
    """A run and what it works on; `network` is that of the seed at work."""

    recipe: Recipe
    prepared: Prepared
    start: Model
    folder: RunFolder
    device: torch.device
    ranks: Ranks
    watchers: Sequence[Watcher]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start.module, note = with_dropouts(self.start.module, self.recipe.encoder or {})
        if note is not None:
            self.notes.append(note)

    def result_of(self, settings: Settings) -> SeedResult:
        """A seed's result: of its weights where they are there, else of a training run."""
        self.network = self._fresh(settings.seed)
        done = self.folder.finished(settings.seed)
        if done.exists():
            self.network.load_state_dict(load_file(done))
        else:
            self._train(settings)
            if self.ranks.is_first:
                self.folder.keep_weights(settings.seed, self.network.state_dict())
        return self._judge(settings)

    def load(self, result: SeedResult) -> None:
        """The weights of a seed that is done, as the work's network."""
        self.network.load_state_dict(load_file(self.folder.finished(result.seed)))
        self.network.to("cpu").eval()

    def _fresh(self, seed: int) -> AnyNetwork:
        """The start's weights with a head that this seed draws; from scratch it draws all of them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            start = self.start.module
            network: AnyNetwork = copy.deepcopy(start)
            if self.recipe.from_scratch and isinstance(start, Network):
                network = Network(start.config)
            head = head_for(self.prepared.task, network)
            # One that is there for the same labels goes on learning.
            if network.head_config(head.kind) != head:
                network.drop_heads()
                network.add_head(head)
        return network.to(self.device)

    def _train(self, settings: Settings) -> None:
        prepared, task = self.prepared, self.prepared.task
        dev = prepared.splits["dev"]
        head = self.network.head_config(task.head)
        assert head is not None

        def evaluate(network: AnyNetwork) -> Mapping[str, float]:
            scores = _finite(score_rows(network, dev.encoded, task.head, settings.precision))
            metrics = task.measure(task.judge(dev.table, dev.encoded, scores))
            return {**metrics, "score": score_of(task, metrics)}

        def watch(event: Event) -> None:
            told = {"seed": settings.seed, **event}
            self.folder.note(told)
            for watcher in self.watchers:
                watcher(told)

        train(
            self.network,
            [(TaskObjective(head, self._class_weights()), 1.0)],
            self._loader(settings),
            settings,
            evaluate=evaluate,
            checkpoints=self.folder.checkpoints(settings.seed),
            watchers=[watch],
            fingerprint=prepared.hashes["train"],
        )

    def _loader(self, settings: Settings) -> Loader:
        loader = Loader(
            self.prepared.splits["train"].encoded,
            settings.batch,
            settings.seed,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )
        if not isinstance(self.network.encoder, Encoder):
            return replace(loader, mixing="grouped")
        return replace(loader, mixing="balanced").fit(settings.epochs) if self.device.type == "cuda" else loader

    def _class_weights(self) -> tuple[float, ...] | None:
        task = self.prepared.task
        if self.recipe.class_weights == "none" or not isinstance(task, TextTask) or task.problem != "single_label":
            return None
        counts = np.bincount(task.read_labels(self.prepared.splits["train"].table), minlength=len(task.labels))
        return tuple((counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist())

    def _judge(self, settings: Settings) -> SeedResult:
        """Calibrated on dev, judged where figures are of; both as the model will be run."""
        prepared = self.prepared
        reported = [prepared.judged, *prepared.others]
        parts = {split: prepared.splits[split] for split in ("dev", *reported)}
        precision = answer_precision(self.device)
        scores = {
            split: _finite(score_rows(self.network, part.encoded, prepared.task.head, precision))
            for split, part in parts.items()
        }
        dev = parts["dev"]
        task = prepared.task.calibrate(dev.table, dev.encoded, scores["dev"])
        if self.recipe.abstain is not None and isinstance(task, TextTask):
            try:
                task = task.abstain(dev.table, dev.encoded, scores["dev"], self.recipe.abstain)
            except Unreachable as error:
                self.folder.mark_weak()
                raise TooWeak(f"{error}; nothing was saved as a model; give a lower --abstain") from error
        judged = {split: task.judge(part.table, part.encoded, scores[split]) for split, part in parts.items()}
        if self.ranks.is_first:
            for split, rows in judged.items():
                self.folder.keep_predictions(f"{split}-seed-{settings.seed}", rows)
        dev_score = score_of(task, task.measure(judged["dev"]))
        return SeedResult(settings.seed, dev_score, task, {split: judged[split] for split in reported})


def _finite(scores: Array) -> Array:
    if not np.isfinite(scores).all():
        raise TrainingFailed(
            "the model answers with values that are no numbers; nothing was saved as a model; try a lower --lr or a "
            "longer warm-up"
        )
    return scores
