"""Optimizers, with weight decay where it belongs: on matrices, not on biases and norms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from halfpint.train.settings import Settings


def make_optimizer(parameters: Iterable[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """AdamW; vectors (biases, norms) are not decayed."""
    every = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [each for each in every if each.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [each for each in every if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=True,
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state, flat: what a checkpoint holds."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": torch.as_tensor(value) for index, each in state.items() for name, value in each.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The reverse, into an optimizer made for the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
