"""The losses of the tasks: one for each kind of head, on labels that ride in the batch.

Labels are `batch.per_slot["label"]` (a class, a row of zeros and ones, numbers, the right option, the cosine of a row's
texts, or the start and the end of an answer within its sequence) or `batch.per_token["label"]`. Filler has none and
counts nothing.
Letters in comments: T tokens, S sequence slots, L labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.config import HeadConfig, SequenceHead, SpanHead
from halfpint.model.batch import FILLER, IGNORED, Batch
from halfpint.model.taps import NO_TAPS, Taps
from halfpint.objectives.objective import Seen

TEMPERATURE = 0.05
"""Of the softmax over in-batch candidates, as sentence-transformers has it (a scale of 20)."""


@dataclass(frozen=True)
class TaskObjective:
    """The loss of one head against the labels of its task."""

    head: HeadConfig
    class_weights: tuple[float, ...] | None = None
    """Of a single-label task, one a class."""

    @property
    def names(self) -> tuple[str, ...]:
        return ("task",)

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.head.kind,)

    @property
    def taps(self) -> Taps:
        return NO_TAPS

    @property
    def modules(self) -> nn.Module | None:
        return None

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"task": self._weights(batch).sum()}

    def losses(self, student: Seen, batch: Batch) -> dict[str, Tensor]:
        scores = student.answers[self.head.kind].float()
        terms = _LOSSES[self.head.kind](scores, batch, self.head)
        return {"task": (terms * self._weights(batch)).sum()}

    def _weights(self, batch: Batch) -> Tensor:
        """The weight of every term, 0 where there is no label."""
        if self.head.kind == "token":
            return (batch.per_token["label"] != IGNORED).float()
        if self.head.kind == "choice":
            return first_of_row(batch).float()
        if self.head.kind == "embedding":
            return (first_of_row(batch) & _has_partner(batch)).float()
        real = (batch.row != FILLER).float()
        if self.class_weights is None:
            return real
        weights = torch.tensor(self.class_weights, device=batch.device)
        return real * weights[batch.per_slot["label"].clamp(min=0)]


def first_of_row(batch: Batch) -> Tensor:
    """Whether a slot holds the first sequence of a row: (S,)."""
    before = F.pad(batch.row[:-1], (1, 0), value=FILLER)
    return (batch.row != FILLER) & (batch.row != before)


def _sequence(scores: Tensor, batch: Batch, head: SequenceHead) -> Tensor:
    labels = batch.per_slot["label"]
    if head.problem == "single_label":
        return F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="none")
    if head.problem == "multi_label":
        return F.binary_cross_entropy_with_logits(scores, labels.float().clamp(0, 1), reduction="none").mean(dim=1)
    return (scores - labels.float().view_as(scores)).square().mean(dim=1)


def _token(scores: Tensor, batch: Batch, _: HeadConfig) -> Tensor:
    return F.cross_entropy(scores, batch.per_token["label"], ignore_index=IGNORED, reduction="none")


def _span(scores: Tensor, batch: Batch, head: SpanHead) -> Tensor:
    """The mean of both ends' cross-entropies over the tokens of a sequence; an absent answer ends at token 0."""
    slots = batch.slots()
    first = batch.first_tokens()
    ends = batch.per_slot["label"].clamp(min=0)  # (S, 2)
    logs = torch.stack([log_sum_exp(scores[:, end], slots, batch.num_slots) for end in (0, 1)], dim=1)
    wanted = torch.stack([scores[:, end][(first + ends[:, end]).clamp(max=len(scores) - 1)] for end in (0, 1)], dim=1)
    terms = (logs - wanted).mean(dim=1)
    if head.no_answer:
        absent = (ends == 0).all(dim=1).float()
        terms = terms + F.binary_cross_entropy_with_logits(scores[first, 2], absent, reduction="none")
    return terms


def _choice(scores: Tensor, batch: Batch, _: HeadConfig) -> Tensor:
    """Cross-entropy over the options of a row, at the slot of its first."""
    # Filler goes to a row of its own behind all others.
    row = torch.where(batch.row == FILLER, batch.num_slots, batch.row)
    logs = log_sum_exp(scores, row, batch.num_slots + 1)[row]
    right = torch.arange(batch.num_slots, device=batch.device) + batch.per_slot["label"].clamp(min=0)
    return logs - scores[right.clamp(max=batch.num_slots - 1)]


def _embedding(vectors: Tensor, batch: Batch, _: HeadConfig) -> Tensor:
    """Of each row, at the slot of its first text: the squared error of its cosine with the second where that is
    labelled, else its cross-entropy over the second texts of all rows and all further ones.
    """
    partner = (torch.arange(batch.num_slots, device=batch.device) + 1).clamp(max=batch.num_slots - 1)
    if "label" in batch.per_slot:
        cosines = F.cosine_similarity(vectors, vectors[partner], dim=1)
        return (cosines - batch.per_slot["label"].float()).square()
    others = (batch.row != FILLER) & ~first_of_row(batch)
    likeness = (vectors @ vectors.t() / TEMPERATURE).masked_fill(~others[None, :], -1e4)
    return F.cross_entropy(likeness, partner, reduction="none")


def _has_partner(batch: Batch) -> Tensor:
    """Whether the slot after this one is of the same row: (S,)."""
    return F.pad(batch.row[1:], (0, 1), value=FILLER) == batch.row


def log_sum_exp(values: Tensor, group: Tensor, num_groups: int) -> Tensor:
    """log Σ exp of the values of each group; of a group without any, 0: (num_groups,)."""
    highest = values.new_full((num_groups,), float("-inf")).scatter_reduce(0, group, values.detach(), "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    sums = values.new_zeros(num_groups).index_add(0, group, torch.exp(values - highest[group]))
    return highest + torch.log(torch.where(sums > 0, sums, 1.0))


_LOSSES: dict[str, Callable[..., Tensor]] = {
    "sequence": _sequence,
    "token": _token,
    "span": _span,
    "choice": _choice,
    "embedding": _embedding,
}
