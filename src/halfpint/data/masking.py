"""Which tokens a masked LM has to guess, and what it sees in their place.

What is notable:
- The unit is the word (whole-word masking) or a span of up to three words (ALBERT: p(n) ∝ 1/n), or the token. Words
  are those of the tokenizer, so this is right for WordPiece, SentencePiece and BPE alike.
- A sequence is cut into spans of random lengths, and spans are taken in random order while they fit the rate. The one
  that no longer fits whole is taken with the probability of the share that does, so that the rate is met on average
  to the last digit, also in short sequences.
- Everything is computed for a whole batch at once, from numbers that depend on (seed, epoch, row, place) alone.
Letters: T tokens, S sequences, G spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfpint.data.draws import Draws
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")

Unit = Literal["token", "word", "span"]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Masking:
    """How texts are masked. Defaults are BERT's, with whole words."""

    mask_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = ()
    """Tokens that are neither masked nor put in the place of others."""
    rate: float = 0.15
    unit: Unit = "word"
    longest_span: int = 3
    """In words."""
    masked: float = 0.8
    """Of the chosen tokens, the share that becomes the mask …"""
    random: float = 0.1
    """… and the share that becomes any other token; the rest stays."""
    dynamic: bool = True
    """Otherwise every epoch masks the same."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"the masking rate is {self.rate}; it must be above 0 and below 1")
        if min(self.masked, self.random) < 0 or self.masked + self.random > 1:
            raise ValueError(
                f"of the chosen tokens a share of {self.masked} is masked and one of {self.random} is replaced; both "
                "must be at least 0, and together at most 1"
            )
        if self.longest_span < 1:
            raise ValueError(f"longest_span is {self.longest_span}; a span has at least one word")
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id is {self.mask_id}, outside the vocabulary of {self.vocab_size}")

    def apply(self, ids: Ints, starts: Ints, begins_word: Flags, rows: Ints, draws: Draws) -> tuple[Ints, Ints]:
        """What the model sees, (T,), and which tokens it has to guess, in their order.

        `starts` (S + 1,) are where sequences begin and the last one ends; `rows` (S,) the numbers of the sequences,
        which the random ones depend on.
        """
        draws = draws if self.dynamic else Draws(draws.seed)
        chosen = self.choose(ids, starts, begins_word, rows, draws)
        targets = np.flatnonzero(chosen)
        owner = np.searchsorted(starts, targets, side="right") - 1
        row, place = rows[owner], targets - starts[owner]
        fate = draws.uniform("fate", row, place)
        seen = ids.copy()
        seen[targets[fate < self.masked]] = self.mask_id
        other = (fate >= self.masked) & (fate < self.masked + self.random)
        words = self._words
        seen[targets[other]] = words[draws.below(len(words), "other", row[other], place[other])]
        return seen, targets

    @cached_property
    def _words(self) -> Ints:
        """What may stand in the place of another token."""
        return np.setdiff1d(np.arange(self.vocab_size), np.array(self.special_ids, dtype=np.int64))

    def choose(self, ids: Ints, starts: Ints, begins_word: Flags, rows: Ints, draws: Draws) -> Flags:
        """Whether each token is to be guessed: (T,)."""
        ordinary = ~np.isin(ids, np.array(self.special_ids, dtype=np.int64))
        owner = np.repeat(np.arange(len(rows)), np.diff(starts))  # (T,)
        begins = self._span_begins(ordinary, owner, starts, begins_word, rows, draws)
        places = np.flatnonzero(ordinary)
        span = np.cumsum(begins)[places] - 1
        sizes = np.bincount(span)  # (G,)
        first = np.flatnonzero(begins)
        of = owner[first]
        key = draws.uniform("order", rows[of], first - starts[of])
        order = np.lexsort([key, of])
        # How many tokens of the same sequence come before a span, in the random order.
        before = np.cumsum(sizes[order]) - sizes[order]
        counts = np.bincount(of, weights=sizes, minlength=len(rows))
        before = before - np.concatenate([[0], np.cumsum(counts)])[of[order]]
        room = self.rate * counts[of[order]] - before
        luck = draws.uniform("last", rows[of], first - starts[of])[order]
        taken = np.zeros(len(sizes), np.bool_)
        taken[order] = (room >= sizes[order]) | ((room > 0) & (luck * sizes[order] < room))
        found = np.zeros(len(ids), np.bool_)
        found[places] = taken[span]
        return found

    def _span_begins(
        self, ordinary: Flags, owner: Ints, starts: Ints, begins_word: Flags, rows: Ints, draws: Draws
    ) -> Flags:
        """Whether a token begins a span: (T,). What follows a special token or another sequence always does."""
        after_gap = np.ones(len(ordinary), np.bool_)
        after_gap[1:] = ~ordinary[:-1] | (owner[1:] != owner[:-1])
        if self.unit == "token":
            return ordinary
        begins = ordinary & (begins_word | after_gap)
        if self.unit == "word":
            return begins
        words = np.flatnonzero(begins)
        of = owner[words]
        lengths = self._lengths(draws.uniform("length", rows[of], words - starts[of])).tolist()
        forced = after_gap[words].tolist()
        left, kept = 0, []
        for length, is_forced in zip(lengths, forced, strict=True):
            kept.append(left == 0 or is_forced)
            left = (length if kept[-1] else left) - 1
        begins[words[~np.array(kept, np.bool_)]] = False
        return begins

    def _lengths(self, uniform: NDArray[np.float64]) -> Ints:
        """Lengths of spans with p(n) ∝ 1/n."""
        weights = 1 / np.arange(1, self.longest_span + 1)
        return np.searchsorted(np.cumsum(weights) / weights.sum(), uniform, side="right") + 1


def masking_for(tokenizer: Tokenizer, **options: Any) -> Masking:
    """Masking with the mask of a tokenizer, and without its special tokens."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    mask = next((vocabulary[name] for name in MASKS if name in vocabulary), None)
    if mask is None:
        raise DataError(f"the tokenizer has no mask token ({' or '.join(MASKS)}); masked-LM training needs one: add it")
    special = [number for number, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special]
    return Masking(mask, tokenizer.size, tuple(sorted({*special, mask})), **options)
