"""Counts of architectures outside the family, by running them once: their modules and FLOPs are observed.

What analysis gives for the family is observed here: a parameter counts as often as its module runs, FLOPs are
those of `torch.utils.flop_counter`, and activations are what autograd saves under bf16 autocast, on the CPU and
without dropout (so, its masks apart).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from halfpint.checkpoints.adapter import ForeignEncoder, make_foreign, plain_attention
from halfpint.measure.counts import Counts
from halfpint.model.batch import Batch

_PARTS = ("embeddings", "attention", "ffn", "pooler", "head")


def count_foreign(folder: Path, *, length: int, batch: int) -> Counts:
    """The counts of a Hub folder that only `transformers` can build."""
    encoder = make_foreign(folder)
    length = min(length, encoder.num_positions)
    uses, flops = _observe(encoder, length)
    stored = {name: parameter.numel() for name, parameter in encoder.model.named_parameters()}
    parts, effective = dict.fromkeys(_PARTS, 0), dict.fromkeys(_PARTS, 0)
    for name, size in stored.items():
        part = _part(name)
        parts[part] += size
        effective[part] += size * (1 if part == "embeddings" else max(1, uses[name]))
    total = sum(stored.values())
    return Counts(
        stored_parameters=total,
        effective_parameters=sum(effective.values()),
        parts=parts,
        effective_parts=effective,
        bytes={"fp32": 4 * total, "bf16": 2 * total, "int8": _int8_bytes(encoder)},
        flops=flops,
        length=length,
        activation_bytes=_activation_bytes(encoder, length, batch),
        batch=batch,
    )


def _part(name: str) -> str:
    """A guess by name, for the table's sake: foreign architectures call their parts as they like."""
    if "embed" in name:
        return "embeddings"
    if "pooler" in name:
        return "pooler"
    return "attention" if any(word in name.lower() for word in ("attn", "attention", "rel_attn")) else "ffn"


def _observe(encoder: ForeignEncoder, length: int) -> tuple[Counter[str], int]:
    """How often each parameter's module ran, and the FLOPs, of one sequence."""
    uses: Counter[str] = Counter()
    prefixes = {module: prefix for prefix, module in encoder.model.named_modules(remove_duplicate=True)}

    def note(module: nn.Module, *_: Any) -> None:
        for name, _parameter in module.named_parameters(recurse=False):
            uses[f"{prefixes[module]}.{name}".lstrip(".")] += 1

    hooks = [module.register_forward_hook(note) for module in encoder.model.modules()]
    try:
        # The counter knows neither the CPU's fused attention nor the linear layer that runs without gradients.
        with plain_attention(encoder.model), torch.enable_grad(), FlopCounterMode(display=False) as counter:
            encoder(_sequences(length, 1))
    finally:
        for hook in hooks:
            hook.remove()
    return uses, counter.get_total_flops()


def _activation_bytes(encoder: ForeignEncoder, length: int, batch: int) -> int:
    """Of two small batches' figures one is for each sequence, the other (autocast's copies of weights) for all."""
    one, two = (_saved_bytes(encoder, _sequences(length, count)) for count in (1, 2))
    return one + (batch - 1) * (two - one)


def _saved_bytes(encoder: ForeignEncoder, batch: Batch) -> int:
    """Bytes of the distinct storages that autograd keeps for the backward pass, the weights apart."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output = encoder(batch)
    del output  # held until here, so that no storage was freed and its address used again
    return sum(saved.values())


def _sequences(length: int, count: int) -> Batch:
    return Batch.from_ids([[5] * length] * count)


def _int8_bytes(encoder: ForeignEncoder) -> int:
    """As for the family: matrices at one byte with a scale a row, vectors in fp32."""
    return sum(
        each.numel() + 4 * each.shape[0] if each.dim() > 1 else 4 * each.numel() for each in encoder.model.parameters()
    )
