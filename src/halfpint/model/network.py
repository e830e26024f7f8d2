"""An encoder and its heads: the module that is trained, saved and exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfpint.config import HeadConfig, ModelConfig
from halfpint.model.batch import Batch
from halfpint.model.encoder import Encoder, Output
from halfpint.model.heads import MaskedLM, make_head
from halfpint.model.initialize import initialize
from halfpint.model.taps import NO_TAPS, Taps


class Network(nn.Module):
    """`encoder(batch)`, and `answer(kind, output, batch)` for each head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder)
        self.heads = nn.ModuleDict()
        self.config = ModelConfig(config.encoder)
        for head in config.heads:
            self.add_head(head)

    def add_head(self, head: HeadConfig) -> None:
        """A fresh head, in place of one of its kind."""
        others = tuple(other for other in self.config.heads if other.kind != head.kind)
        self.config = ModelConfig(self.config.encoder, (*others, head))
        module = make_head(self.config.encoder, head)
        initialize(module, self.config.encoder.initializer_range)
        self.heads[head.kind] = module.to(self.words.device, self.words.dtype).train(self.training)

    @property
    def words(self) -> Tensor:
        """The embedding of words, with which a masked LM decodes."""
        return self.encoder.embeddings.words.weight

    def head_config(self, kind: str) -> HeadConfig | None:
        return self.config.head(kind)

    def drop_heads(self) -> None:
        self.config = ModelConfig(self.config.encoder)
        self.heads = nn.ModuleDict()

    def with_config(self, config: ModelConfig) -> Network:
        """The same weights, not copied, under a config of the same shapes: other dropouts, other labels."""
        with torch.device("meta"):
            network = Network(config)
        network.load_state_dict(self.state_dict(), assign=True)
        return network.train(self.training)

    def forward(self, batch: Batch, taps: Taps = NO_TAPS) -> tuple[Output, dict[str, Tensor]]:
        """The encoder's output and every head's answer."""
        output = self.encoder(batch, taps)
        return output, {kind: self.answer(kind, output, batch) for kind in self.heads}

    def answer(self, kind: str, output: Output, batch: Batch) -> Tensor:
        head = self.heads[kind]
        if isinstance(head, MaskedLM):
            scores: Tensor = head(output, batch, self.words)
            return scores
        answer: Tensor = head(output, batch)
        return answer
