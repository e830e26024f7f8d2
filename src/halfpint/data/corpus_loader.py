"""Batches of a corpus for pretraining: rows in a new order every epoch, made, masked and packed on the way.

The order of an epoch is a function of the seed and the epoch, and what a row becomes one of (seed, epoch, row). So
neither processes nor a resumed run can change either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.data.batching import fill_in_order, split_by_tokens
from halfpint.data.draws import Draws
from halfpint.data.encoded import Encoded
from halfpint.data.examples import Examples
from halfpint.data.loader import TOKENS_STEP, make_batch
from halfpint.data.masking import Masking
from halfpint.data.sources import DataError
from halfpint.model.batch import Batch, BatchShape

SIGMAS = 4
"""Steps with more tokens than this above the mean are rare; they take a second batch."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CorpusLoader:
    """Steps of `rows` rows. Rows that do not fill a last step wait for another epoch."""

    examples: Examples
    rows: int
    seed: int = 0
    masking: Masking | None = None
    shape: BatchShape | None = None
    max_tokens: int = 65_536
    """Of a batch without a shape."""
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"a batch of {self.rows} rows; give at least one")
        if len(self.examples) < self.rows:
            raise DataError(
                f"{self.examples.corpus.folder} makes {len(self.examples):,} rows, fewer than a batch of "
                f"{self.rows:,}; give a smaller --batch, or more text"
            )

    @property
    def num_steps(self) -> int:
        return len(self.examples) // self.rows

    @property
    def facts(self) -> dict[str, int]:
        return {"rows": len(self.examples), "tokens": int(self.examples.lengths.sum())}

    def fit(self) -> CorpusLoader:
        """The same with a shape that holds nearly every step whole."""
        lengths, rows = self.examples.lengths, -(-self.rows // self.world)
        most = min(self.max_tokens, rows * int(lengths.max()))
        tokens = min(most, round(rows * lengths.mean() + SIGMAS * np.sqrt(rows) * lengths.std()))
        tokens = max(-(-tokens // TOKENS_STEP) * TOKENS_STEP, int(lengths.max()))
        longest = int(lengths.max())
        targets = 0
        if self.masking is not None:
            spread = SIGMAS * self.masking.longest_span * np.sqrt(rows)
            targets = -(-int(self.masking.rate * tokens + spread) // 8) * 8
        shape = BatchShape(tokens, rows + -(-tokens // longest), longest, targets)
        return replace(self, shape=shape)

    def order(self, epoch: int) -> Ints:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))

    def steps(self, epoch: int, first: int = 0) -> Iterator[list[Batch]]:
        """The steps of an epoch from a given one on, each as the batches that this rank computes."""
        order, draws = self.order(epoch), Draws(self.seed, epoch)
        for step in range(first, self.num_steps):
            rows = order[step * self.rows : (step + 1) * self.rows][self.rank :: self.world]
            yield list(self.batches(rows, draws))

    def batches(self, rows: Ints, draws: Draws) -> Iterator[Batch]:
        """These rows, as the epoch of `draws` has them, in as many batches as they need."""
        made = self.examples.make(rows, draws)
        words, seen, targets = made.ids, made.ids, np.empty(0, np.int64)
        if self.masking is not None:
            seen, targets = self.masking.apply(made.ids, made.starts, made.begins_word, rows, draws)
        guessed = np.zeros(len(words), np.int64)
        guessed[targets] = 1
        encoded = Encoded(
            ids=seen,
            segments=made.segments,
            starts=made.starts,
            row_starts=np.arange(len(rows) + 1),
            per_sequence={"order": made.order},
            per_token={"word": words, "guessed": guessed},
        )
        for group in self._groups(encoded):
            yield self._batch(encoded.select(group))

    def _groups(self, encoded: Encoded) -> Iterator[Ints]:
        tokens = encoded.row_tokens.tolist()
        if self.shape is None:
            yield from (np.arange(part.start, part.stop) for part in split_by_tokens(tokens, self.max_tokens))
        else:
            yield from (np.array(group) for group in fill_in_order(tokens, self.shape))

    def _batch(self, encoded: Encoded) -> Batch:
        batch = make_batch(encoded)
        guessed = batch.per_token.pop("guessed")
        if self.masking is not None:
            targets = torch.nonzero(guessed)[:, 0]
            # More than the shape has slots for are hidden, and not asked for.
            batch = batch.with_targets(targets if self.shape is None else targets[: self.shape.targets])
        return batch if self.shape is None else batch.fill(self.shape)
