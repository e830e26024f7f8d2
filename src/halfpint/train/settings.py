"""Everything that decides a training run besides the model, the data and the objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from halfpint.config import Precision

OptimizerName = Literal["adamw", "lamb", "muon"]
Schedule = Literal["linear", "cosine", "constant"]


class SettingsError(ValueError):
    """A setting that cannot be; the message says what was given and what is possible."""


@dataclass(frozen=True)
class Settings:
    """Defaults are those of fine-tuning."""

    epochs: int = 3
    batch: int = 32
    """Rows of a step."""
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-4
    schedule: Schedule = "linear"
    warmup: float = 0.1
    """The share of all steps in which the rate rises."""
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float = 1.0
    """The largest norm of all gradients together; 0 leaves them as they are."""
    precision: Precision = "fp32"
    seed: int = 0
    checkpoint_mb: int = 2000
    """Of one file of a checkpoint, at most; a tensor that alone is larger has a file of its own."""
    evaluations: int = 1
    """Of each epoch."""
    patience: int = 0
    """Evaluations without improvement before the run ends early; 0 runs to the end."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "evaluations", "checkpoint_mb"):
            _require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("lr", "eps"):
            _require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("weight_decay", "clip", "patience", "seed"):
            _require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it cannot be negative")
        _require(self.seed < 2**32, f"seed is {self.seed}; it must be below 2³²")
        for name in ("warmup", "beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, f"{name} is {getattr(self, name)}; it must be in [0, 1)")
        for name, kinds in (("optimizer", OptimizerName), ("schedule", Schedule), ("precision", Precision)):
            value = getattr(self, name)
            _require(value in get_args(kinds), f"{name} is {value!r}; it is one of {', '.join(get_args(kinds))}")

    def rate(self, step: int, num_steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = round(self.warmup * num_steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * _decay(self.schedule, (step - rising) / max(1, num_steps - rising))


def _decay(schedule: Schedule, done: float) -> float:
    """What is left of the rate when this share of the steps after warm-up is done."""
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * done))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SettingsError(message)
