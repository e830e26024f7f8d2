"""A corpus on disk: the tokens of documents and their sentences, in shards that are mapped into memory.

A corpus is a folder: `corpus.json` with counts and hashes, `tokenizer.json`, and a folder for each shard with
- `tokens.npy`: all tokens without special ones, end to end, two bytes each where the vocabulary allows;
- `sentences.npy`: where each sentence begins among the tokens, and where the last one ends;
- `documents.npy`: likewise of the documents, among the sentences;
- `words.npy`: a bit for each token, set where a word begins, as the tokenizer's own word ids say.
`build_corpus.py` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
ARRAYS = ("tokens", "sentences", "documents", "words")

Array = NDArray[Any]


@dataclass(frozen=True)
class Document:
    """One document."""

    tokens: Array  # (tokens,)
    starts: Array  # (sentences + 1,): where each sentence begins in `tokens`, and where the last one ends
    begins_word: NDArray[np.bool_]  # (tokens,)

    @property
    def num_sentences(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class Shard:
    """Some documents, as they lie on disk."""

    folder: Path
    facts: Mapping[str, Any]
    """Counts, and the hash of each file."""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """All arrays, mapped into memory; a file that is not what was written is refused."""
        found = {}
        for name in ARRAYS:
            path = self.folder / f"{name}.npy"
            try:
                if hash_file(path) != self.facts["sha256"][name]:
                    raise DataError(f"{path} was changed or is incomplete; build the corpus again, which mends it")
                found[name] = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{path} cannot be read ({error}); build the corpus again, which mends it") from error
        return found

    @property
    def num_documents(self) -> int:
        return int(self.facts["documents"])

    def document(self, index: int) -> Document:
        arrays = self.arrays
        first, last = arrays["documents"][index : index + 2].astype(np.int64)
        starts = arrays["sentences"][first : last + 1].astype(np.int64)
        begin, end = int(starts[0]), int(starts[-1])
        return Document(arrays["tokens"][begin:end], starts - begin, unpack_words(arrays["words"], begin, end))


@dataclass(frozen=True)
class Corpus:
    """All documents of a corpus folder."""

    folder: Path
    manifest: Mapping[str, Any]
    shards: tuple[Shard, ...]

    @property
    def num_documents(self) -> int:
        return int(self.manifest["documents"])

    @property
    def num_sentences(self) -> int:
        return int(self.manifest["sentences"])

    @property
    def num_tokens(self) -> int:
        return int(self.manifest["tokens"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(self.folder / TOKENIZER)))

    @cached_property
    def _first(self) -> Array:
        """The number of the first document of each shard, and behind them how many there are."""
        return np.concatenate([[0], np.cumsum([shard.num_documents for shard in self.shards])])

    def document(self, index: int) -> Document:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        return self.shards[shard].document(index - int(self._first[shard]))


def unpack_words(words: Array, begin: int, end: int) -> NDArray[np.bool_]:
    """Whether each of these tokens begins a word."""
    bits = np.unpackbits(words[begin // 8 : -(-end // 8)])
    return bits[begin % 8 : begin % 8 + end - begin].astype(np.bool_)


def read_corpus(folder: str | PathLike[str]) -> Corpus:
    """A corpus that is complete. Its files are checked when they are first used."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise DataError(f"there is no corpus {place}; give the folder that a corpus was built in")
    manifest = read_manifest(place / MANIFEST)
    if manifest is None:
        raise DataError(f"{place} is no corpus, or it was not finished; build it (again: it goes on where it ended)")
    if manifest["format"] != FORMAT:
        raise DataError(f"{place} has format {manifest['format']}, and this version reads {FORMAT}; build it again")
    shards = tuple(Shard(place / f"{number:05d}", facts) for number, facts in enumerate(manifest["shards"]))
    return Corpus(place, manifest, shards)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None where there is none, or none that is whole."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
