"""What a model costs by arithmetic alone: parameters, bytes, FLOPs, activation memory. No torch, no weights.

Stored parameters are what lies on disk; effective parameters are what one forward pass uses, so a shared block
counts as often as it is used. A model's cost in time follows the second number, its size the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.measure.activations import activation_bytes
from halfpint.measure.weights import Part, Weight, weights

__all__ = ["Counts", "activation_bytes", "count", "flops"]


@dataclass(frozen=True)
class Counts:
    """The costs of one model."""

    stored_parameters: int
    effective_parameters: int
    """Shared blocks as often as a forward pass uses them; embeddings and everything else once."""
    parts: dict[str, int]
    """Stored parameters of embeddings, attention, ffn, pooler and head."""
    effective_parts: dict[str, int]
    bytes: dict[str, int]
    """Stored bytes in fp32, bf16 and int8.

    int8 is one byte for each weight of a matrix (linear layers and embedding tables), one float32 scale for each
    of its rows (an output channel, an entry), and float32 vectors (biases and norms).
    """
    flops: int
    """Of one forward pass of one sequence of `length` tokens; see `flops`."""
    length: int
    activation_bytes: int
    """Saved for the backward pass of one step over `batch` such sequences, in bf16 autocast on CUDA."""
    batch: int


def count(config: ModelConfig | EncoderConfig, *, length: int = 128, batch: int = 32) -> Counts:
    """All costs of a model, or of an encoder without heads."""
    model = _model(config)
    if batch < 1:
        raise ValueError(f"batch is {batch}; it needs at least one sequence")
    every = list(weights(model))
    parts, effective_parts = _by_part(every, effective=False), _by_part(every, effective=True)
    stored = sum(parts.values())
    return Counts(
        stored_parameters=stored,
        effective_parameters=sum(effective_parts.values()),
        parts=parts,
        effective_parts=effective_parts,
        bytes={"fp32": 4 * stored, "bf16": 2 * stored, "int8": sum(map(_int8_bytes, every))},
        flops=flops(model, length),
        length=length,
        activation_bytes=activation_bytes(model, tokens=batch * length, sequences=batch),
        batch=batch,
    )


def flops(config: ModelConfig | EncoderConfig, length: int) -> int:
    """Floating point operations of one forward pass of one sequence, all heads included.

    As `torch.utils.flop_counter` has it: matrix products only (linear layers, q · kᵀ, attention · v), a
    multiplication and an addition are two. The masked LM head scores every token of the sequence.
    """
    model = _model(config)
    encoder = model.encoder
    if not 1 <= length <= encoder.num_positions:
        raise ValueError(f"length is {length}; this encoder takes 1 to {encoder.num_positions} tokens")
    linear = sum(
        2 * weight.size * weight.uses * (1 if weight.first_token_only else length)
        for weight in weights(model)
        if weight.kind == "linear"
    )
    heads = sum(encoder.num_heads[block] for block in encoder.sharing.attention)
    attention = 4 * length * length * heads * encoder.head_size
    tied_decoder = 2 * length * encoder.vocab_size * encoder.embedding_size if model.head("masked_lm") else 0
    return linear + attention + tied_decoder


def _model(config: ModelConfig | EncoderConfig) -> ModelConfig:
    return config if isinstance(config, ModelConfig) else ModelConfig(config)


def _by_part(every: Iterable[Weight], *, effective: bool) -> dict[str, int]:
    parts: dict[str, int] = dict.fromkeys(get_args(Part), 0)
    for weight in every:
        parts[weight.part] += weight.size * (weight.uses if effective else 1)
    return parts


def _int8_bytes(weight: Weight) -> int:
    return 4 * weight.size if weight.kind == "vector" else weight.size + 4 * weight.rows
