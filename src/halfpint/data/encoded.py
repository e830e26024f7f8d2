"""Rows as ids: what a tokenizer and a task make of a table, in a few flat arrays that can lie on disk.

A row is one or several sequences (the options of a RACE question, the windows of a SQuAD passage), a sequence is
some tokens. All tokens lie end to end, and two tables of starts say which belong together.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Encoded:
    """Sequences in the order of their rows. Letters: T tokens, S sequences, R rows."""

    ids: Array  # (T,) uint16 where the vocabulary allows, else int32
    segments: Array  # (T,) uint8
    starts: NDArray[np.int64]  # (S + 1,)
    row_starts: NDArray[np.int64]  # (R + 1,): the first sequence of each row
    per_sequence: Mapping[str, Array] = field(default_factory=dict)  # (S, …) each
    per_token: Mapping[str, Array] = field(default_factory=dict)  # (T, …) each
    notes: Mapping[str, Array] = field(default_factory=dict)  # (T, …) each
    """What a task needs to read answers off its tokens, such as their places in the text; never in a batch."""
    num_truncated: int = 0
    """Rows that lost tokens."""

    @property
    def num_rows(self) -> int:
        return len(self.row_starts) - 1

    @property
    def num_sequences(self) -> int:
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Of all sequences: (S,)."""
        return np.diff(self.starts)

    @cached_property
    def row_tokens(self) -> NDArray[np.int64]:
        """Tokens of all rows: (R,)."""
        return np.diff(self.starts[self.row_starts])

    @cached_property
    def row_sequences(self) -> NDArray[np.int64]:
        """Sequences of all rows: (R,)."""
        return np.diff(self.row_starts)

    def select(self, rows: NDArray[np.int64]) -> Encoded:
        """These rows, in this order."""
        sequences = ranges(self.row_starts, rows)
        tokens = ranges(self.starts, sequences)
        return Encoded(
            ids=self.ids[tokens],
            segments=self.segments[tokens],
            starts=_offsets(self.lengths[sequences]),
            row_starts=_offsets(self.row_sequences[rows]),
            per_sequence={name: each[sequences] for name, each in self.per_sequence.items()},
            per_token={name: each[tokens] for name, each in self.per_token.items()},
            notes={name: each[tokens] for name, each in self.notes.items()},
        )

    def tokens_of(self, sequence: int) -> slice:
        """Where the tokens of a sequence lie."""
        return slice(int(self.starts[sequence]), int(self.starts[sequence + 1]))

    def sequences_of(self, row: int) -> range:
        """The sequences of a row."""
        return range(int(self.row_starts[row]), int(self.row_starts[row + 1]))

    def write(self, folder: Path) -> None:
        """As plain .npy files, into a folder that exists."""
        arrays = dict(self._arrays())
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        facts = {"num_truncated": self.num_truncated, "arrays": _forms(arrays)}
        (folder / "encoded.json").write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Encoded:
        """Mapped into memory, not loaded; refused unless every array is there as it was written."""
        facts = json.loads((folder / "encoded.json").read_text(encoding="utf-8"))
        arrays = {path.stem: np.lib.format.open_memmap(path, mode="r") for path in folder.glob("*.npy")}
        if not isinstance(facts, dict) or facts.pop("arrays", None) != _forms(arrays):
            raise ValueError(f"{folder} has not the arrays that encoded.json names; encode the data again")
        values: dict[str, Any] = facts
        for name, array in arrays.items():
            group, dot, key = name.partition(".")
            if dot:
                values.setdefault(group, {})[key] = array
            else:
                values[name] = array
        return cls(**values)

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                yield from ((f"{item.name}.{name}", each) for name, each in value.items())
            elif isinstance(value, np.ndarray):
                yield item.name, value


def _forms(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}


def ranges(starts: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Everything between starts[i] and starts[i + 1], for each chosen i in turn."""
    begins, lengths = starts[chosen], starts[chosen + 1] - starts[chosen]
    within = np.arange(lengths.sum()) - np.repeat(_offsets(lengths)[:-1], lengths)
    return np.asarray(np.repeat(begins, lengths) + within)


def _offsets(lengths: Array) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def encode_sequences(
    ids: Sequence[Sequence[int]],
    segments: Sequence[Sequence[int]] | None,
    *,
    vocab_size: int,
    row_sequences: Array | None = None,
    per_sequence: Mapping[str, Array] | None = None,
    per_token: Mapping[str, Array] | None = None,
    notes: Mapping[str, Array] | None = None,
    num_truncated: int = 0,
) -> Encoded:
    """From lists of ids; each its own row unless `row_sequences` says how many a row has."""
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    total = int(lengths.sum())
    return Encoded(
        ids=_flat(ids, total, np.uint16 if vocab_size <= 1 << 16 else np.int32),
        segments=np.zeros(total, np.uint8) if segments is None else _flat(segments, total, np.uint8),
        starts=_offsets(lengths),
        row_starts=_offsets(np.ones(len(ids), np.int64) if row_sequences is None else row_sequences),
        per_sequence=dict(per_sequence or {}),
        per_token=dict(per_token or {}),
        notes=dict(notes or {}),
        num_truncated=num_truncated,
    )


def _flat(parts: Sequence[Sequence[int]], total: int, dtype: type) -> Array:
    flat: Array = np.empty(total, dtype)
    start = 0
    for part in parts:
        flat[start : start + len(part)] = part
        start += len(part)
    return flat
