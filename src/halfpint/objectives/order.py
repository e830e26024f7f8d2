"""The loss of sentence order: next sentence (NSP), sentence order (SOP), or StructBERT's three-way order."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.model.batch import FILLER, IGNORED, Batch
from halfpint.model.taps import NO_TAPS, Taps
from halfpint.objectives.objective import Seen


@dataclass(frozen=True)
class OrderObjective:
    """Cross-entropy of `batch.per_slot["order"]`."""

    name: str = "order"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def heads(self) -> tuple[str, ...]:
        return ("order",)

    @property
    def taps(self) -> Taps:
        return NO_TAPS

    @property
    def modules(self) -> nn.Module | None:
        return None

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {self.name: (batch.row != FILLER).sum()}

    def losses(self, student: Seen, batch: Batch) -> dict[str, Tensor]:
        scores = student.answers["order"].float()
        return {self.name: F.cross_entropy(scores, batch.per_slot["order"], ignore_index=IGNORED, reduction="sum")}
