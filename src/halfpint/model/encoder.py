"""The encoder: embeddings, then the blocks in the order the sharing map says, then perhaps a pooler."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from halfpint.config import EncoderConfig
from halfpint.model import attention
from halfpint.model.attention import AttentionPlan, plan_attention
from halfpint.model.batch import Batch
from halfpint.model.block import AttentionBlock, FeedForwardBlock
from halfpint.model.embeddings import Embeddings, compute_dtype
from halfpint.model.initialize import initialize
from halfpint.model.linear import Linear
from halfpint.model.residual import Noise
from halfpint.model.taps import NO_TAPS, Tapped, Taps


@dataclass
class Output:
    """What a forward pass returns. Letters: T tokens, S sequence slots, H hidden size."""

    hidden: Tensor  # (T, H)
    pooled: Tensor | None  # (S, H)
    tapped: Tapped = field(default_factory=Tapped)
    ends_with_class: bool = False
    """Whether the token that stands for a sequence is its last; mostly it is the first."""

    def class_tokens(self, batch: Batch) -> Tensor:
        """Index of the token that stands for each sequence."""  # (S,)
        return batch.last_tokens() if self.ends_with_class else batch.first_tokens()


class Encoder(nn.Module):
    """Any member of the family."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.attention = nn.ModuleList(AttentionBlock(config, heads) for heads in config.num_heads)
        self.ffn = nn.ModuleList(FeedForwardBlock(config, size) for size in config.ffn_size)
        if config.pooler == "tanh":
            self.pooler = Linear(config.hidden_size, config.hidden_size)
        initialize(self, config.initializer_range)

    def forward(self, batch: Batch, taps: Taps = NO_TAPS) -> Output:
        taps.check(self.config.num_layers)
        hidden = self.embeddings(batch)
        plan = plan_attention(
            batch,
            compute_dtype(hidden),
            self.config.head_size,
            dropout=self.config.attention_dropout if self.training else 0.0,
            padding=taps.need_padding,
        )
        noise = Noise(hidden, wanted=self.training and self.config.dropout > 0)
        tapped = Tapped()
        if 0 in taps.hidden:
            tapped.hidden[0] = hidden
        sharing = self.config.sharing
        for layer, (attention_index, ffn_index) in enumerate(zip(sharing.attention, sharing.ffn, strict=True), start=1):
            attended, qkv = self.attention[attention_index](hidden, plan, noise)
            hidden = self.ffn[ffn_index](attended, hidden, noise)
            _tap(tapped, taps, layer, hidden, qkv, plan)
        return Output(hidden, self.pool(hidden, batch), tapped)

    def pool(self, hidden: Tensor, batch: Batch) -> Tensor | None:
        if self.config.pooler == "none":
            return None
        first = hidden[batch.first_tokens()]
        return torch.tanh(self.pooler(first)) if self.config.pooler == "tanh" else first


def _tap(tapped: Tapped, taps: Taps, layer: int, hidden: Tensor, qkv: Tensor, plan: AttentionPlan) -> None:
    query, key, value = qkv.unbind(1)
    if layer in taps.hidden:
        tapped.hidden[layer] = hidden
    if layer in taps.vectors:
        tapped.queries[layer], tapped.keys[layer], tapped.values[layer] = query, key, value
    if layer in taps.scores or layer in taps.probabilities:
        assert plan.padding is not None
        scores = attention.scores(query, key, plan.padding)
        if layer in taps.scores:
            tapped.scores[layer] = scores
        if layer in taps.probabilities:
            tapped.probabilities[layer] = attention.probabilities(scores, plan.padding)
