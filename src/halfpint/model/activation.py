"""The family's activations, compiled GPU code included.

A compiler fuses a GELU into one kernel, but writes erf and tanh as the long way round that a CPU takes: on an H200
that kernel is bound by its arithmetic, at half the memory's rate. In half precision the same functions are written
here with one exponential and one division. They are exact to about float32's rounding, so nothing changes that
half precision could hold. Eager code calls torch's own kernels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halfpint.config import Activation


def activate(values: Tensor, activation: Activation | None) -> Tensor:
    if activation is None:
        return values
    if activation == "relu":
        return F.relu(values)
    if torch.compiler.is_compiling() and values.device.type == "cuda" and values.dtype.itemsize == 2:
        return gelu(values) if activation == "gelu" else gelu_tanh(values)
    return F.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x)."""
    out: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Gelu(torch.autograd.Function):
    """x · Φ(x), whose gradient Φ(x) + x · φ(x) shares the exponential of its value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        return (wide * _normal(wide)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        below, bell = _normal(wide)
        whole: Tensor = grad.float() * (below + wide * bell * (2 * math.pi) ** -0.5)
        return whole.to(x.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(x), to 1e-7 by Abramowitz and Stegun's 7.1.26, and exp(-x² / 2)."""
    bell = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.3275911 * 0.5**0.5 * x.abs())
    polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * bell * polynomial
    return torch.where(x > 0, 1 - tail, tail), bell


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form: (1 + tanh u) / 2 is 1 / (1 + exp(-2u)), so it is x / (1 + exp(-2u))."""
    wide = x.float()
    twice = 2 * (2 / math.pi) ** 0.5 * wide * (1 + 0.044715 * wide * wide)
    return (wide * torch.sigmoid(twice)).to(x.dtype)
