"""How fresh weights are drawn, for every family and head."""

from __future__ import annotations

from torch import nn


def initialize(module: nn.Module, std: float) -> None:
    """Weights as in BERT, ALBERT and MobileBERT: a normal of the given deviation, cut at two deviations.

    - Matrices and embeddings: truncated normal, std 0.02 in every published preset (`initializer_range`).
      RoBERTa and DistilBERT draw from the uncut normal; what is left after the cut has 0.88 of its deviation.
    - Biases: zero. Norms, NoNorm included, start as the identity: they are built so and left alone.
    - The padding row is drawn like any other: ragged batches never read it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)
