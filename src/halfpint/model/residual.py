"""How every half of a layer ends: norm(dropout(linear(x)) + residual), in one kernel where there is one.

On a GPU in half precision that kernel (`fused_norm.py`, Triton) also adds the linear layer's bias. Everywhere else, and
for MobileBERT's norm, it is the operations one by one.
"""

from __future__ import annotations

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.model.backends import MAX_FUSED_WIDTH
from halfpint.model.dropout import drop
from halfpint.model.linear import Linear

HAS_TRITON = importlib.util.find_spec("triton") is not None


class Noise:
    """The random numbers of one forward pass: a seed on the device, and how often it was used."""

    def __init__(self, states: Tensor, *, wanted: bool) -> None:
        self.seed = torch.zeros(1, dtype=torch.int64, device=states.device)
        if wanted and is_fused(states):
            self.seed = torch.randint(2**62, (1,), device=states.device)
        self.uses = 0

    def next_use(self) -> int:
        self.uses += 1
        return self.uses


def is_fused(states: Tensor) -> bool:
    """Whether halves of a layer with these states end in the one kernel."""
    on_gpu = states.device.type == "cuda" and states.dtype in (torch.float16, torch.bfloat16)
    return HAS_TRITON and on_gpu and states.shape[-1] <= MAX_FUSED_WIDTH


def close_half(x: Tensor, linear: Linear, residual: Tensor, norm: nn.Module, dropout: float, noise: Noise) -> Tensor:
    """norm(dropout(linear(x)) + residual): (T, inner), (T, H) → (T, H). Where nothing is dropped, `dropout` is 0."""
    if isinstance(norm, nn.LayerNorm) and is_fused(residual):
        from halfpint.model.fused_norm import add_norm  # needs Triton

        product = F.linear(x, linear.weight)
        return add_norm(
            product, linear.bias, residual, norm.weight, norm.bias, norm.eps, dropout, noise.seed, noise.next_use()
        )
    normed: Tensor = norm(drop(linear(x), dropout) + residual)
    return normed
