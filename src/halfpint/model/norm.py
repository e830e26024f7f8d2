"""The two norms of the family, and the sum that every residual connection ends in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfpint.config import Norm


class NoNorm(nn.Module):
    """MobileBERT's norm: a scale and a shift, nothing measured from the data."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x, self.weight)


def make_norm(kind: Norm, size: int, eps: float) -> nn.Module:
    return NoNorm(size) if kind == "no_norm" else nn.LayerNorm(size, eps=eps)
