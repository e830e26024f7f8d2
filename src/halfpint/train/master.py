"""Float32 weights with bf16 copies that compute, all in a few flat tensors: training on a GPU in bf16.

Autocast casts every weight at every step, its gradient back, and an optimizer of many tensors reads all of it several
times; with small batches that is most of a step. Here the parameters of the modules *are* bf16, pieces of one tensor.
Beside it lie their float32 values, the optimizer's two moments and the gradients, each one tensor, and an update is one
pass over them that leaves new copies behind. What is notable:
- norms keep their float32 weights, whose small changes bf16 would round away;
- weights that no loss reaches are found at the first step, and neither updated nor decayed;
- the arithmetic of the update is AdamW's, as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from halfpint.model.norm import LayerNorm, NoNorm
from halfpint.train.settings import Settings

CAPTURE_MODE = "thread_local"
"""Of CUDA graphs: the thread that builds batches may ask for pinned memory while one is recorded."""
ALIGNMENT = 64
"""Values: every weight begins at a multiple of 256 bytes, as matrix products like it."""


@dataclass(frozen=True)
class Piece:
    """Where a parameter lies."""

    parameter: nn.Parameter
    start: int
    copied: bool
    """Whether a bf16 copy computes."""

    @property
    def end(self) -> int:
        return self.start + self.parameter.numel()

    def of(self, flat: Tensor, offset: int = 0) -> Tensor:
        return flat[self.start - offset : self.end - offset].view(self.parameter.shape)


@dataclass(frozen=True)
class Span:
    """Neighbouring pieces that are updated alike."""

    start: int
    end: int
    decays: bool


class MasterWeights:
    """The weights of a module, laid out flat; the module computes with bf16 copies until `release`."""

    def __init__(self, trained: nn.Module) -> None:
        self.trained = trained
        self.pieces = list(_lay_out(trained))
        self.num_copied = max((each.end for each in self.pieces if each.copied), default=0)
        self.num_copied = -(-self.num_copied // ALIGNMENT) * ALIGNMENT
        device = self.pieces[0].parameter.device
        size = max(each.end for each in self.pieces)
        self.values = torch.zeros(size, device=device)
        self.copies = torch.zeros(self.num_copied, device=device, dtype=torch.bfloat16)
        self.grads = [torch.zeros_like(self.copies), torch.zeros(size - self.num_copied, device=device)]
        """Of the copies, and of the rest."""
        for piece in self.pieces:
            value = piece.of(self.values)
            value.copy_(piece.parameter.data)
            piece.parameter.data = piece.of(self.copies) if piece.copied else value
        self.refresh()

    def refresh(self) -> None:
        """The copies anew from the values."""
        self.copies.copy_(self.values[: self.num_copied])

    def gather_gradients(self) -> None:
        """What autograd left at the parameters goes where it belongs."""
        reached = [piece for piece in self.pieces if piece.parameter.grad is not None]
        torch._foreach_copy_([self._grad(piece) for piece in reached], [_grad_of(piece) for piece in reached])

    def _grad(self, piece: Piece) -> Tensor:
        return piece.of(self.grads[0]) if piece.copied else piece.of(self.grads[1], self.num_copied)

    def spans(self) -> list[Span]:
        """What is to be updated: where autograd left a gradient."""
        found: list[Span] = []
        for piece in self.pieces:
            if piece.parameter.grad is None:
                continue
            decays = piece.parameter.dim() > 1
            last = found[-1] if found else None
            touches = last is not None and piece.start - last.end < ALIGNMENT and last.decays == decays
            if last is not None and touches and (last.start < self.num_copied) == piece.copied:
                found[-1] = Span(last.start, piece.end, decays)
            else:
                found.append(Span(piece.start, piece.end, decays))
        return found

    def named(self) -> dict[str, Tensor]:
        """The float32 values, under the names of the module's state."""
        places = {id(piece.parameter): piece for piece in self.pieces}
        return {
            name: places[id(each)].of(self.values) if id(each) in places else each
            for name, each in self.trained.state_dict(keep_vars=True).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, mine in self.named().items():
                mine.copy_(tensors[name])
            self.refresh()

    def release(self) -> None:
        """Give the modules their float32 weights back."""
        for piece in self.pieces:
            piece.parameter.grad = None
            piece.parameter.data = piece.of(self.values)


def _lay_out(trained: nn.Module) -> Iterator[Piece]:
    """Copied matrices, copied vectors, then what is kept in float32."""
    norms = [module for module in trained.modules() if isinstance(module, LayerNorm | NoNorm)]
    exact = {id(each) for norm in norms for each in norm.parameters()}
    every = [each for each in trained.parameters() if each.requires_grad]
    start = 0
    for group in (
        [each for each in every if id(each) not in exact and each.dim() > 1],
        [each for each in every if id(each) not in exact and each.dim() <= 1],
        [each for each in every if id(each) in exact],
    ):
        for parameter in group:
            yield Piece(parameter, start, copied=id(parameter) not in exact)
            start += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT


def _grad_of(piece: Piece) -> Tensor:
    assert piece.parameter.grad is not None
    return piece.parameter.grad


Compile = Callable[[Callable[..., None]], Callable[..., None]]


class MasterUpdate:
    """Clipping and AdamW over flat tensors; on a GPU compiled, and from the second step on a CUDA graph."""

    def __init__(self, weights: MasterWeights, settings: Settings) -> None:
        self.weights, self.settings = weights, settings
        self.moments = [torch.zeros_like(weights.values) for _ in range(2)]
        device = weights.values.device
        self.steps, self.lr = torch.zeros((), device=device), torch.zeros((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.spans: Sequence[Span] = ()
        self.adamw: Callable[..., None] = torch.compile(adamw, dynamic=True) if device.type == "cuda" else adamw

    def __call__(self, lr: float) -> None:
        self.lr.fill_(lr)
        if not self.spans:
            self.spans = self.weights.spans()
            self._apply()
        elif self.lr.device.type != "cuda":
            self._apply()
        else:
            if self.graph is None:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=CAPTURE_MODE):
                    self._apply()
                self.graph = graph
            self.graph.replay()

    @torch.no_grad()
    def _apply(self) -> None:
        settings, weights = self.settings, self.weights
        self.steps += 1
        scale = torch.ones_like(self.lr)
        if settings.clip:
            norms = torch.stack([torch.linalg.vector_norm(each, dtype=torch.float32) for each in weights.grads])
            scale = (settings.clip / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
        for span in self.spans:
            copied = span.end <= weights.num_copied
            offset = 0 if copied else weights.num_copied
            inside = slice(span.start, span.end)
            self.adamw(
                weights.values[inside],
                weights.copies[inside] if copied else None,
                weights.grads[0 if copied else 1][span.start - offset : span.end - offset],
                *(each[inside] for each in self.moments),
                self.lr,
                self.steps,
                scale,
                settings.weight_decay if span.decays else 0.0,
                settings.beta1,
                settings.beta2,
                settings.eps,
            )

    def tensors(self) -> dict[str, Tensor]:
        return {"first": self.moments[0], "second": self.moments[1], "steps": self.steps}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for mine, name in zip([*self.moments, self.steps], ("first", "second", "steps"), strict=True):
            mine.copy_(tensors[name])


def adamw(
    values: Tensor,
    copies: Tensor | None,
    grads: Tensor,
    first: Tensor,
    second: Tensor,
    lr: Tensor,
    steps: Tensor,
    scale: Tensor,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019, algorithm 2) in place, and the copies anew."""
    grad = grads.float() * scale
    mean = beta1 * first + (1 - beta1) * grad
    square = beta2 * second + (1 - beta2) * grad * grad
    rate = lr / (1 - beta1**steps)
    deviation = square.sqrt() / (1 - beta2**steps).sqrt() + eps
    new = values * (1 - lr * decay) - rate * mean / deviation
    first.copy_(mean)
    second.copy_(square)
    values.copy_(new)
    if copies is not None:
        copies.copy_(new)
