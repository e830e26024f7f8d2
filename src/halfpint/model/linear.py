"""Linear layers with their activation, on the fastest path that gives the same numbers.

On the CPU, oneDNN computes the product, the bias and the activation in one pass. In fp32 it reaches more than
twice the rate of the BLAS that `torch.nn.functional.linear` calls on processors where that BLAS does not use
AVX-512 (`python -m benchmarks.linear_cpu`). Its operator has no gradient, so it serves inference only; training
and compiled code take the plain path.

`pack_for_inference` goes one step further and keeps the weights in oneDNN's own layout, which saves rearranging
them at every call: most where texts come one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halfpint.config import Activation
from halfpint.model.activation import activate

# name: (oneDNN's name, its algorithm)
_FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}

FUSED_DTYPES = (torch.float32, torch.bfloat16)

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
    """activation(x · weightᵀ + bias)."""
    if _can_fuse(x, weight):
        return _fused_linear(x, weight, bias, activation)
    return activate(F.linear(x, weight, bias), activation)


def _can_fuse(x: Tensor, weight: Tensor) -> bool:
    return (
        ONEDNN
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in FUSED_DTYPES
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> Tensor:
    name, algorithm = _FUSED[activation]
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return out


class Linear(nn.Linear):
    """`nn.Linear` whose forward takes the activation that follows it."""

    packed: Tensor | None = None
    """The weight in oneDNN's layout; the plain weight is gone then."""

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        if self.packed is not None:
            return _fused_linear(x, self.packed, self.bias, activation)
        return linear(x, self.weight, self.bias, activation)

    def pack(self) -> None:
        """Give the plain weight up for oneDNN's layout."""
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self.packed = packed
        del self.weight
        self.requires_grad_(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._require_plain("moved or cast")
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    # Without this a state dict would lack the packed weights, and nobody would notice before the folder is read.
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._require_plain("saved")
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def __getstate__(self) -> object:
        """What copies and pickles are made of."""
        self._require_plain("copied")
        return super().__getstate__()  # type: ignore[no-untyped-call]

    def _require_plain(self, what: str) -> None:
        if self.packed is not None:
            raise ValueError(
                f"packed weights cannot be {what}; load the model again, and pack it when that is done (pack())"
            )


def pack_for_inference(module: nn.Module) -> None:
    """Pack every linear layer, in place: faster on the CPU, but never to be trained, moved or saved again."""
    if ONEDNN:
        for part in module.modules():
            if isinstance(part, Linear) and part.packed is None and part.weight.dtype in FUSED_DTYPES:
                part.pack()
