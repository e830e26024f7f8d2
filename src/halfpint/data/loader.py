"""Encoded rows in batches: the order of an epoch, steps of so many rows, and batches built ahead of their use.

The order is a function of the seed, the epoch and the lengths alone, so neither workers nor a resumed run can
change it. A step is rows first: so many rows, in as many batches as they need; a row's sequences stay together.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.data.batching import fill_in_order, split_by_tokens
from halfpint.data.encoded import Encoded
from halfpint.model.batch import Batch, BatchShape

Rows = NDArray[np.int64]

MIXED_STEPS = 50
"""Rows of so many steps are sorted by length together, where steps are to be alike within or among themselves."""
TOKENS_STEP = 64
"""The tokens of a shape are a multiple of it, as matrix products like them."""

Mixing = Literal["plain", "grouped", "balanced"]
"""Which rows share a step: any; those of like length, so that less is padded; or short and long ones in the same
shares, so that all steps have about as many tokens, and a shape is filled."""


@dataclass(frozen=True)
class Loader:
    """Batches of `rows` rows a step. Without a shape, a batch holds at most `max_tokens`, or one longer row."""

    encoded: Encoded
    rows: int
    seed: int = 0
    shape: BatchShape | None = None
    max_tokens: int = 65_536
    mixing: Mixing = "plain"
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a batch of {self.rows} rows; give at least one")

    @property
    def num_steps(self) -> int:
        """Of one epoch; the last may have fewer rows."""
        return -(-self.encoded.num_rows // self.rows)

    @property
    def facts(self) -> dict[str, int]:
        """By which two runs can be told apart."""
        return {"rows": self.encoded.num_rows, "tokens": self.encoded.num_tokens}

    def order(self, epoch: int) -> Rows:
        """All rows, shuffled."""
        draw = np.random.default_rng([self.seed, epoch])
        order = draw.permutation(self.encoded.num_rows)
        if self.mixing == "plain":
            return order
        # A step of fewer rows stays last, so that the number of steps does not depend on the draw.
        whole = len(order) // self.rows * self.rows
        tokens, span = self.encoded.row_tokens, MIXED_STEPS * self.rows
        parts = [order[start : min(start + span, whole)] for start in range(0, whole, span)]
        parts = [part[np.argsort(tokens[part], kind="stable")] for part in parts]
        if self.mixing == "grouped":
            steps = np.concatenate([part.reshape(-1, self.rows) for part in parts]) if parts else order[:0]
            steps = steps[draw.permutation(len(steps))]
        else:
            # Each step draws one row of every stratum of neighbours by length.
            strata = (draw.permuted(part.reshape(self.rows, -1), axis=1) for part in parts)
            steps = np.concatenate([each.T for each in strata]) if parts else order[:0]
        return np.concatenate([steps.ravel(), order[whole:]])

    def fit(self, epochs: int) -> Loader:
        """The same with the smallest shape that holds every step of these epochs whole, or an even part of each.

        The shape has at most about `max_tokens`; a step that is larger is several batches.
        """
        tokens, sequences = self.encoded.row_tokens, self.encoded.row_sequences
        starts = np.arange(0, self.encoded.num_rows, self.rows)
        orders = [self.order(epoch) for epoch in range(epochs)]
        most = max(int(np.add.reduceat(tokens[order], starts).max()) for order in orders)
        slots = max(int(np.add.reduceat(sequences[order], starts).max()) for order in orders)
        parts = -(-most // self.max_tokens)
        # Rows are whole, so a part may end early by almost the longest of them.
        most = most if parts == 1 else -(-most // parts) + int(tokens.max())
        longest = int(self.encoded.lengths.max())
        size = -(-most // TOKENS_STEP) * TOKENS_STEP
        return replace(self, shape=BatchShape(tokens=size, sequences=slots + -(-size // longest), longest=longest))

    def steps(self, epoch: int, first: int = 0) -> Iterator[list[Batch]]:
        """The steps of an epoch from a given one on, each as the batches that this rank computes."""
        order = self.order(epoch)
        for step in range(first, self.num_steps):
            rows = order[step * self.rows : (step + 1) * self.rows]
            yield [self.batch(part) for part in self._split(rows[self.rank :: self.world])]

    def in_order(self) -> Iterator[tuple[Rows, Batch]]:
        """Every row once, in batches of neighbours by length; for evaluation."""
        order = np.argsort(self.encoded.row_tokens, kind="stable")
        for start in range(0, len(order), self.rows):
            for part in self._split(order[start : start + self.rows]):
                yield part, self.batch(part)

    def batch(self, rows: Rows) -> Batch:
        """One batch of these rows, numbered from 0 in it."""
        batch = make_batch(self.encoded.select(rows))
        return batch if self.shape is None else batch.fill(self.shape)

    def _split(self, rows: Rows) -> Iterator[Rows]:
        tokens = self.encoded.row_tokens[rows]
        if self.shape is not None:
            sequences = self.encoded.row_sequences[rows]
            # Mostly the shape was made for whole steps.
            if len(rows) and self.shape.fits(int(sequences.sum()), int(tokens.sum())):
                yield rows
                return
            yield from (rows[group] for group in fill_in_order(tokens, self.shape, sequences))
            return
        yield from (rows[part] for part in split_by_tokens(tokens.tolist(), self.max_tokens))


def make_batch(encoded: Encoded) -> Batch:
    """All rows of a small `Encoded` as one batch."""
    lengths = encoded.lengths
    row = np.repeat(np.arange(encoded.num_rows), encoded.row_sequences)
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


def prefetch(steps: Iterator[list[Batch]], depth: int = 4, *, pinned: bool = False) -> Iterator[list[Batch]]:
    """The same steps, built by a thread of their own while the last ones are computed; for a GPU, in pinned memory."""
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
                if not put([batch.pin() for batch in step] if pinned else step):
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
