"""Which kernels run where. Free of torch, so that costs can be counted without it."""

from __future__ import annotations

from typing import Literal

SHORT = 256
"""The longest sequence for which small tiles are faster than flash attention's."""
MAX_SHORT_HEAD = 128
"""Small tiles of larger heads do not fit the registers."""

MAX_FUSED_WIDTH = 4096
"""A row of wider states does not fit a program of the kernel that ends a layer's halves."""

LONG = 96
"""From so many tokens on, plain products in half precision are faster on a CPU than torch's fused attention."""


def gpu_backend(longest: int, head_size: int) -> Literal["short", "flash"]:
    """In half precision, where Triton is installed."""
    return "short" if longest <= SHORT and head_size <= MAX_SHORT_HEAD else "flash"
