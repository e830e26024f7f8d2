"""Ragged tokens: the only batch there is.

The tokens of all sequences lie end to end; `cu_lengths` says where each begins. Nothing is padded here:
padding exists only inside an attention backend that needs it.

On an accelerator a batch is filled to a declared `BatchShape`. Filler tokens form extra sequences with
`row == -1`, further slots are empty (length zero), and every loss ignores both, so tensors never change
shape: one compile, one CUDA graph.

Letters in comments: T tokens, S sequence slots.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FILLER = -1
"""The row of filler sequences and the target of unused target slots."""
IGNORED = -100
"""The whole number that filler has for a label, and a token that carries none."""


class Limits(Protocol):
    """What an encoder can take; every `EncoderConfig` says it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_positions(self) -> int: ...
    @property
    def num_token_types(self) -> int: ...


@dataclass(frozen=True)
class BatchShape:
    """What every batch of a run is filled to."""

    tokens: int
    sequences: int
    longest: int
    targets: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences", "longest"):
            if getattr(self, name) <= 0:
                raise ValueError(f"BatchShape.{name} is {getattr(self, name)}; it must be positive")
        if self.targets < 0:
            raise ValueError(f"BatchShape.targets is {self.targets}; it cannot be negative")

    def num_filler(self, tokens: int) -> int:
        """How many sequences of filler a batch of so many tokens needs."""
        return -(-(self.tokens - tokens) // self.longest)

    def fits(self, sequences: int, tokens: int) -> bool:
        """Whether so many sequences of so many tokens in all can be filled to this shape."""
        return tokens <= self.tokens and sequences + self.num_filler(tokens) <= self.sequences


@dataclass(frozen=True)
class Batch:
    """Tokens of several sequences, end to end."""

    ids: Tensor  # (T,) int64
    positions: Tensor  # (T,) int64, from 0 in every sequence
    segments: Tensor  # (T,) int64
    cu_lengths: Tensor  # (S + 1,) int32
    row: Tensor  # (S,) int64: the row of the data a sequence belongs to, FILLER where there is none
    document: Tensor  # (S,) int64: the document it was cut from
    longest: int
    """No sequence is longer. A bound, not a measurement, where the batch was filled to a shape."""
    targets: Tensor | None = None  # (targets,) int64: tokens that a head of few tokens works on, or FILLER
    per_slot: dict[str, Tensor] = field(default_factory=dict)  # (S, …) each: labels, scores of a teacher …
    per_token: dict[str, Tensor] = field(default_factory=dict)  # (T, …) each

    @classmethod
    def from_ids(
        cls,
        ids: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None = None,
        rows: Sequence[int] | None = None,
        documents: Sequence[int] | None = None,
    ) -> Batch:
        """One sequence a list. Rows and documents are numbered in order unless given."""
        lengths = lengths_of(ids)
        if segments is not None and not np.array_equal(lengths_of(segments, "segments"), lengths):
            raise ValueError("segments must have the same lengths as ids")
        order = np.arange(len(ids))
        numbered = {"rows": order if rows is None else rows, "documents": order if documents is None else documents}
        for name, values in numbered.items():
            if len(values) != len(ids):
                raise ValueError(f"{name} has {len(values)} entries for {len(ids)} sequences")
        cu_lengths = np.concatenate([[0], np.cumsum(lengths)])
        flat = _join(ids, "ids")
        return cls(
            ids=torch.from_numpy(flat),
            positions=torch.from_numpy(np.arange(len(flat)) - np.repeat(cu_lengths[:-1], lengths)),
            segments=torch.from_numpy(np.zeros_like(flat) if segments is None else _join(segments, "segments")),
            cu_lengths=torch.from_numpy(cu_lengths.astype(np.int32)),
            row=torch.as_tensor(np.asarray(numbered["rows"], dtype=np.int64)),
            document=torch.as_tensor(np.asarray(numbered["documents"], dtype=np.int64)),
            longest=int(lengths.max()),
        )

    @property
    def num_tokens(self) -> int:
        """All tokens, filler included."""
        return self.ids.shape[0]

    @property
    def num_slots(self) -> int:
        return self.cu_lengths.shape[0] - 1

    @property
    def device(self) -> torch.device:
        return self.ids.device

    @cached_property
    def lengths(self) -> list[int]:
        """Lengths of all slots, on the host. Waits for the device: never read it in compiled code."""
        return torch.diff(self.cu_lengths).tolist()

    @cached_property
    def num_real_tokens(self) -> int:
        return sum(length for length, row in zip(self.lengths, self.row.tolist(), strict=True) if row != FILLER)

    @property
    def filler_share(self) -> float:
        return 1 - self.num_real_tokens / self.num_tokens

    def slots(self) -> Tensor:
        """The sequence slot of every token."""  # (T,)
        tokens = torch.arange(self.num_tokens, device=self.device, dtype=self.cu_lengths.dtype)
        return torch.searchsorted(self.cu_lengths, tokens, right=True) - 1

    def first_tokens(self) -> Tensor:
        """Index of every sequence's first token; of an empty slot, some token."""  # (S,)
        return self.cu_lengths[:-1].long().clamp(max=self.num_tokens - 1)

    def last_tokens(self) -> Tensor:
        """Index of every sequence's last token; of an empty slot, some token."""  # (S,)
        return (self.cu_lengths[1:].long() - 1).clamp(min=0)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch elsewhere. On its way to a GPU it goes through pinned memory, so nobody waits for it."""
        pins = torch.device(device).type == "cuda" and self.device.type == "cpu"
        return (self.pin() if pins else self)._map(lambda each: each.to(device, non_blocking=pins))

    def pin(self) -> Batch:
        """The same batch in memory that a GPU reads by itself."""
        return self._map(lambda each: each if each.is_pinned() else each.pin_memory())

    def copy_from(self, other: Batch) -> None:
        """Take over the tensors of a batch of the same shape, in place, for a CUDA graph that reads them here."""
        assert self.longest == other.longest
        for mine, theirs in zip(self._tensors(), other._tensors(), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def _tensors(self) -> Iterator[Tensor]:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                yield from value.values()
            elif isinstance(value, Tensor):
                yield value

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def changed(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: change(each) for name, each in value.items()}
            return change(value) if isinstance(value, Tensor) else value

        return dataclasses.replace(self, **{item.name: changed(getattr(self, item.name)) for item in fields(self)})

    def with_targets(self, targets: Tensor) -> Batch:
        return dataclasses.replace(self, targets=targets)

    def split(self, values: Tensor) -> Iterator[Tensor]:
        """A tensor over tokens, cut into one piece for each real sequence, in order."""
        if values.shape[0] != self.num_tokens:
            raise ValueError(f"{values.shape[0]} values for {self.num_tokens} tokens")
        for piece, row in zip(values.split(self.lengths), self.row.tolist(), strict=True):
            if row != FILLER:
                yield piece

    def fill(self, shape: BatchShape, pad_id: int = 0) -> Batch:
        """The same batch with filler, so that every tensor has the declared shape."""
        missing = shape.tokens - self.num_tokens
        if missing < 0 or self.longest > shape.longest:
            raise ValueError(
                f"{self.num_tokens} tokens, the longest sequence of {self.longest}, do not fit "
                f"a shape of {shape.tokens} tokens and sequences of {shape.longest}"
            )
        # All but the last as long as may be.
        filler = [min(shape.longest, missing - start) for start in range(0, missing, shape.longest)]
        empty = shape.sequences - self.num_slots - len(filler)
        if empty < 0:
            raise ValueError(
                f"{self.num_slots} sequences and {len(filler)} of filler do not fit {shape.sequences} slots; "
                "declare more slots, fewer tokens or a larger longest"
            )
        starts = np.cumsum(np.array([self.num_tokens, *filler] + [0] * empty))
        positions = np.concatenate([np.arange(length) for length in filler]) if filler else np.arange(0)
        new_rows = torch.full((len(filler) + empty,), FILLER)
        return Batch(
            ids=_extend(self.ids, torch.full((missing,), pad_id)),
            positions=_extend(self.positions, torch.from_numpy(positions)),
            segments=_extend(self.segments, torch.zeros(missing)),
            cu_lengths=_extend(self.cu_lengths, torch.from_numpy(starts[1:])),
            row=_extend(self.row, new_rows),
            document=_extend(self.document, new_rows),
            longest=shape.longest,
            targets=_fill_targets(self.targets, shape.targets),
            per_slot={name: _extend_labels(each, shape.sequences) for name, each in self.per_slot.items()},
            per_token={name: _extend_labels(each, shape.tokens) for name, each in self.per_token.items()},
        )

    def check(self, limits: Limits) -> None:
        """What an encoder cannot take is said here, on the host, in words."""
        if self.longest > limits.num_positions:
            raise ValueError(
                f"a sequence of {self.longest} tokens is longer than the encoder's {limits.num_positions} positions; "
                "truncate it, or cut it into windows"
            )
        low, high = int(self.ids.min()), int(self.ids.max())
        if low < 0 or high >= limits.vocab_size:
            raise ValueError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {limits.vocab_size}; "
                "the tokenizer and the model do not belong together"
            )
        low, high = int(self.segments.min()), int(self.segments.max())
        if limits.num_token_types and (low < 0 or high >= limits.num_token_types):
            raise ValueError(
                f"segment {low if low < 0 else high} is outside the encoder's {limits.num_token_types} token types"
            )


def lengths_of(sequences: Sequence[Sequence[int]], name: str = "ids") -> NDArray[np.int64]:
    """The lengths of all sequences, of which there is at least one, and none is empty."""
    try:
        count = len(sequences)
        lengths = np.fromiter((len(sequence) for sequence in sequences), dtype=np.int64, count=count)
    except TypeError as error:
        raise ValueError(f"{name} are {_shortened(sequences)}; give one list of whole numbers a sequence") from error
    if count == 0:
        raise ValueError("an empty batch: give at least one sequence")
    if not lengths.all():
        raise ValueError(
            f"sequence {int(np.argmin(lengths))} is empty; every sequence needs at least one token "
            "(a tokenized empty text has its special tokens)"
        )
    return lengths


def _join(parts: Sequence[Sequence[int]], name: str) -> NDArray[np.int64]:
    """All numbers end to end. Lists of Python's numbers go one by one, at twice the speed of making arrays first."""
    try:
        if all(isinstance(part, list) for part in parts):
            # NumPy would cut fractions off where the standard library's array refuses them, in the same time.
            numbers = array("q")
            for part in parts:
                numbers.fromlist(part)  # type: ignore[arg-type]
            return np.frombuffer(numbers, dtype=np.int64)
        arrays = [np.asarray(part) for part in parts]
        if all(each.ndim == 1 and each.dtype.kind in "iub" for each in arrays):
            return np.concatenate(arrays, dtype=np.int64, casting="unsafe")
    except (TypeError, OverflowError, ValueError):
        pass  # said below, with the number that it was
    for part in parts:
        for number in part:
            if not isinstance(number, int | np.integer) or not -(2**63) <= number < 2**63:
                kind = type(number).__name__
                raise ValueError(f"{name} hold {_shortened(number)} ({kind}); give whole numbers of 64 bits at most")
    raise ValueError(f"{name} are {_shortened(parts)}; give one list of whole numbers a sequence")


def _shortened(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _extend(values: Tensor, more: Tensor) -> Tensor:
    return torch.cat([values, more.to(values.device, values.dtype)])


def _extend_labels(values: Tensor, count: int) -> Tensor:
    more = values.new_full((count - len(values), *values.shape[1:]), 0 if values.is_floating_point() else IGNORED)
    return torch.cat([values, more])


def _fill_targets(targets: Tensor | None, slots: int) -> Tensor | None:
    if targets is None:
        return None
    if len(targets) > slots:
        raise ValueError(f"{len(targets)} targets do not fit {slots} target slots")
    return _extend(targets, torch.full((slots - len(targets),), FILLER))
