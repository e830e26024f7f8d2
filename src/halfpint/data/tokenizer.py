"""A tokenizer of a model folder, with its own truncation and padding settings ignored.

MiniLM's file, for one, cuts at 128 tokens and pads, silently. Lengths are the caller's to set, and how many
texts were cut is always told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tokenizers

from halfpint.artifact import Artifact, ArtifactError

COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Beside tokenizer.json, what other libraries read: which class it is, and which tokens are special."""

VOCABULARIES = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt")
"""The vocabulary once more, in the format of older libraries."""


@dataclass(frozen=True)
class Tokenized:
    """Texts as ids and segments, and how many of them did not fit."""

    ids: list[list[int]]
    segments: list[list[int]]
    num_truncated: int
    words: list[list[int | None]] = field(default_factory=list)
    """Of words that came apart already, to which of them each token belongs."""


class Tokenizer:
    """Texts, or pairs of texts, to ids."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.backend = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def to_json(self) -> str:
        """All of it as the text of a tokenizer.json, without truncation and padding."""
        return self.backend.to_str(pretty=True)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json() + "\n", encoding="utf-8")

    def __call__(self, texts: Sequence[str] | Sequence[tuple[str, str]], max_length: int) -> Tokenized:
        # Which characters a token stands for is not asked, and finding it takes a fifth of the time.
        return _tokenized(self._encode(self.backend.encode_batch_fast, texts, max_length))

    def words(self, texts: Sequence[Sequence[str]], max_length: int) -> Tokenized:
        """Texts whose words come apart already."""
        encodings = self._encode(self.backend.encode_batch, texts, max_length, is_pretokenized=True)
        return replace(_tokenized(encodings), words=[encoding.word_ids for encoding in encodings])

    def _encode(
        self,
        encode: Callable[..., list[tokenizers.Encoding]],
        texts: Sequence[Any],
        max_length: int,
        *,
        is_pretokenized: bool = False,
    ) -> list[tokenizers.Encoding]:
        self.backend.enable_truncation(max_length)
        try:
            return encode(list(texts), is_pretokenized=is_pretokenized)
        finally:
            self.backend.no_truncation()


def _tokenized(encodings: Sequence[tokenizers.Encoding]) -> Tokenized:
    return Tokenized(
        ids=[encoding.ids for encoding in encodings],
        segments=[encoding.type_ids for encoding in encodings],
        num_truncated=sum(bool(encoding.overflowing) for encoding in encodings),
    )


def read_tokenizer(artifact: Artifact) -> Tokenizer | None:
    """The tokenizer of a folder; None where there is none."""
    if not artifact.has("tokenizer.json"):
        return None
    path = artifact.path("tokenizer.json")
    try:
        # The library raises nothing narrower than Exception for a file it cannot parse.
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:
        raise ArtifactError(f"{path} is not a tokenizer: {error}") from error


def require_fit(tokenizer: Tokenizer, vocab_size: int, folder: object) -> None:
    """A tokenizer that knows more words than the model embeds belongs to another model."""
    if tokenizer.size > vocab_size:
        raise ArtifactError(
            f"{folder}: the tokenizer has ids up to {tokenizer.size - 1}, the embedding only {vocab_size} rows; "
            "they do not belong together"
        )
