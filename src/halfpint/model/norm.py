"""The two norms of the family, in the precision of what they are given.

Autocast would compute them in float32 and return that, and with it the whole stream of states between layers would
be float32, at twice the memory and traffic. Their arithmetic is float32 inside either way; here what comes in as
bf16 goes out as bf16.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.config import Norm


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that autocast leaves alone."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype or x.device.type == "cpu":
            # The CPU's kernel takes float32 weights beside bf16 states, and its autocast has no word on norms.
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class NoNorm(nn.Module):
    """MobileBERT's norm: a scale and a shift, nothing measured from the data."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias.to(x.dtype), x, self.weight.to(x.dtype))


def make_norm(kind: Norm, size: int, eps: float) -> nn.Module:
    return NoNorm(size) if kind == "no_norm" else LayerNorm(size, eps=eps)
