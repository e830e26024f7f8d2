"""Attention over ragged tokens: every backend, in one file.

`plan_attention` looks at a batch once a forward pass; `attend` then runs each layer by the plan:
- `short`: CUDA, half precision, short sequences. Small tiles, by a kernel of our own.
- `flash`: CUDA, half precision. Flash attention over cumulative lengths; nothing is padded.
- `runs`: eager CPU. One call for each run of neighbours of equal length, so mostly one a sequence; nothing is padded.
  Sorting texts by length beforehand makes the runs longer and the calls fewer. Calls are torch's fused one, except
  in half precision, where processors do better: plain products of long sequences, and in training float32 for short
  ones, whose gradients the fused call computes slowly.
- `padded`: the exact form of static shape, for export, compiled CPU code, fp32 on CUDA, and layers that
  drop attention weights.
Scores and probabilities are computed only for layers whose taps ask for them, in padded form.

Letters in comments: T tokens, S sequence slots, L the longest sequence, h heads, d head size.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from halfpint.model.backends import LONG, gpu_backend
from halfpint.model.batch import Batch

Backend = Literal["short", "flash", "runs", "padded"]

HAS_TRITON = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Padding:
    """Where ragged tokens lie in a padded rectangle, and back."""

    tokens: Tensor  # (S, L): the token of each place; some token where there is none
    mask: Tensor  # (S, L): whether there is one
    places: Tensor  # (T,): the place of each token in the flattened rectangle

    @classmethod
    def of(cls, batch: Batch) -> Padding:
        steps = torch.arange(batch.longest, device=batch.device)
        starts = batch.cu_lengths[:-1].long()
        mask = steps < torch.diff(batch.cu_lengths)[:, None]
        tokens = (starts[:, None] + steps).clamp(max=batch.num_tokens - 1)
        slots = batch.slots()
        places = slots * batch.longest + torch.arange(batch.num_tokens, device=batch.device) - starts[slots]
        return cls(tokens=tokens, mask=mask, places=places)

    def pad(self, values: Tensor) -> Tensor:
        """(T, …) → (S, L, …); what stands at empty places is finite and must be masked."""
        return values[self.tokens]

    def unpad(self, values: Tensor) -> Tensor:
        """(S, L, …) → (T, …)."""
        return values.flatten(0, 1)[self.places]


@dataclass(frozen=True)
class AttentionPlan:
    """How one forward pass attends; made once, used by every layer."""

    backend: Backend
    batch: Batch
    padding: Padding | None
    dropout: float = 0.0
    """The share of attention weights to drop; only the padded form can."""


def plan_attention(
    batch: Batch, dtype: torch.dtype, head_size: int, *, dropout: float = 0.0, padding: bool = False
) -> AttentionPlan:
    """Choose the backend. `dropout` is the share of attention weights to drop; some tap may need the `padding`."""
    if dropout:
        backend: Backend = "padded"
    elif batch.device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        backend = gpu_backend(batch.longest, head_size) if HAS_TRITON else "flash"
    elif batch.device.type == "cpu" and not torch.compiler.is_compiling():
        backend = "runs"
    else:
        backend = "padded"
    return AttentionPlan(backend, batch, Padding.of(batch) if padding or backend == "padded" else None, dropout)


def attend(qkv: Tensor, plan: AttentionPlan) -> Tensor:
    """softmax(q · kᵀ / √d) · v within every sequence: (T, 3, h, d) → (T, h, d)."""
    batch = plan.batch
    if plan.backend == "short":
        from halfpint.model.short_attention import attend_short  # needs Triton

        return attend_short(qkv, batch.cu_lengths, batch.longest)
    query, key, value = qkv.unbind(1)
    if plan.backend == "flash":
        return _attend_flash(query, key, value, batch)
    if plan.backend == "runs":
        return _attend_runs(query, key, value, batch.lengths)
    assert plan.padding is not None
    return _attend_padded(query, key, value, plan.padding, plan.dropout)


def _attend_flash(query: Tensor, key: Tensor, value: Tensor, batch: Batch) -> Tensor:
    """One wrapper for torch 2.11 to 2.13, whose signatures differ; only what both have is used."""
    from torch.nn.attention.varlen import varlen_attn

    size = query.shape[-1]
    padded_size = -(-size // 8) * 8
    if padded_size != size:
        # The kernel wants multiples of 8 and scales by the size it sees; q is scaled to make up for it.
        query = query * (padded_size / size) ** 0.5
        query, key, value = (F.pad(part, (0, padded_size - size)) for part in (query, key, value))
    lengths = batch.cu_lengths
    out = varlen_attn(query, key, value, lengths, lengths, batch.longest, batch.longest)
    assert isinstance(out, Tensor)
    return out[..., :size]


def _attend_runs(query: Tensor, key: Tensor, value: Tensor, lengths: list[int]) -> Tensor:
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    runs = list(_runs(lengths, alone=LONG if is_half else None))
    sizes = [count * length for count, length in runs]
    # A network that is judged between two steps is to answer as it does in them.
    trains = is_half and (query.requires_grad or torch.is_autocast_enabled("cpu"))
    pieces = []
    with torch.autocast("cpu", enabled=False):
        given = [part.split(sizes) for part in (query, key, value)]
        short = [part.float().split(sizes) for part in (query, key, value)] if trains else given
        for number, run in enumerate(runs):
            is_long = is_half and run[1] >= LONG
            parts = (each[number] for each in (given if is_long else short))
            q, k, v = (part.unflatten(0, run).transpose(1, 2) for part in parts)  # (count, h, length, d)
            out = _products(q, k, v) if is_long else F.scaled_dot_product_attention(q, k, v)
            pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).to(query.dtype)


def _runs(lengths: list[int], alone: int | None) -> Iterator[tuple[int, int]]:
    """How many neighbours have which length; those of so many tokens and more stay alone, as fits the cache best."""
    for length, run in groupby(lengths):
        count = sum(1 for _ in run)
        if length:
            yield from [(count, length)] if alone is None or length < alone else [(1, length)] * count


def _products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
    out: Tensor = scores.softmax(dim=-1) @ value
    return out


def _attend_padded(query: Tensor, key: Tensor, value: Tensor, padding: Padding, dropout: float) -> Tensor:
    q, k, v = (padding.pad(part).transpose(1, 2) for part in (query, key, value))  # (S, h, L, d)
    # An empty slot attends to everything rather than to nothing: its result is thrown away, but a row
    # without any key is a NaN in the backward pass.
    mask = padding.mask | ~padding.mask.any(dim=1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], dropout_p=dropout)
    return padding.unpad(out.transpose(1, 2))


def scores(query: Tensor, key: Tensor, padding: Padding) -> Tensor:
    """q · kᵀ / √d before the softmax, zero where either token is missing: (S, h, L, L)."""
    q, k = (padding.pad(part).transpose(1, 2) for part in (query, key))
    both = padding.mask[:, None, :, None] & padding.mask[:, None, None, :]
    return torch.where(both, q @ k.transpose(2, 3) * query.shape[-1] ** -0.5, 0.0)


def probabilities(scores: Tensor, padding: Padding) -> Tensor:
    """The softmax of `scores` over the tokens that are there, zero elsewhere: (S, h, L, L)."""
    keys = padding.mask[:, None, None, :]
    masked = scores.masked_fill(~keys, torch.finfo(scores.dtype).min)
    return masked.softmax(dim=-1) * (padding.mask[:, None, :, None] & keys)


def relations(vectors: Tensor, padding: Padding, num_heads: int) -> Tensor:
    """MiniLM's relation of queries, keys or values with themselves, cut into any number of relation heads.

    softmax(v · vᵀ / √d) over (T, heads, size) vectors regrouped to `num_heads`: (S, num_heads, L, L).
    """
    width = vectors.shape[-2] * vectors.shape[-1]
    if width % num_heads:
        raise ValueError(f"a width of {width} does not divide into {num_heads} relation heads")
    regrouped = vectors.reshape(len(vectors), num_heads, width // num_heads)
    return probabilities(scores(regrouped, regrouped, padding), padding)
