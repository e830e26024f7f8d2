"""LAMB: Adam with steps in proportion to the weights they change, for very large batches.

After You et al. 2020, Large Batch Optimization for Deep Learning, Algorithm 2, with φ(z) = z. What is notable:
- the trust ratio is one number a tensor; 1 where the weights or the update are zero;
- vectors (biases, norms) take Adam's own step, as in the authors' code, which leaves out of the adaptation what it
  leaves out of the decay: a bias begins at zero, and in proportion to that it would never grow;
- all tensors of a group go through each operation together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def adam_updates(
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: Sequence[int],
    *,
    beta1: float,
    beta2: float,
    eps: float,
) -> list[Tensor]:
    """r_t of Algorithm 2 for every tensor, with bias correction. The moments are moved on in place."""
    torch._foreach_lerp_(first, gradients, 1 - beta1)  # m_t
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)  # v_t
    updates = torch._foreach_div(first, [1 - beta1**step for step in steps])
    roots = torch._foreach_sqrt(second)
    torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in steps])
    torch._foreach_add_(roots, eps)
    torch._foreach_div_(updates, roots)
    return list(updates)


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """φ(‖x‖) / ‖r + λx‖ of Algorithm 2, of every tensor and its update with decay."""
    weight_norms, update_norms = (torch.stack(torch._foreach_norm(each)) for each in (weights, updates))
    usable = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(usable, weight_norms / update_norms, 1.0).unbind())


class Lamb(torch.optim.Optimizer):
    """Groups may set `adapted` to False: their steps are Adam's, of the length that the rate says."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapted": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if weights:
                self._update(weights, group)
        return loss

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state_of(weight) for weight in weights]
        for state in states:
            state["step"] += 1
        beta1, beta2 = group["betas"]
        updates = adam_updates(
            [weight.grad for weight in weights if weight.grad is not None],
            [state["first"] for state in states],
            [state["second"] for state in states],
            [int(state["step"]) for state in states],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
        )
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapted"]:
            torch._foreach_mul_(updates, trust_ratios(weights, updates))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            # On the host, where it is read at every step.
            state["step"] = torch.zeros((), dtype=torch.int64)
            state["first"], state["second"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state
