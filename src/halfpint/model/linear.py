"""Linear layers with their activation, on the fastest path that gives the same numbers.

On the CPU, oneDNN computes the product, the bias and the activation in one pass. In fp32 it also reaches
more than twice the rate of the BLAS that `torch.nn.functional.linear` calls on processors where that BLAS
does not use AVX-512 (measured on Zen 5: 430 against 190 GFLOP/s; `benchmarks/linear_cpu.py`).
Its operator has no gradient, so it serves inference only; training and compiled code take the plain path.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.config import Activation

# name: (oneDNN's name, its algorithm)
_FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}


def activate(values: Tensor, activation: Activation | None) -> Tensor:
    if activation is None:
        return values
    if activation == "relu":
        return F.relu(values)
    return F.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")


def _onednn_is_here() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


ONEDNN = _onednn_is_here()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    """activation(x · weightᵀ + bias)."""
    if ONEDNN and x.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        name, algorithm = _FUSED[activation]
        fused: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
        return fused
    return activate(F.linear(x, weight, bias), activation)


class Linear(nn.Linear):
    """`nn.Linear` whose forward takes the activation that follows it."""

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        return linear(x, self.weight, self.bias, activation)
