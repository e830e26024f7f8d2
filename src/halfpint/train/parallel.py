"""Data parallelism without a wrapper: under `torchrun`, gradients are summed over all ranks after the backward pass.

Losses are divided by the counts of the whole step, all ranks together, so the sum is the gradient of one process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

LETTING_GO = 0.1
"""Seconds."""
BUCKET = 25_000_000
"""Values that are sent together."""


@dataclass(frozen=True)
class Ranks:
    """This process among all that train together."""

    rank: int = 0
    world: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """Those of the running process group; one alone where there is none."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.world == 1:
            return
        bucket: list[Tensor] = []
        size = 0
        for parameter in parameters:
            # A rank whose share of the step had no use for a weight has no gradient for it.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            size += parameter.numel()
            if size >= BUCKET:
                _sum_bucket(bucket)
                bucket, size = [], 0
        _sum_bucket(bucket)

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.world > 1:
            dist.barrier()

    def agree(self, value: bool) -> bool:
        """What the first rank says."""
        if self.world == 1:
            return value
        said = torch.tensor([int(value)])
        dist.broadcast(said, 0)
        return bool(said.item())


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Among the processes that `torchrun` has started, where it has; alone otherwise."""
    if "RANK" not in os.environ or not dist.is_available() or dist.is_initialized():
        yield Ranks.here()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Decisions of the loop are sent from the host, also where gradients are on GPUs.
    dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo")
    try:
        yield Ranks.here()
        # gloo's threads let go of tensors a little after they have arrived. Where Python ended meanwhile, they would
        # abort the process, whose work is done and saved.
        dist.barrier()
        time.sleep(LETTING_GO)
    finally:
        dist.destroy_process_group()


def _sum_bucket(gradients: list[Tensor]) -> None:
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    pieces = flat.split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))
