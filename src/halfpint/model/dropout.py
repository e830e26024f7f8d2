"""Dropout. On the CPU, where drawing random numbers is most of its cost, one that is drawn serves four values.

So the rate is a multiple of 2⁻¹⁶ there, and what is kept is scaled by that very rate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 1 << 16


def drop(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Zero each value with this probability, and scale the others up."""
    if rate == 0 or not training:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return x * _kept(x, rate)


def _kept(x: Tensor, rate: float) -> Tensor:
    """By each value the factor that it gets: zero, or a little more than one."""
    dropped = round(rate * LEVELS)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    levels = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    scale = LEVELS / (LEVELS - dropped) if dropped < LEVELS else 0.0
    return (levels >= dropped - LEVELS // 2).to(x.dtype).mul_(scale)
