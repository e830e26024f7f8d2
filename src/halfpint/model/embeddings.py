"""Words, positions and token types to the first hidden states.

Full (BERT), factorized after the sum (ALBERT), factorized before it and with trigrams (MobileBERT): one
module, decided by the config. Letters in comments: T tokens, E embedding size, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfpint.config import EncoderConfig
from halfpint.model.batch import Batch
from halfpint.model.dropout import drop
from halfpint.model.linear import Linear
from halfpint.model.norm import make_norm


class Embeddings(nn.Module):
    """(T,) ids → (T, H) states."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        # The sum is made in width E where the sum is projected, else in width H.
        width = config.embedding_size if config.embedding_projection == "sum" else config.hidden_size
        self.words = nn.Embedding(config.vocab_size, config.embedding_size)
        self.positions = nn.Embedding(config.position_offset + config.num_positions, width)
        if config.num_token_types:
            self.token_types = nn.Embedding(config.num_token_types, width)
        if config.embedding_projection != "none":
            inputs = config.embedding_size * (3 if config.trigram else 1)
            self.project = Linear(inputs, config.hidden_size)
        self.norm = make_norm(config.norm, width, config.closing_norm_eps)

    def forward(self, batch: Batch) -> Tensor:
        config = self.config
        states = self.words(batch.ids)
        if config.trigram:
            states = _with_neighbours(states, batch.slots())
        if config.embedding_projection == "words":
            states = self.project(states)
        states = states + self.positions(batch.positions + config.position_offset)
        if config.num_token_types:
            states = states + self.token_types(batch.segments)
        states = drop(self.norm(states.to(compute_dtype(states))), config.dropout, self.training)
        return self.project(states) if config.embedding_projection == "sum" else states


def compute_dtype(states: Tensor) -> torch.dtype:
    """The dtype that the layers will work in: autocast's, where it is on."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def _with_neighbours(words: Tensor, slots: Tensor) -> Tensor:
    """Next word, word and previous word side by side, zeros past a sequence's ends: (T, E) → (T, 3E)."""
    inside = (slots[1:] == slots[:-1])[:, None]
    edge = words.new_zeros(1, words.shape[1])
    following = torch.cat([torch.where(inside, words[1:], 0.0), edge])
    previous = torch.cat([edge, torch.where(inside, words[:-1], 0.0)])
    return torch.cat([following, words, previous], dim=1)
