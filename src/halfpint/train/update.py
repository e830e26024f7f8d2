"""What happens to the weights once all gradients of a step are there: clipping, then the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from halfpint.train.master import CAPTURE_MODE
from halfpint.train.optimizers import optimizer_tensors, restore_optimizer


class Update:
    """Clip, and step with a learning rate."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], clip: float) -> None:
        self.optimizer, self.parameters, self.clip = optimizer, parameters, clip

    def __call__(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._apply()

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        return optimizer_tensors(self.optimizer)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        restore_optimizer(self.optimizer, dict(tensors))

    def _apply(self) -> None:
        if self.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()


class GraphedUpdate(Update):
    """The same as a CUDA graph, recorded at the second step; the first makes the optimizer's state.

    Gradients must lie in the same memory at every step.
    """

    graph: torch.cuda.CUDAGraph | None = None
    has_state = False

    def __call__(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] = torch.tensor(lr, device=self.parameters[0].device)
                group["capturable"] = True
            group["lr"].fill_(lr)
        if not self.has_state:
            self._apply()
            self.has_state = True
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=CAPTURE_MODE):
                self._apply()
            self.graph = graph
        self.graph.replay()
