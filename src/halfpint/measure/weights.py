"""Every weight that `halfpint.model` builds for a config, as a list, without torch.

Parameters, bytes and FLOPs are sums over this list, so they cannot disagree about what a model is made of.
The bottleneck projections on MobileBERT's way into a block belong to attention, the way out to the FFN; the
projection from embedding size to hidden size belongs to the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from halfpint.config import (
    ChoiceHead,
    EmbeddingHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)

Part = Literal["embeddings", "attention", "ffn", "pooler", "head"]


@dataclass(frozen=True)
class Weight:
    """One tensor."""

    part: Part
    kind: Literal["linear", "table", "vector"]
    rows: int
    """Outputs of a linear layer, entries of an embedding table, length of a vector."""
    columns: int = 1
    uses: int = 1
    """How many layers of one forward pass use it."""
    first_token_only: bool = False
    """Whether it sees one token of a sequence instead of all."""

    @property
    def size(self) -> int:
        return self.rows * self.columns


def weights(config: ModelConfig) -> Iterator[Weight]:
    """All of them, each once however often it is used; the tied decoder is the word table."""
    encoder = config.encoder
    yield from _embeddings(encoder)
    for block, heads in enumerate(encoder.num_heads):
        yield from _attention(encoder, heads, encoder.sharing.attention.count(block))
    for block, size in enumerate(encoder.ffn_size):
        yield from _ffn(encoder, size, encoder.sharing.ffn.count(block))
    if encoder.pooler == "tanh":
        yield from _linear("pooler", encoder.hidden_size, encoder.hidden_size, first_token_only=True)
    for head in config.heads:
        yield from _head(encoder, head)


def summed_width(config: EncoderConfig) -> int:
    """Width in which the embeddings are summed; the masked LM's decoder reads the same width."""
    return config.embedding_size if config.embedding_projection == "sum" else config.hidden_size


def _linear(
    part: Part, inputs: int, outputs: int, *, uses: int = 1, first_token_only: bool = False
) -> Iterator[Weight]:
    yield Weight(part, "linear", outputs, inputs, uses, first_token_only)
    yield Weight(part, "vector", outputs, uses=uses)


def _norm(part: Part, size: int, *, uses: int = 1) -> Iterator[Weight]:
    for _ in ("weight", "bias"):
        yield Weight(part, "vector", size, uses=uses)


def _embeddings(config: EncoderConfig) -> Iterator[Weight]:
    width = summed_width(config)
    yield Weight("embeddings", "table", config.vocab_size, config.embedding_size)
    yield Weight("embeddings", "table", config.position_offset + config.num_positions, width)
    if config.num_token_types:
        yield Weight("embeddings", "table", config.num_token_types, width)
    if config.embedding_projection != "none":
        yield from _linear("embeddings", config.embedding_size * (3 if config.trigram else 1), config.hidden_size)
    yield from _norm("embeddings", width)


def _attention(config: EncoderConfig, heads: int, uses: int) -> Iterator[Weight]:
    hidden, width, inner = config.hidden_size, config.block_size, heads * config.head_size
    for _ in range((config.bottleneck_size is not None) + config.shared_query_key):
        yield from _linear("attention", hidden, width, uses=uses)
        yield from _norm("attention", width, uses=uses)
    if config.shared_query_key:
        yield from _linear("attention", width, 2 * inner, uses=uses)
        yield from _linear("attention", hidden, inner, uses=uses)
    else:
        yield from _linear("attention", width, 3 * inner, uses=uses)
    yield from _linear("attention", inner, width, uses=uses)
    yield from _norm("attention", width, uses=uses)


def _ffn(config: EncoderConfig, size: int, uses: int) -> Iterator[Weight]:
    width = config.block_size
    for _ in range(config.num_ffns):
        yield from _linear("ffn", width, size, uses=uses)
        yield from _linear("ffn", size, width, uses=uses)
        yield from _norm("ffn", width, uses=uses)
    if config.bottleneck_size:
        yield from _linear("ffn", width, config.hidden_size, uses=uses)
        yield from _norm("ffn", config.hidden_size, uses=uses)


def _head(config: EncoderConfig, head: HeadConfig) -> Iterator[Weight]:
    hidden = config.hidden_size
    match head:
        case MaskedLMHead():
            width = summed_width(config)
            yield from _linear("head", hidden, width)
            yield from _norm("head", width)
            yield Weight("head", "vector", config.vocab_size)
            if width > config.embedding_size:
                yield Weight("head", "linear", config.vocab_size, width - config.embedding_size)
        case OrderHead():
            yield from _linear("head", hidden, head.num_classes, first_token_only=True)
        case SequenceHead() | ChoiceHead():
            if head.dense:
                yield from _linear("head", hidden, hidden, first_token_only=True)
            outputs = len(head.labels) if isinstance(head, SequenceHead) else 1
            yield from _linear("head", hidden, outputs, first_token_only=True)
        case TokenHead():
            yield from _linear("head", hidden, len(head.labels))
        case SpanHead():
            yield from _linear("head", hidden, 2)
            if head.no_answer:
                yield from _linear("head", hidden, 1, first_token_only=True)
        case EmbeddingHead():
            return
