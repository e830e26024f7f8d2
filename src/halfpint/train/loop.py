"""The training loop: the only one. Pretraining, fine-tuning and distillation differ by what is given to it.

What is notable:
- a step is rows; its batches are computed one after the other, each loss divided by the counts of the whole step,
  over all batches and ranks, so neither accumulation nor data parallelism changes anything but speed;
- a checkpoint holds everything and is written between two steps, so a run that was killed goes on to the same end,
  bit for bit on the CPU;
- whoever watches (a progress bar, a log, a tracker) is a function that is given events.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halfpint.data.loader import Loader, prefetch
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.model.taps import Taps
from halfpint.objectives.objective import Objective, Seen
from halfpint.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from halfpint.train.optimizers import make_optimizer, optimizer_tensors, restore_optimizer
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings, SettingsError

Event = dict[str, Any]
Watcher = Callable[[Event], None]
"""Is given `{"event": "step" | "evaluation" | "end", "step", …}` as a run goes on."""
Evaluate = Callable[[Network], Mapping[str, float]]
"""Metrics of the network on held-out rows; `score` is the one that is maximised."""

LOG_SECONDS = 0.5
CHECKPOINT_SECONDS = 120.0


class TrainingFailed(RuntimeError):
    """A run that must not become a model; the message says why."""


@dataclass
class State:
    """Where a run stands, besides its tensors."""

    step: int = 0
    best_step: int = -1
    best_score: float = -math.inf
    stale: int = 0
    """Evaluations since the best one."""
    history: list[Event] = field(default_factory=list)
    """All evaluations."""


@dataclass(frozen=True)
class Outcome:
    """A finished run. The network holds the weights of its best evaluation, or the last where there was none."""

    state: State
    steps: int
    seconds: float
    """Of the steps computed here: those before a resume are not in it."""


def train(
    network: Network,
    objectives: Sequence[tuple[Objective, float]],
    loader: Loader,
    settings: Settings,
    *,
    evaluate: Evaluate | None = None,
    checkpoints: Path | None = None,
    watchers: Sequence[Watcher] = (),
    fingerprint: str = "",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Outcome:
    """Train the network in place. With `checkpoints`, a folder, the run goes on where one of the same kind stopped.

    `fingerprint` tells runs apart: a checkpoint of another is refused.
    """
    ranks = Ranks.here()
    device = next(network.parameters()).device
    run = _Run(network, objectives, settings, device, ranks, identity=_identity(settings, loader, fingerprint))
    state = State()
    num_steps = settings.epochs * loader.num_steps
    with _own_randomness(device, settings.seed + ranks.rank), _deferred_interrupt() as interrupted:
        if checkpoints is not None and (found := read_checkpoint(checkpoints)) is not None:
            state = run.restore(found)
        begin = saved = logged = time.monotonic()
        first = state.step
        for step, batches in _steps(loader, settings.epochs, first):
            loss = run.step(batches, settings.rate(step, num_steps))
            state.step = step + 1
            now = time.monotonic()
            if now - logged > LOG_SECONDS or state.step in (first + 1, num_steps):
                logged = now
                done = state.step - first
                event = {"event": "step", "step": state.step, "steps": num_steps, "loss": _checked(loss, state.step)}
                event |= {
                    "lr": settings.rate(step, num_steps),
                    "rows_per_second": done * settings.batch / (now - begin),
                }
                _tell(watchers, event, ranks)
            due = _is_due(state.step, loader.num_steps, settings.evaluations)
            if due:
                _checked(loss, state.step)
            if due and evaluate is not None:
                _note_evaluation(run, state, evaluate, watchers, ranks)
            stopped = ranks.agree(interrupted.is_set())
            ended = ranks.agree(settings.patience > 0 and state.stale >= settings.patience)
            saves = due or stopped or now - saved > checkpoint_seconds
            if saves and checkpoints is not None and ranks.is_first:
                write_checkpoint(checkpoints, run.checkpoint(state))
                saved = time.monotonic()
            if stopped:
                raise KeyboardInterrupt
            if ended:
                break
        seconds = time.monotonic() - begin
    run.finish(state)
    _tell(watchers, {"event": "end", "step": state.step, "seconds": seconds}, ranks)
    return Outcome(state, state.step - first, seconds)


class _Run:
    """The parts that a step works on."""

    def __init__(
        self,
        network: Network,
        objectives: Sequence[tuple[Objective, float]],
        settings: Settings,
        device: torch.device,
        ranks: Ranks,
        identity: dict[str, Any],
    ) -> None:
        self.network, self.objectives, self.settings = network, objectives, settings
        self.device, self.ranks, self.identity = device, ranks, identity
        learned = [objective.modules for objective, _ in objectives if objective.modules is not None]
        self.trained = nn.ModuleList([network, *learned]).train()
        self.parameters = [each for each in self.trained.parameters() if each.requires_grad]
        self.optimizer = make_optimizer(self.parameters, settings)
        self.taps = _joined([objective.taps for objective, _ in objectives])
        self.best: dict[str, Tensor] = {}
        self.loss = torch.compile(self._loss, fullgraph=True, dynamic=False) if device.type == "cuda" else self._loss

    def step(self, batches: Sequence[Batch], lr: float) -> Tensor:
        """One update; the step's loss, or this rank's share of it."""
        moved = [batch.to(self.device) for batch in batches]
        scales = self._scales(moved)
        total = torch.zeros((), device=self.device)
        for batch in moved:
            loss = self.loss(batch, scales)
            loss.backward()
            total += loss.detach()
        self.ranks.sum_gradients(self.parameters)
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _scales(self, batches: Sequence[Batch]) -> list[dict[str, Tensor]]:
        """For each objective, by loss, its weight over the count of the step."""
        scales = []
        for objective, weight in self.objectives:
            counts = torch.zeros(len(objective.names), device=self.device)
            for batch in batches:
                counted = objective.counts(batch)
                counts += torch.stack([counted[name].float() for name in objective.names])
            whole = self.ranks.sum(counts).clamp(min=1e-9)
            scales.append({name: weight / count for name, count in zip(objective.names, whole, strict=True)})
        return scales

    def _loss(self, batch: Batch, scales: list[dict[str, Tensor]]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            output = self.network.encoder(batch, self.taps)
            kinds = {kind for objective, _ in self.objectives for kind in objective.heads}
            answers = {kind: self.network.answer(kind, output, batch) for kind in sorted(kinds)}
        seen = Seen(output, answers)
        total = torch.zeros((), device=self.device)
        for (objective, _), scale in zip(self.objectives, scales, strict=True):
            for name, value in objective.losses(seen, batch).items():
                total = total + value * scale[name]
        return total

    def keep_best(self) -> None:
        self.best = {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def checkpoint(self, state: State) -> Checkpoint:
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        tensors = {
            "model": dict(self.trained.state_dict()),
            "optimizer": optimizer_tensors(self.optimizer),
            "random": random,
            "best": self.best,
        }
        values = {"state": {**asdict(state), "best_score": _plain(state.best_score)}, "identity": self.identity}
        return Checkpoint(state.step, tensors, values)

    def restore(self, found: Checkpoint) -> State:
        theirs = found.values["identity"]
        for name, ours in self.identity.items():
            if theirs.get(name) != ours:
                raise SettingsError(
                    f"the checkpoint of step {found.step} is of another run: its {name} is {theirs.get(name)!r}, "
                    f"not {ours!r}; give another --out, or remove the checkpoint"
                )
        self.trained.load_state_dict(found.tensors["model"])
        restore_optimizer(self.optimizer, found.tensors["optimizer"])
        self.best = {name: value.to(self.device) for name, value in found.tensors["best"].items()}
        torch.set_rng_state(found.tensors["random"]["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(found.tensors["random"]["cuda"], self.device)
        values = found.values["state"]
        return State(**{**values, "best_score": -math.inf if values["best_score"] is None else values["best_score"]})

    def finish(self, state: State) -> None:
        if self.best:
            self.network.load_state_dict(self.best)
        self.trained.eval()


def _note_evaluation(run: _Run, state: State, evaluate: Evaluate, watchers: Sequence[Watcher], ranks: Ranks) -> None:
    """Evaluate on the first rank, whose word counts."""
    improved = False
    if ranks.is_first:
        run.trained.eval()
        metrics = dict(evaluate(run.network))
        run.trained.train()
        event = {"event": "evaluation", "step": state.step, **metrics}
        state.history.append(event)
        improved = metrics["score"] > state.best_score
        if improved:
            state.best_step, state.best_score = state.step, metrics["score"]
            run.keep_best()
        state.stale = 0 if improved else state.stale + 1
        _tell(watchers, event, ranks)


def _steps(loader: Loader, epochs: int, first: int) -> Iterator[tuple[int, list[Batch]]]:
    """All steps from a given one on, with their numbers."""
    for epoch in range(first // loader.num_steps, epochs):
        begin = max(0, first - epoch * loader.num_steps)
        numbered = range(epoch * loader.num_steps + begin, (epoch + 1) * loader.num_steps)
        yield from zip(numbered, prefetch(loader.steps(epoch, begin)), strict=True)


def _is_due(step: int, steps_per_epoch: int, evaluations: int) -> bool:
    """Whether an evaluation follows a step: so many an epoch, evenly, one at its end."""
    within = (step - 1) % steps_per_epoch + 1
    return within * evaluations // steps_per_epoch > (within - 1) * evaluations // steps_per_epoch


def _identity(settings: Settings, loader: Loader, fingerprint: str) -> dict[str, Any]:
    """What two runs must have in common for one to go on with the other's checkpoint."""
    return {
        **asdict(settings),
        "rows": loader.encoded.num_rows,
        "tokens": loader.encoded.num_tokens,
        "run": fingerprint,
    }


def _joined(every: Sequence[Taps]) -> Taps:
    names = ("hidden", "scores", "probabilities", "vectors")
    return Taps(**{name: tuple(sorted({layer for taps in every for layer in getattr(taps, name)})) for name in names})


def _checked(loss: Tensor, step: int) -> float:
    value = float(loss)
    if not math.isfinite(value):
        raise TrainingFailed(
            f"the loss is {value} at step {step}; nothing was saved as a model; try a lower --lr or a longer warm-up"
        )
    return value


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tell(watchers: Sequence[Watcher], event: Event, ranks: Ranks) -> None:
    if ranks.is_first:
        for watcher in watchers:
            watcher(event)


@contextmanager
def _own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Random numbers of this run alone, which leave the caller's as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Meanwhile Ctrl-C sets an event, so that a run stops between two steps and not in the middle of one."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
