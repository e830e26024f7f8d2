"""Which sequences go into a batch together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from halfpint.model.batch import BatchShape


def fill_in_order(lengths: Iterable[int], shape: BatchShape) -> Iterator[list[int]]:
    """The numbers of the sequences of each batch: in their order, as many at a time as fit the shape."""
    group: list[int] = []
    tokens = 0
    for index, length in enumerate(lengths):
        if length > shape.longest or not shape.fits(1, length):
            raise ValueError(f"sequence {index} of {length} tokens does not fit {shape}; declare a larger one")
        if not shape.fits(len(group) + 1, tokens + length):
            yield group
            group, tokens = [], 0
        group.append(index)
        tokens += length
    if group:
        yield group
