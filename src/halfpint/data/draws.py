"""Random numbers that are a function of where they are used, and of nothing else.

A number belongs to (seed, epoch, row, place) and a purpose, and is computed from them alone (SplitMix64's finalizer,
chained over the parts). So neither the order of rows, nor how they are batched, nor workers, nor a resume can change
it, and a whole batch is drawn at once.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """The numbers of one epoch of one run."""

    seed: int
    epoch: int = 0

    def bits(self, purpose: str, *parts: ArrayLike) -> Bits:
        """64 bits for each place: `parts` are the numbers that tell it (row, place …), of shapes that go together."""
        found: Bits = np.zeros((), np.uint64)
        for number in (self.seed, self.epoch, zlib.crc32(purpose.encode())):
            found = _mixed(found ^ np.uint64(number % 2**64))
        for part in parts:
            found = _mixed(found ^ np.asarray(part).astype(np.uint64))
        return found

    def uniform(self, purpose: str, *parts: ArrayLike) -> Floats:
        """From 0 up to 1, which is left out."""
        return (self.bits(purpose, *parts) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, limit: ArrayLike, purpose: str, *parts: ArrayLike) -> NDArray[np.int64]:
        """Whole numbers from 0 up to a limit, which is left out."""
        found: NDArray[np.int64] = (self.uniform(purpose, *parts) * np.asarray(limit)).astype(np.int64)
        return found


def _mixed(state: Bits) -> Bits:
    with np.errstate(over="ignore"):  # modulo 2⁶⁴ is meant
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Bits = state ^ (state >> np.uint64(31))
    return mixed
