"""`Model`: an encoder with its heads and tokenizer, taking lists and texts and returning NumPy arrays."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.artifact import ArtifactError, read_artifact
from halfpint.checkpoints.adapter import ForeignEncoder, read_foreign
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.hub import find_folder
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.sentence import read_embedding_head
from halfpint.config import EmbeddingHead, ModelConfig
from halfpint.data.tokenizer import Tokenizer, read_tokenizer, require_fit
from halfpint.model.batch import Batch, Limits
from halfpint.model.encoder import Encoder, Output
from halfpint.model.heads import embed
from halfpint.model.network import Network

Ids = Sequence[Sequence[int]]
Array = NDArray[Any]

TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}
"""Sequences are run in groups of about so many tokens, which bounds memory; ragged groups cost nothing."""


class Model:
    """What `load` returns. Calls give NumPy arrays; `module` is the torch module."""

    def __init__(
        self, module: Network | ForeignEncoder, tokenizer: Tokenizer | None, embedding: EmbeddingHead | None
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.embedding = embedding or EmbeddingHead()

    @property
    def config(self) -> ModelConfig | None:
        """None for a model that runs through the transformers adapter."""
        return self.module.config if isinstance(self.module, Network) else None

    @property
    def encoder(self) -> Encoder | ForeignEncoder:
        return self.module.encoder if isinstance(self.module, Network) else self.module

    @property
    def limits(self) -> Limits:
        return self.encoder.config if isinstance(self.encoder, Encoder) else self.encoder

    @property
    def max_length(self) -> int:
        """The longest sequence it takes."""
        return self.limits.num_positions

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Model:
        self.module.to(device=device, dtype=dtype)
        return self

    def encode(self, ids: Ids, segments: Ids | None = None) -> list[Array]:
        """The last states: one array (length, hidden) for each sequence."""
        return [_numpy(piece) for batch, output in self._run(ids, segments) for piece in batch.split(output.hidden)]

    def logits(self, ids: Ids, segments: Ids | None = None, head: str | None = None) -> list[Array]:
        """A head's scores: one array for each sequence, over its tokens where the head is one of tokens."""
        network = self._network_with_head(head)
        kind = head or next(kind for kind in network.heads if kind != "embedding")
        answers: list[Array] = []
        for batch, output in self._run(ids, segments):
            with torch.inference_mode():
                answer = network.answer(kind, output, batch)
            pieces = batch.split(answer) if len(answer) == batch.num_tokens and kind in TOKEN_HEADS else answer
            answers += [_numpy(piece) for piece in pieces]
        return answers

    def embed(self, texts: Sequence[str]) -> Array:
        """One vector for each text: (texts, hidden)."""
        if isinstance(texts, str):
            raise ValueError("embed takes a list of texts; put the one text in a list")
        if self.tokenizer is None:
            raise ArtifactError("this model has no tokenizer.json, so it takes ids (encode), not texts")
        tokenized = self.tokenizer(texts, self.max_length)
        if tokenized.num_truncated:
            warnings.warn(
                f"{tokenized.num_truncated} of {len(texts)} texts have more than {self.max_length} tokens and were cut",
                stacklevel=2,
            )
        vectors = []
        for batch, output in self._run(tokenized.ids, tokenized.segments):
            with torch.inference_mode():
                vectors.append(_numpy(embed(output.hidden, batch, self.embedding)))
        return np.concatenate(vectors)

    def _network_with_head(self, head: str | None) -> Network:
        heads = [kind for kind in self.module.heads if kind != "embedding"] if isinstance(self.module, Network) else []
        if (head is not None and head not in heads) or not heads:
            wanted = f"no {head} head" if head else "no head"
            raise ValueError(f"this model has {wanted} (it has: {', '.join(heads) or 'only the encoder'})")
        assert isinstance(self.module, Network)
        return self.module

    def _run(self, ids: Ids, segments: Ids | None) -> Iterator[tuple[Batch, Output]]:
        device = next(self.module.parameters()).device
        self.module.eval()
        for start, end in _groups(ids, TOKENS_AT_ONCE.get(device.type, 4096)):
            batch = Batch.from_ids(ids[start:end], segments[start:end] if segments else None)
            batch.check(self.limits)
            with torch.inference_mode():
                batch = batch.to(device)
                yield batch, self.encoder(batch)


TOKEN_HEADS = ("masked_lm", "token", "span")
"""Heads that answer for every token."""


def _groups(ids: Ids, tokens: int) -> Iterator[tuple[int, int]]:
    """Consecutive sequences of at most so many tokens together, or one that alone is longer."""
    if len(ids) == 0:
        raise ValueError("an empty batch: give at least one sequence")
    start = count = 0
    for index, sequence in enumerate(ids):
        if index > start and count + len(sequence) > tokens:
            yield start, index
            start, count = index, 0
        count += len(sequence)
    yield start, len(ids)


def _numpy(values: torch.Tensor) -> Array:
    array: Array = values.float().cpu().numpy()
    return array


def load(name: str | Path, *, dtype: torch.dtype = torch.float32, revision: str | None = None) -> Model:
    """A model by its folder, preset or Hub name; architectures outside the family through the adapter."""
    artifact = read_artifact(find_folder(name, revision=revision))
    module: Network | ForeignEncoder
    try:
        module = read_network(artifact, dtype=dtype)
        embedding = module.config.head("embedding")
    except Inexpressible:
        module = read_foreign(artifact, dtype=dtype)
        embedding = read_embedding_head(artifact)
    assert embedding is None or isinstance(embedding, EmbeddingHead)
    tokenizer = read_tokenizer(artifact)
    model = Model(module, tokenizer, embedding)
    if tokenizer is not None:
        require_fit(tokenizer, model.limits.vocab_size, artifact.folder)
    return model
