"""Texts tokenized once, and sequences of two texts cut out of them.

A passage of SQuAD has some five questions, an article of RACE some fourteen pairs of a question and an option. So each
different text is tokenized once, in parallel and without special tokens. A sequence is two slices of such texts, and
NumPy puts the special tokens around them that the tokenizer's own post-processor puts around a pair: the ids are those
that it would give to the pair, for a fraction of its work and memory.
Letters: P tokens of all texts, S sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfpint.data.encoded import Encoded
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer

Array = NDArray[Any]
Counts = NDArray[np.int64]

CHUNK = 10_000
"""Texts that are tokenized together, and sequences that are laid out together, which bounds the memory."""

FIRST, SECOND = -1, -2
"""The places of the two texts among special tokens, which have ids from 0 on."""
PROBE = "a"

SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


@dataclass(frozen=True)
class Pieces:
    """Different texts as tokens, end to end."""

    ids: NDArray[np.int32]  # (P,)
    places: NDArray[np.int32] | None  # (P, 2): from and to which character of its text a token goes
    starts: Counts  # (different texts + 1,)

    def slices(self, texts: Counts) -> Slices:
        """All tokens of these texts."""
        return Slices(self, self.starts[texts], self.starts[texts + 1] - self.starts[texts])


@dataclass(frozen=True)
class Slices:
    """Some tokens of a text, for each of several sequences."""

    pieces: Pieces
    starts: Counts  # (S,)
    lengths: Counts  # (S,)

    def head(self, most: int | Counts) -> Slices:
        """The first tokens of each."""
        return replace(self, lengths=np.minimum(self.lengths, most))

    def tail(self, most: int | Counts) -> Slices:
        """The last tokens of each."""
        kept = np.minimum(self.lengths, most)
        return replace(self, starts=self.starts + self.lengths - kept, lengths=kept)

    def take(self, chosen: Counts) -> Slices:
        return replace(self, starts=self.starts[chosen], lengths=self.lengths[chosen])

    def windows(self, room: Counts, shared: Counts) -> tuple[Counts, Slices]:
        """Each in windows of at most `room` tokens, of which neighbours have `shared`; and which one each is of.

        The last is the first that reaches the end; what has no tokens has one window without any.
        """
        step = room - shared
        counts = 1 + np.maximum(-(-(self.lengths - room) // step), 0)
        of = np.repeat(np.arange(len(counts)), counts)
        begin = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * step[of]
        lengths = np.minimum(self.lengths[of] - begin, room[of])
        return of, Slices(self.pieces, self.starts[of] + begin, lengths)


def read_pieces(tokenizer: Tokenizer, texts: Sequence[str], *, places: bool = False) -> tuple[Pieces, Counts]:
    """The different ones of these texts as tokens, and which of them each text is; with their places where asked."""
    numbers: dict[str, int] = {}
    of_text = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
    different = list(numbers)
    # The faster one leaves places out.
    encode = tokenizer.backend.encode_batch if places else tokenizer.backend.encode_batch_fast
    ids, found, lengths = [], [], []
    for start in range(0, len(different), CHUNK):
        chunk = different[start : start + CHUNK]
        encodings = encode(chunk, add_special_tokens=False)
        lengths.append(np.fromiter(map(len, encodings), np.int64, len(encodings)))
        ids.append(_flat(encoding.ids for encoding in encodings))
        if places:
            found += [
                _without_spaces(text, _flat(each.offsets).reshape(-1, 2))
                for text, each in zip(chunk, encodings, strict=True)
            ]
    return Pieces(
        ids=np.concatenate([np.empty(0, np.int32), *ids]),
        places=np.concatenate([np.empty((0, 2), np.int32), *found]) if places else None,
        starts=np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))]),
    ), of_text


def _flat(parts: Iterable[Iterable[int]]) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(parts), np.int32)


def _without_spaces(text: str, offsets: NDArray[np.int32]) -> NDArray[np.int32]:
    """Places that neither begin nor end with a space, as those of SentencePiece do: (tokens, 2)."""
    is_space = np.isin(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32), SPACES)
    here = np.arange(len(is_space))
    next_word = np.append(np.minimum.accumulate(np.where(is_space, len(here), here)[::-1])[::-1], len(here))
    last_word = np.append(0, np.maximum.accumulate(np.where(is_space, 0, here + 1)))
    start, end = offsets.T
    start = np.minimum(next_word[start], end)
    return np.stack([start, np.maximum(last_word[end], start)], axis=1).astype(np.int32)


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts around two texts: `[CLS] FIRST [SEP] SECOND [SEP]`, for one."""

    parts: tuple[int, ...]
    """Ids of special tokens, FIRST and SECOND."""
    segments: tuple[int, ...]
    """Of each part."""

    @property
    def num_special(self) -> int:
        return len(self.parts) - 2

    def room(self, max_length: int, least: int) -> int:
        """What is left for the two texts, which need so many tokens."""
        room = max_length - self.num_special
        if room < least:
            raise DataError(
                f"a sequence of {max_length} tokens holds {self.num_special} special tokens and no two texts; "
                f"give a max_length of at least {self.num_special + least}"
            )
        return room

    def before_second(self, first: Slices) -> Counts:
        """Tokens of each sequence before its second text: (S,)."""
        before = self.parts[: self.parts.index(SECOND)]
        return len(before) + (first.lengths - 1 if FIRST in before else np.zeros_like(first.lengths))


def read_frame(tokenizer: Tokenizer) -> Frame:
    """By a look at a pair of short texts: post-processors are of many kinds, and show their templates to nobody."""
    pair = tokenizer.backend.encode(PROBE, PROBE)
    parts: list[int] = []
    segments: list[int] = []
    for token, segment, text in zip(pair.ids, pair.type_ids, pair.sequence_ids, strict=True):
        part = token if text is None else (FIRST, SECOND)[text]
        if part not in (FIRST, SECOND) or part not in parts:
            parts.append(part)
            segments.append(segment)
    assert {FIRST, SECOND} <= set(parts), f"a tokenizer that makes nothing of {PROBE!r}"
    return Frame(tuple(parts), tuple(segments))


def read_single_frame(tokenizer: Tokenizer) -> Frame:
    """What a tokenizer puts around one text, for all of which FIRST stands."""
    alone = tokenizer.backend.encode(PROBE)
    parts = [token if text is None else FIRST for token, text in zip(alone.ids, alone.sequence_ids, strict=True)]
    kept = [place for place, part in enumerate(parts) if part != FIRST or place == parts.index(FIRST)]
    return Frame(tuple(parts[place] for place in kept), tuple(alone.type_ids[place] for place in kept))


def join(frame: Frame, first: Slices, second: Slices, vocab_size: int) -> Encoded:
    """Sequences of two slices each, every one its own row. Places of the second become the note `place`."""
    special = np.array([part for part in frame.parts if part >= 0], dtype=np.int32)
    pool = np.concatenate([special, first.pieces.ids, second.pieces.ids])
    num_sequences, num_parts = len(first.lengths), len(frame.parts)
    begins = np.empty((num_sequences, num_parts), np.int64)
    counts = np.ones((num_sequences, num_parts), np.int64)
    num_seen = 0
    for column, part in enumerate(frame.parts):
        if part == FIRST:
            begins[:, column], counts[:, column] = len(special) + first.starts, first.lengths
        elif part == SECOND:
            begins[:, column] = len(special) + len(first.pieces.ids) + second.starts
            counts[:, column] = second.lengths
        else:
            begins[:, column] = num_seen
            num_seen += 1
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    ids = np.empty(starts[-1], np.uint16 if vocab_size <= 1 << 16 else np.int32)
    segments = np.empty(starts[-1], np.uint8)
    places = None if second.pieces.places is None else np.empty((starts[-1], 2), np.int32)
    for low in range(0, num_sequences, CHUNK):
        high = min(low + CHUNK, num_sequences)
        tokens, count = slice(starts[low], starts[high]), counts[low:high].ravel()
        index = np.arange(count.sum()) + np.repeat(begins[low:high].ravel() - (np.cumsum(count) - count), count)
        ids[tokens] = pool[index]
        segments[tokens] = np.repeat(np.tile(np.array(frame.segments, np.uint8), high - low), count)
        if places is not None:
            assert second.pieces.places is not None
            inside = index - len(special) - len(first.pieces.ids)
            places[tokens] = -1
            places[tokens][inside >= 0] = second.pieces.places[inside[inside >= 0]]
    return Encoded(
        ids=ids,
        segments=segments,
        starts=starts,
        row_starts=np.arange(num_sequences + 1),
        notes={} if places is None else {"place": places},
    )
