"""Which sequences go into a batch together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

from halfpint.model.batch import BatchShape


def split_by_tokens(tokens: Iterable[int], most: int) -> Iterator[slice]:
    """Neighbours that have at most so many tokens together, or one that alone has more."""
    begin = stop = total = 0
    for stop, count in enumerate(tokens, 1):
        if total + count > most and stop - 1 > begin:
            yield slice(begin, stop - 1)
            begin, total = stop - 1, 0
        total += count
    if stop > begin:
        yield slice(begin, stop)


def fill_in_order(
    tokens: Iterable[int], shape: BatchShape, sequences: Iterable[int] | None = None
) -> Iterator[list[int]]:
    """The numbers of the rows of each batch: in their order, as many at a time as fit the shape.

    `tokens` are those of each row, `sequences` how many sequences it has; without them, each has one.
    """
    group: list[int] = []
    num_tokens = num_sequences = 0
    for index, (more_tokens, more) in enumerate(
        zip(tokens, repeat(1) if sequences is None else sequences, strict=False)
    ):
        if not shape.fits(more, more_tokens) or more_tokens > more * shape.longest:
            raise ValueError(
                f"row {index} of {more_tokens} tokens in {more} sequences does not fit {shape}; declare a larger one"
            )
        if not shape.fits(num_sequences + more, num_tokens + more_tokens):
            yield group
            group, num_tokens, num_sequences = [], 0, 0
        group.append(index)
        num_tokens += int(more_tokens)
        num_sequences += int(more)
    if group:
        yield group
