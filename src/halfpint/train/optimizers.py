"""Optimizers by their names, with weight decay where it belongs: on matrices, not on biases and norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from halfpint.train.lamb import Lamb
from halfpint.train.muon import Muon
from halfpint.train.settings import Settings

JOINED = {"query_key_value": 3, "query_key": 2}
"""Layers that are several side by side, for speed."""

Named = Mapping[str, nn.Parameter]


def make_optimizer(parameters: Iterable[tuple[str, nn.Parameter]], settings: Settings) -> torch.optim.Optimizer:
    """Of a module's named parameters; one that is shared, and so has several names, is updated once."""
    named = _distinct((name, each) for name, each in parameters if each.requires_grad)
    common: dict[str, Any] = {
        "lr": settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
    }
    if settings.optimizer == "lamb":
        matrices, vectors = _matrices_and_vectors(named, settings)
        return Lamb(_filled([matrices, {**vectors, "adapted": False}]), **common)
    if settings.optimizer == "muon":
        return Muon(_filled(_muon_groups(named, settings)), **common)
    return torch.optim.AdamW(_filled(_matrices_and_vectors(named, settings)), **common, fused=True)


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether it is a matrix between a network's layers: no embedding, no head, no table of biases."""
    parts = name.split(".")
    return (
        parameter.dim() == 2 and "heads" not in parts and not any("embed" in each or "bias" in each for each in parts)
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


def _distinct(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
    """By the first of its names each, or the first that says it is not hidden."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in parameters:
        names.setdefault(parameter, []).append(name)
    return {min(several, key=lambda name: is_hidden(name, each)): each for each, several in names.items()}


def _matrices_and_vectors(named: Named, settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two groups: vectors are not decayed."""
    matrices = [each for each in named.values() if each.dim() > 1]
    vectors = [each for each in named.values() if each.dim() <= 1]
    return {"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}


def _muon_groups(named: Named, settings: Settings) -> list[dict[str, Any]]:
    hidden = {name: each for name, each in named.items() if is_hidden(name, each)}
    groups: dict[int, list[nn.Parameter]] = {}
    for name, parameter in hidden.items():
        layer = name.split(".")[-2:-1]
        groups.setdefault(JOINED.get("".join(layer), 1), []).append(parameter)
    others = {name: each for name, each in named.items() if name not in hidden}
    return [
        *(
            {"params": params, "hidden": True, "parts": parts, "weight_decay": settings.weight_decay}
            for parts, params in sorted(groups.items())
        ),
        *_matrices_and_vectors(others, settings),
    ]


def _filled(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [group for group in groups if group["params"]]
