"""What a model is pretrained on: chunks of documents, cut into two segments, of which it has to tell the order.

What is notable:
- A chunk is as many neighbouring sentences of a document as fit a sequence. Chunks are planned once; where one is cut,
  whether it is swapped and what it is paired with depends on (seed, epoch, row) alone and differs in every epoch.
- `nsp` (BERT): the second segment follows the first (0), or is from another document (1). `sop` (ALBERT): the two are
  in order (0), or swapped (1). `structbert`: the second follows (0), precedes (1), or is from another document (2).
- Nothing is padded: segments are packed into ragged batches as they are.
Letters: C chunks, R rows of a batch, T tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from halfpint.data.corpus import Corpus, unpack_words
from halfpint.data.draws import Draws
from halfpint.data.pieces import FIRST, SECOND, read_frame, read_single_frame
from halfpint.data.sources import DataError

Order = Literal["nsp", "sop", "structbert"]
KINDS: dict[Order, tuple[str, ...]] = {
    "nsp": ("next", "other"), "sop": ("next", "swapped"), "structbert": ("next", "swapped", "other"),
}  # fmt: skip
"""What each class of an objective is."""

TRIES = 8
"""Chunks that are drawn as a partner from another document, before the next document is taken."""

Ints = NDArray[np.int64]
Array = NDArray[Any]
Segment = tuple[int, int, int]
"""The shard, and from which token to which."""


@dataclass(frozen=True)
class Made:
    """Rows that were made: sequences end to end."""

    ids: Ints  # (T,)
    segments: Ints  # (T,)
    begins_word: NDArray[np.bool_]  # (T,)
    starts: Ints  # (R + 1,)
    order: Ints  # (R,): the class of each; all 0 where nothing is asked


@dataclass(frozen=True)
class Chunks:
    """Neighbouring sentences of a document that fit a sequence together."""

    shard: Ints  # (C,)
    document: Ints  # (C,): its number in the corpus
    first: Ints  # (C,): its first sentence, and behind its last, in the shard
    last: Ints  # (C,)
    num_left_out: int
    """Sentences that stand alone, where two are needed."""

    def __len__(self) -> int:
        return len(self.document)


def plan_chunks(corpus: Corpus, room: int, least: int) -> Chunks:
    """All chunks of a corpus with at most `room` tokens, or one sentence that is longer, and `least` sentences."""
    found = array("q")  # a tenth of what tuples take
    num_documents = num_left_out = 0
    for number, shard in enumerate(corpus.shards):
        offsets, documents = (shard.arrays[name].astype(np.int64) for name in ("sentences", "documents"))
        for index in range(shard.num_documents):
            start, end = int(documents[index]), int(documents[index + 1])
            while start < end:
                fits = int(np.searchsorted(offsets, offsets[start] + room, side="right")) - 1
                stop = min(max(fits, start + least), end)
                if stop - start >= least:
                    found.extend((number, num_documents + index, start, stop))
                else:
                    num_left_out += stop - start
                start = stop
        num_documents += shard.num_documents
    shard_of, document, first, last = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Chunks(shard_of, document, first, last, num_left_out)


class Examples:
    """Rows of a corpus for pretraining, made on demand."""

    def __init__(self, corpus: Corpus, max_length: int, order: Order | None = None) -> None:
        if order is not None and order not in get_args(Order):
            raise ValueError(f"order is {order!r}; it is one of {', '.join(get_args(Order))}, or None")
        self.corpus, self.order = corpus, order
        self.frame, self.single = read_frame(corpus.tokenizer), read_single_frame(corpus.tokenizer)
        self.room = self.frame.room(max_length, 2)
        self.chunks = plan_chunks(corpus, self.room, 2 if order else 1)
        if len(self.chunks) == 0:
            raise DataError(
                f"no document of {corpus.folder} has two sentences, and their order is what is to be learnt; give "
                "longer documents, or train without an order objective"
            )
        if order in ("nsp", "structbert") and len(np.unique(self.chunks.document)) < 2:
            raise DataError(
                f"{corpus.folder} has a single document, and {order} takes segments from others; use sop, or give more"
            )

    def __len__(self) -> int:
        return len(self.chunks)

    @cached_property
    def lengths(self) -> Ints:
        """About how many tokens each row has: those of its chunk, whatever it is paired with."""
        inside = np.empty(len(self), np.int64)
        for number, sentences in enumerate(self._sentences):
            mine = self.chunks.shard == number
            inside[mine] = sentences[self.chunks.last[mine]] - sentences[self.chunks.first[mine]]
        frame = self.frame if self.order else self.single
        return np.minimum(inside, self.room) + sum(part >= 0 for part in frame.parts)

    def make(self, rows: Ints, draws: Draws) -> Made:
        """These rows, as the epoch of `draws` has them."""
        first, last = self.chunks.first[rows], self.chunks.last[rows]
        if self.order is None:
            whole = [(self._segment(*each),) for each in zip(rows.tolist(), first, last, strict=True)]
            return self._assembled(whole, np.zeros(len(rows), np.int64))
        cut = first + 1 + draws.below(last - first - 1, "cut", rows)
        classes = draws.below(len(KINDS[self.order]), "order", rows)
        other = self._others(rows, draws)
        other_cut = self.chunks.first[other] + 1
        other_cut += draws.below(self.chunks.last[other] - other_cut, "other cut", rows)
        pairs = []
        for place, row in enumerate(rows.tolist()):
            ahead, behind = self._segment(row, first[place], cut[place]), self._segment(row, cut[place], last[place])
            kind = KINDS[self.order][classes[place]]
            if kind == "swapped":
                ahead, behind = behind, ahead
            elif kind == "other":
                stranger = int(other[place])
                behind = self._segment(stranger, other_cut[place], self.chunks.last[stranger])
            pairs.append(self._fitted(ahead, behind))
        return self._assembled(pairs, classes)

    def _others(self, rows: Ints, draws: Draws) -> Ints:
        """For each row some row of another document."""
        mine = self.chunks.document[rows]
        found = draws.below(len(self), "other", rows[:, None], np.arange(TRIES)[None, :])  # (R, TRIES)
        differs = self.chunks.document[found] != mine[:, None]
        chosen = found[np.arange(len(rows)), differs.argmax(axis=1)]
        # Chunks lie in the order of their documents, so behind the last of a document comes another.
        following = np.searchsorted(self.chunks.document, mine, side="right") % len(self)
        return np.where(differs.any(axis=1), chosen, following)

    @cached_property
    def _sentences(self) -> list[Array]:
        return [shard.arrays["sentences"] for shard in self.corpus.shards]

    def _segment(self, row: int, first: int, last: int) -> Segment:
        shard = int(self.chunks.shard[row])
        return shard, int(self._sentences[shard][first]), int(self._sentences[shard][last])

    def _fitted(self, ahead: Segment, behind: Segment) -> tuple[Segment, Segment]:
        """Both, the longer one cut at its end until they fit."""
        room_ahead = max(self.room - (behind[2] - behind[1]), self.room // 2)
        ahead = (*ahead[:2], min(ahead[2], ahead[1] + room_ahead))
        return ahead, (*behind[:2], min(behind[2], behind[1] + self.room - (ahead[2] - ahead[1])))

    def _assembled(self, rows: Sequence[tuple[Segment, ...]], classes: Ints) -> Made:
        frame = self.frame if self.order else self.single
        ids: list[Array] = []
        words: list[Array] = []
        for row in rows:
            for part in frame.parts:
                if part >= 0:
                    ids.append(np.array([part]))
                    words.append(np.ones(1, np.bool_))
                else:
                    shard, begin, end = row[(FIRST, SECOND).index(part)]
                    end = min(end, begin + self.room)
                    arrays = self.corpus.shards[shard].arrays
                    ids.append(arrays["tokens"][begin:end])
                    words.append(unpack_words(arrays["words"], begin, end))
        counts = np.array([len(each) for each in ids], np.int64)
        lengths = counts.reshape(len(rows), len(frame.parts)).sum(axis=1)
        return Made(
            ids=np.concatenate(ids).astype(np.int64),
            segments=np.repeat(np.tile(np.array(frame.segments, np.int64), len(rows)), counts),
            begins_word=np.concatenate(words),
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            order=classes,
        )
