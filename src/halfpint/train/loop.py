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
from typing import Any, Protocol

import torch
from torch import Tensor

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.data.loader import prefetch
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.encoder import Encoder
from halfpint.objectives.objective import Objective
from halfpint.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from halfpint.train.failures import TrainingFailed
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings, SettingsError
from halfpint.train.step import Step

Event = dict[str, Any]
Watcher = Callable[[Event], None]
"""Is given `{"event": "step" | "evaluation" | "end", "step", …}` as a run goes on."""
Evaluate = Callable[[AnyNetwork], Mapping[str, float]]
"""Metrics of the network on held-out rows; `score` is the one that is maximised."""


class Steps(Protocol):
    """What a run is fed with: `Loader` for rows that are encoded, `CorpusLoader` for those that are made on the way."""

    @property
    def shape(self) -> BatchShape | None:
        """Of all batches, where they have one."""

    @property
    def num_steps(self) -> int:
        """Of an epoch."""

    @property
    def facts(self) -> dict[str, int]:
        """By which two runs can be told apart."""

    def steps(self, epoch: int, first: int = 0) -> Iterator[list[Batch]]:
        """The steps of an epoch from a given one on, each as its batches."""


LOG_SECONDS = 0.5
CHECKPOINT_SECONDS = 120.0


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
    network: AnyNetwork,
    objectives: Sequence[tuple[Objective, float]],
    loader: Steps,
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
    # Batches of one shape, of a network that compiles whole, are one CUDA graph.
    graphed = device.type == "cuda" and loader.shape is not None and isinstance(network.encoder, Encoder)
    step = Step(network, objectives, settings, ranks, graphed=graphed)
    run = _Run(step, identity=_identity(settings, loader, fingerprint))
    state = State()
    num_steps = settings.epochs * loader.num_steps
    with _own_randomness(device, settings.seed + ranks.rank), _deferred_interrupt() as interrupted:
        if checkpoints is not None and (found := read_checkpoint(checkpoints)) is not None:
            state = run.restore(found)
        begin = saved = logged = time.monotonic()
        first = state.step
        for number, batches in _steps(loader, settings.epochs, first, pinned=device.type == "cuda"):
            loss = step(batches, settings.rate(number, num_steps))
            state.step = number + 1
            now = time.monotonic()
            if now - logged > LOG_SECONDS or state.step in (first + 1, num_steps):
                logged = now
                done = state.step - first
                event = {"event": "step", "step": state.step, "steps": num_steps, "loss": _checked(loss, state.step)}
                event |= {
                    "lr": settings.rate(number, num_steps),
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
                write_checkpoint(checkpoints, run.checkpoint(state), max_bytes=settings.checkpoint_mb * 10**6)
                saved = time.monotonic()
            if stopped:
                raise KeyboardInterrupt
            if ended:
                break
        seconds = time.monotonic() - begin
    run.finish()
    _tell(watchers, {"event": "end", "step": state.step, "seconds": seconds}, ranks)
    return Outcome(state, state.step - first, seconds)


class _Run:
    """A step, the best weights so far, and how both become a checkpoint."""

    def __init__(self, step: Step, identity: dict[str, Any]) -> None:
        self.step, self.identity = step, identity
        self.best: dict[str, Tensor] = {}

    def keep_best(self) -> None:
        self.best = {name: value.detach().clone() for name, value in self.step.weights().items()}

    def checkpoint(self, state: State) -> Checkpoint:
        random = {"cpu": torch.get_rng_state()}
        if self.step.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.step.device)
        tensors = {
            "model": self.step.weights(),
            "optimizer": self.step.update.tensors(),
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
        self.step.load_weights(found.tensors["model"])
        self.step.update.restore(found.tensors["optimizer"])
        self.best = {name: value.to(self.step.device) for name, value in found.tensors["best"].items()}
        torch.set_rng_state(found.tensors["random"]["cpu"])
        if self.step.device.type == "cuda":
            torch.cuda.set_rng_state(found.tensors["random"]["cuda"], self.step.device)
        values = found.values["state"]
        return State(**{**values, "best_score": -math.inf if values["best_score"] is None else values["best_score"]})

    def finish(self) -> None:
        if self.best:
            self.step.load_weights(self.best)
        self.step.finish()


def _note_evaluation(run: _Run, state: State, evaluate: Evaluate, watchers: Sequence[Watcher], ranks: Ranks) -> None:
    """Evaluate on the first rank, whose word counts."""
    improved = False
    if ranks.is_first:
        run.step.trained.eval()
        metrics = dict(evaluate(run.step.network))
        run.step.trained.train()
        event = {"event": "evaluation", "step": state.step, **metrics}
        state.history.append(event)
        improved = metrics["score"] > state.best_score
        if improved:
            state.best_step, state.best_score = state.step, metrics["score"]
            run.keep_best()
        state.stale = 0 if improved else state.stale + 1
        _tell(watchers, event, ranks)


def _steps(loader: Steps, epochs: int, first: int, *, pinned: bool) -> Iterator[tuple[int, list[Batch]]]:
    """All steps from a given one on, with their numbers."""
    for epoch in range(first // loader.num_steps, epochs):
        begin = max(0, first - epoch * loader.num_steps)
        numbered = range(epoch * loader.num_steps + begin, (epoch + 1) * loader.num_steps)
        yield from zip(numbered, prefetch(loader.steps(epoch, begin), pinned=pinned), strict=True)


def _is_due(step: int, steps_per_epoch: int, evaluations: int) -> bool:
    """Whether an evaluation follows a step: so many an epoch, evenly, one at its end."""
    within = (step - 1) % steps_per_epoch + 1
    return within * evaluations // steps_per_epoch > (within - 1) * evaluations // steps_per_epoch


def _identity(settings: Settings, loader: Steps, fingerprint: str) -> dict[str, Any]:
    """What two runs must have in common for one to go on with the other's checkpoint."""
    return {
        **asdict(settings),
        **loader.facts,
        "run": fingerprint,
    }


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
