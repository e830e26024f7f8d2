"""Encoded rows in batches: the order of an epoch, steps of so many rows, and batches built ahead of their use.

The order is a function of the seed, the epoch and the lengths alone, so neither workers nor a resumed run can
change it. A step is rows first: so many rows, in as many batches as they need; a row's sequences stay together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.data.batching import fill_in_order
from halfpint.data.encoded import Encoded
from halfpint.model.batch import Batch, BatchShape

Rows = NDArray[np.int64]

GROUPED_STEPS = 50
"""Rows of so many steps are sorted by length together, where steps are to be of like lengths."""


@dataclass(frozen=True)
class Loader:
    """Batches of `rows` rows a step. Without a shape, a batch holds at most `max_tokens`, or one longer row."""

    encoded: Encoded
    rows: int
    seed: int = 0
    shape: BatchShape | None = None
    max_tokens: int = 65_536
    grouped: bool = False
    """Rows of like length share a step: less padding for architectures that pad."""
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a batch of {self.rows} rows; give at least one")

    @property
    def num_steps(self) -> int:
        """Of one epoch; the last may have fewer rows."""
        return -(-self.encoded.num_rows // self.rows)

    def order(self, epoch: int) -> Rows:
        """All rows, shuffled."""
        draw = np.random.default_rng([self.seed, epoch])
        order = draw.permutation(self.encoded.num_rows)
        if not self.grouped:
            return order
        tokens, span = self.encoded.row_tokens(), GROUPED_STEPS * self.rows
        parts = [order[start : start + span] for start in range(0, len(order), span)]
        steps = [
            part[start : start + self.rows]
            for part in (each[np.argsort(tokens[each], kind="stable")] for each in parts)
            for start in range(0, len(part), self.rows)
        ]
        # A step of fewer rows stays last, so that the number of steps does not depend on the draw.
        full = [step for step in steps if len(step) == self.rows]
        rest = [step for step in steps if len(step) < self.rows]
        return np.concatenate([*(full[index] for index in draw.permutation(len(full))), *rest])

    def steps(self, epoch: int, first: int = 0) -> Iterator[list[Batch]]:
        """The steps of an epoch from a given one on, each as the batches that this rank computes."""
        order = self.order(epoch)
        for step in range(first, self.num_steps):
            rows = order[step * self.rows : (step + 1) * self.rows]
            yield [self.batch(part) for part in self._split(rows[self.rank :: self.world])]

    def in_order(self) -> Iterator[tuple[Rows, Batch]]:
        """Every row once, in batches of neighbours by length; for evaluation."""
        order = np.argsort(self.encoded.row_tokens(), kind="stable")
        for start in range(0, len(order), self.rows):
            for part in self._split(order[start : start + self.rows]):
                yield part, self.batch(part)

    def batch(self, rows: Rows) -> Batch:
        """One batch of these rows, numbered from 0 in it."""
        batch = make_batch(self.encoded.select(rows))
        return batch if self.shape is None else batch.fill(self.shape)

    def _split(self, rows: Rows) -> Iterator[Rows]:
        tokens = self.encoded.row_tokens()[rows]
        if self.shape is not None:
            sequences = self.encoded.row_sequences()[rows]
            yield from (rows[group] for group in fill_in_order(tokens, self.shape, sequences))
            return
        begin, total = 0, 0
        for index, count in enumerate(tokens.tolist()):
            if total + count > self.max_tokens and index > begin:
                yield rows[begin:index]
                begin, total = index, 0
            total += count
        if begin < len(rows):
            yield rows[begin:]


def make_batch(encoded: Encoded) -> Batch:
    """All rows of a small `Encoded` as one batch."""
    lengths = encoded.lengths()
    row = np.repeat(np.arange(encoded.num_rows), encoded.row_sequences())
    return Batch(
        ids=torch.from_numpy(encoded.ids.astype(np.int64)),
        positions=torch.from_numpy(np.arange(encoded.num_tokens) - np.repeat(encoded.starts[:-1], lengths)),
        segments=torch.from_numpy(encoded.segments.astype(np.int64)),
        cu_lengths=torch.from_numpy(encoded.starts.astype(np.int32)),
        row=torch.from_numpy(row),
        document=torch.from_numpy(row),
        longest=int(lengths.max()),
        per_slot={name: _tensor(each) for name, each in encoded.per_sequence.items()},
        per_token={name: _tensor(each) for name, each in encoded.per_token.items()},
    )


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))


def prefetch(steps: Iterator[list[Batch]], depth: int = 4) -> Iterator[list[Batch]]:
    """The same steps, built by a thread of their own while the last ones are computed."""
    done = object()
    ready: queue.Queue[Any] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def build() -> None:
        try:
            for step in steps:
                if not put(step):
                    return
            put(done)
        except BaseException as error:  # handed over, to be raised where the steps are used
            put(error)

    thread = threading.Thread(target=build, name="halfpint-prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not done:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
