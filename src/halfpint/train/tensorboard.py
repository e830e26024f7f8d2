"""Events of a run as TensorBoard's scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from halfpint.engines.requirements import MissingPackage
from halfpint.train.loop import Watcher

SHOWN = ("step", "steps", "seed", "event")


@contextmanager
def tensorboard_watcher(folder: str | PathLike[str]) -> Iterator[Watcher]:
    """A watcher that writes losses and metrics into a folder, one run a seed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackage("TensorBoard is not installed; install it with: pip install tensorboard") from error
    writers: dict[Any, Any] = {}

    def watch(event: Mapping[str, Any]) -> None:
        seed = event.get("seed", 0)
        if seed not in writers:
            writers[seed] = SummaryWriter(f"{folder}/seed-{seed}")
        for name, value in event.items():
            if name not in SHOWN and isinstance(value, int | float):
                writers[seed].add_scalar(f"{event['event']}/{name}", value, event["step"])

    try:
        yield watch
    finally:
        for writer in writers.values():
            writer.close()
