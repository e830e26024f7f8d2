"""The two halves of a layer: an attention block and an FFN block, each physical and shareable.

A layer is `ffn(attention(hidden), hidden)`. BERT's FFN block has no use for the second argument; in
MobileBERT the residual crosses from one half to the other, because what flows between them is narrow.

Letters in comments: T tokens, H hidden size, B block size (H, or the bottleneck), h heads, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfpint.config import EncoderConfig
from halfpint.model.attention import AttentionPlan, attend
from halfpint.model.linear import Linear
from halfpint.model.norm import make_norm
from halfpint.model.residual import Noise, close_half


class Projection(nn.Module):
    """A linear layer and a norm: MobileBERT's way into a bottleneck."""

    def __init__(self, config: EncoderConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = Linear(inputs, outputs)
        self.norm = make_norm(config.norm, outputs, config.norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.norm(self.dense(hidden))
        return out


class AttentionBlock(nn.Module):
    """Self-attention, its output projection, residual and norm: (T, H) → (T, B), and q, k, v: (T, 3, h, d)."""

    def __init__(self, config: EncoderConfig, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = config.head_size
        self.dropout = 0.0 if config.bottleneck_size else config.dropout
        inner, width = num_heads * config.head_size, config.block_size
        if config.bottleneck_size:
            self.bottleneck = Projection(config, config.hidden_size, width)
        if config.shared_query_key:
            self.query_key_bottleneck = Projection(config, config.hidden_size, width)
            self.query_key = Linear(width, 2 * inner)
            self.value = Linear(config.hidden_size, inner)
        else:
            self.query_key_value = Linear(width, 3 * inner)
        self.output = Linear(inner, width)
        self.norm = make_norm(config.norm, width, config.norm_eps)

    def forward(self, hidden: Tensor, plan: AttentionPlan, noise: Noise) -> tuple[Tensor, Tensor]:
        narrow = self.bottleneck(hidden) if hasattr(self, "bottleneck") else hidden
        qkv = self.project(hidden, narrow).unflatten(1, (3, self.num_heads, self.head_size))
        attended = attend(qkv, plan).flatten(1)
        dropout = self.dropout if self.training else 0.0
        return close_half(attended, self.output, narrow, self.norm, dropout, noise), qkv

    def project(self, hidden: Tensor, narrow: Tensor) -> Tensor:
        """Queries, keys and values side by side: (T, 3 · h · d)."""
        if hasattr(self, "query_key_bottleneck"):
            return torch.cat([self.query_key(self.query_key_bottleneck(hidden)), self.value(hidden)], dim=1)
        joint: Tensor = self.query_key_value(narrow)
        return joint


class FeedForward(nn.Module):
    """Up, activation, down, residual and norm: (T, B) → (T, B)."""

    def __init__(self, config: EncoderConfig, ffn_size: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.activation = config.activation
        self.dropout = dropout
        self.up = Linear(config.block_size, ffn_size)
        self.down = Linear(ffn_size, config.block_size)
        self.norm = make_norm(config.norm, config.block_size, eps)

    def forward(self, x: Tensor, noise: Noise) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return close_half(self.up(x, self.activation), self.down, x, self.norm, dropout, noise)


class FeedForwardBlock(nn.Module):
    """One FFN or a stack of them, and MobileBERT's way out of the bottleneck: (T, B), (T, H) → (T, H)."""

    def __init__(self, config: EncoderConfig, ffn_size: int) -> None:
        super().__init__()
        last = config.num_ffns - 1
        # Dropout stands before the norm that ends the layer, and nowhere inside a bottleneck or a stack.
        closing = 0.0 if config.bottleneck_size else config.dropout
        self.stack = nn.ModuleList(
            FeedForward(
                config,
                ffn_size,
                eps=config.closing_norm_eps if index == last else config.norm_eps,
                dropout=closing if index == last else 0.0,
            )
            for index in range(config.num_ffns)
        )
        if config.bottleneck_size:
            self.dropout = config.dropout
            self.expand = Linear(config.block_size, config.hidden_size)
            self.norm = make_norm(config.norm, config.hidden_size, config.norm_eps)

    def forward(self, attended: Tensor, hidden: Tensor, noise: Noise) -> Tensor:
        for feed_forward in self.stack:
            attended = feed_forward(attended, noise)
        if not hasattr(self, "expand"):
            return attended
        dropout = self.dropout if self.training else 0.0
        return close_half(attended, self.expand, hidden, self.norm, dropout, noise)
