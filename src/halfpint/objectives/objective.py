"""The contract between an objective and the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.model.batch import Batch
from halfpint.model.encoder import Output
from halfpint.model.taps import Taps


@dataclass(frozen=True)
class Seen:
    """What a forward pass gave: the encoder's output, and the answer of every head that was asked."""

    output: Output
    answers: dict[str, Tensor]
    network: AnyNetwork | None = None
    """Where it came from, for losses that need weights."""


class Objective(Protocol):
    """Losses as sums and counts, apart: the loop divides by the counts of a whole step.

    A step may be several batches, on several machines, and only together do they make its mean. `counts` looks at
    the batch alone, so the loop knows them before the forward pass and gradients come out divided.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Of its losses."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Kinds of the heads whose answers it needs."""

    @property
    def taps(self) -> Taps:
        """What it needs to see inside the student."""

    @property
    def modules(self) -> nn.Module | None:
        """Learned parts of its own: trained and checkpointed, no part of the model."""

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """By name, how many terms a loss of this batch has, or the sum of their weights."""

    def losses(self, student: Seen, batch: Batch) -> dict[str, Tensor]:
        """By the same names, the sums of the terms."""
