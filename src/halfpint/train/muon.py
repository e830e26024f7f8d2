"""Muon: momentum, orthogonalised, for the matrices inside a network; AdamW for all else, in one object.

After Jordan et al. 2024 (Muon: An optimizer for hidden layers in neural networks), scaled as in Liu et al. 2025 (Muon
is Scalable for LLM Training), whose equations are named. What is notable:
- with that scale a step is as large as AdamW's, so one learning rate and one weight decay serve both;
- matrices that were joined for speed (queries, keys and values) are orthogonalised apart, as if they never had been;
- matrices of one shape, lying or standing, are orthogonalised together; on a GPU in bf16, which is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
RMS = 0.2
"""The usual size of AdamW's steps, in learning rates."""
VALUES_AT_ONCE = 1 << 25
"""Of the matrices that are orthogonalised together, which bounds the memory."""


def momentum_updates(gradients: list[Tensor], momenta: list[Tensor], momentum: float) -> list[Tensor]:
    """M_t of eq. 1, moved on in place, and Nesterov's look ahead from it, which is returned."""
    torch._foreach_mul_(momenta, momentum)
    torch._foreach_add_(momenta, gradients)
    return list(torch._foreach_add(gradients, momenta, alpha=momentum))


def orthogonalized(matrices: Tensor) -> Tensor:
    """The nearest with singular values of about one, by Newton and Schulz (eq. 2): (…, rows, columns)."""
    a, b, c = COEFFICIENTS
    standing = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if standing else matrices
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    if x.device.type == "cuda":
        x = x.bfloat16()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if standing else x).to(matrices.dtype)


def scale_of(rows: int, columns: int) -> float:
    """0.2 · √max(A, B) of eq. 4: what makes an orthogonal matrix as large as a step of AdamW."""
    return RMS * math.sqrt(max(rows, columns))


class Muon(torch.optim.Optimizer):
    """Groups say whether they are `hidden` matrices, and of how many `parts` such a matrix is joined (by rows)."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        # `fused` is AdamW's; loading a state reads it, too, to know on which device the steps are counted.
        super().__init__(groups, {**defaults, "hidden": False, "parts": 1, "fused": True})
        for group in self.param_groups:
            if group["hidden"]:
                _require_matrices(group["params"], group["parts"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if weights:
                (self._update_hidden if group["hidden"] else self._update_others)(weights, group)
        return loss

    def _update_hidden(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        updates = momentum_updates(_gradients(weights), momenta, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        parts = group["parts"]
        pieces = [
            (_lying(piece), _lying(step))
            for weight, update in zip(weights, updates, strict=True)
            for piece, step in zip(weight.chunk(parts), update.chunk(parts), strict=True)
        ]
        for alike in _of_one_shape(pieces):
            steps = orthogonalized(torch.stack([update for _, update in alike]))
            scale = scale_of(steps.shape[1], steps.shape[2])
            torch._foreach_add_([piece for piece, _ in alike], list(steps), alpha=-group["lr"] * scale)  # eq. 4

    def _update_others(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                state["first"], state["second"] = torch.zeros_like(weight), torch.zeros_like(weight)
        first, second, steps = ([self.state[each][name] for each in weights] for name in ("first", "second", "step"))
        beta1, beta2 = group["betas"]
        adamw(
            weights,
            _gradients(weights),
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _lying(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


def _of_one_shape(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """All of them, in lists that can be stacked."""
    shapes: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        shapes.setdefault(pair[0].shape, []).append(pair)
    for shape, every in shapes.items():
        number = max(1, VALUES_AT_ONCE // shape.numel())
        yield from (every[start : start + number] for start in range(0, len(every), number))


def _require_matrices(weights: Sequence[Tensor], parts: int) -> None:
    for weight in weights:
        if weight.dim() != 2 or weight.shape[0] % parts:
            raise ValueError(
                f"a hidden weight has the shape {tuple(weight.shape)}; expected a matrix of {parts} equal parts; "
                "leave others to groups that are not hidden"
            )
