"""How the gradients of a batch come about: eagerly, or by one CUDA graph that is recorded once and replayed.

Both add up in `parameter.grad` over the batches of a step. What is notable of the graph:
- it is recorded from compiled code, forward and backward pass together, for batches that were filled to one shape;
  each further batch is copied over the first one's tensors;
- each replay writes the gradients anew: nothing is zeroed or added where a step is one batch, as it mostly is;
- recording draws no random numbers of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from halfpint.model.batch import Batch
from halfpint.train.master import CAPTURE_MODE, MasterWeights

Loss = Callable[[Batch, Tensor], Tensor]
"""Of a batch, with the scale of each of its parts."""

WARM_UP = 2
"""Passes before the recording: the first compiles, and kernels choose their settings."""


class Gradients(Protocol):
    """Computes the gradients of one step."""

    def add(self, batch: Batch, scales: Tensor, *, first: bool, last: bool) -> Tensor:
        """Those of one batch of the step; its loss. After the last, all are in `parameter.grad`."""

    def clear(self) -> None:
        """After the update."""


class EagerGradients:
    """As autograd does it."""

    def __init__(self, loss: Loss, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self.loss, self.parameters, self.device = loss, parameters, device

    def add(self, batch: Batch, scales: Tensor, *, first: bool, last: bool) -> Tensor:
        value = self.loss(batch.to(self.device), scales)
        value.backward()
        return value.detach()

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class GraphedGradients:
    """As one CUDA graph replays it. With master weights it also gathers them there."""

    def __init__(
        self,
        loss: Loss,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        master: MasterWeights | None = None,
    ) -> None:
        self.loss: Loss = torch.compile(loss, fullgraph=True, dynamic=False)
        self.parameters, self.device, self.master = parameters, device, master
        self.graph: torch.cuda.CUDAGraph | None = None
        self.sums: list[Tensor] = []
        """Of the batches before the last, where a step has several."""

    def add(self, batch: Batch, scales: Tensor, *, first: bool, last: bool) -> Tensor:
        if self.graph is None:
            self._record(batch, scales)
            assert self.graph is not None
        else:
            self.batch.copy_from(batch)
            # From ordinary memory the copy would wait for all that was launched before it.
            self.scales.copy_(scales.pin_memory() if scales.device.type == "cpu" else scales, non_blocking=True)
        self.graph.replay()
        if not (first and last):
            self._sum_up(first, last)
        return self.value

    def clear(self) -> None:
        """Nothing: the next replay writes over them."""

    def _sum_up(self, first: bool, last: bool) -> None:
        if not self.sums:
            self.sums = [torch.empty_like(each) for each in self.grads]
        if first:
            torch._foreach_copy_(self.sums, self.grads)
        elif last:
            torch._foreach_add_(self.grads, self.sums)
        else:
            torch._foreach_add_(self.sums, self.grads)

    def _record(self, batch: Batch, scales: Tensor) -> None:
        self.batch, self.scales = batch.to(self.device), scales.to(self.device).clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.random.fork_rng(devices=[self.device]):
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._compute()
            torch.cuda.current_stream().wait_stream(stream)
            self._forget()
            with torch.cuda.graph(graph, capture_error_mode=CAPTURE_MODE):
                self.value = self._compute()
                if self.master is not None:
                    self.master.gather_gradients()
        # A weight that the loss has no use for has no gradient.
        own = [each.grad for each in self.parameters if each.grad is not None]
        self.grads = own if self.master is None else self.master.grads
        self.graph = graph

    def _compute(self) -> Tensor:
        self._forget()
        value = self.loss(self.batch, self.scales)
        value.backward()
        return value.detach()

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
