"""`Model`: an encoder with its heads and tokenizer, taking lists and texts and returning NumPy arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halfpint.artifact import Artifact, ArtifactError, read_artifact
from halfpint.checkpoints.adapter import ForeignEncoder
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.foreign_network import AnyNetwork, has_foreign_heads, read_foreign_network
from halfpint.checkpoints.hub import find_folder
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.sentence import read_embedding_head
from halfpint.config import TOKEN_HEADS, EmbeddingHead, ModelConfig
from halfpint.data.sources import read
from halfpint.data.task import Task
from halfpint.data.tasks import read_task
from halfpint.data.tokenizer import Tokenizer, read_tokenizer, require_fit
from halfpint.engines.save import save_artifact
from halfpint.engines.scoring import score_rows
from halfpint.model.batch import Batch, Limits, lengths_of
from halfpint.model.encoder import Encoder, Output
from halfpint.model.heads import embed
from halfpint.model.linear import pack_for_inference
from halfpint.model.network import Network

Ids = Sequence[Sequence[int]]
Array = NDArray[Any]

TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}
"""Sequences are run in groups of about so many tokens, which bounds memory; ragged groups cost nothing."""


class Model:
    """What `load` returns. Calls give NumPy arrays; `module` is the torch module."""

    def __init__(
        self,
        module: AnyNetwork,
        tokenizer: Tokenizer | None,
        embedding: EmbeddingHead | None,
        source: Artifact | None = None,
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.embedding = embedding or EmbeddingHead()
        """How `embed` makes one vector of a text: as the folder says, else by the mean, at length one."""
        self.source = source
        """The folder it was loaded from."""

    @property
    def config(self) -> ModelConfig | None:
        """None for a model that runs through the transformers adapter."""
        return self.module.config if isinstance(self.module, Network) else None

    @property
    def encoder(self) -> Encoder | ForeignEncoder:
        return self.module.encoder

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

    def pack(self) -> Model:
        """Lay the weights out for inference on this CPU; `module` cannot be trained, moved or saved after it."""
        pack_for_inference(self.module)
        return self

    def save(
        self,
        out: Path | str,
        *,
        overwrite: bool = False,
        title: str | None = None,
        base_model: str | None = None,
        license: str | None = None,
        facts: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> Path:
        """Write all of it as a folder in the Hub's layout; a folder that is there is replaced only by `overwrite`.

        `title`, `base_model`, `license` and `facts` go into the model card, `metadata` into `halfpint.json`; `files`
        are copied into the folder, by their names there.
        """
        return save_artifact(
            out,
            self.module,
            self.tokenizer,
            self.embedding,
            self.source,
            overwrite=overwrite,
            title=title,
            base_model=base_model,
            license=license,
            facts=facts,
            metadata=metadata,
            files=files,
        )

    def encode(self, ids: Ids, segments: Ids | None = None) -> list[Array]:
        """The last states: one array (length, hidden) for each sequence."""
        return self._run(ids, segments, lambda batch, output: output.hidden, over_tokens=True)

    def logits(self, ids: Ids, segments: Ids | None = None, head: str | None = None) -> list[Array]:
        """A head's scores: one array for each sequence, over its tokens where the head is one of tokens.

        `head` names it, where the model has several.
        """
        kind = self._find_head(head)
        return self._run(
            ids,
            segments,
            lambda batch, output: self.module.answer(kind, output, batch),
            over_tokens=kind in TOKEN_HEADS,
        )

    def embed(self, texts: Sequence[str]) -> Array:
        """One vector for each text: (texts, hidden)."""
        vectors, num_cut = self.embed_and_count(texts)
        if num_cut:
            warnings.warn(
                f"{num_cut} of {len(texts)} texts have more than {self.max_length} tokens and were cut", stacklevel=2
            )
        return vectors

    def embed_and_count(self, texts: Sequence[str]) -> tuple[Array, int]:
        """The same, and how many of the texts were cut, of which nothing is said here."""
        if self.tokenizer is None:
            raise ArtifactError("this model has no tokenizer.json, so it takes ids (encode), not texts")
        _check_texts(texts)
        tokenized = self.tokenizer(texts, self.max_length)
        vectors = self._run(
            tokenized.ids,
            tokenized.segments,
            lambda batch, output: embed(output, batch, self.embedding),
            over_tokens=False,
        )
        return np.stack(vectors), tokenized.num_truncated

    @property
    def task(self) -> Task | None:
        """What it was trained for, as `halfpint.json` says."""
        told = self.source.metadata.get("task") if self.source else None
        return read_task(told) if told else None

    @property
    def task_length(self) -> int:
        """The longest sequence it was trained on for its task."""
        told = self.source.metadata.get("max_length") if self.source else None
        return min(told, self.max_length) if isinstance(told, int) else self.max_length

    def answer(self, table: pa.Table) -> pa.Table:
        """What its task predicts for the rows of a table: one row each, the task's columns."""
        return self.answer_and_count(table)[0]

    def answer_and_count(self, table: pa.Table) -> tuple[pa.Table, int]:
        """The same, and how many of the rows were cut."""
        task, tokenizer = self.require_task()
        encoded = task.encode(table, tokenizer, self.task_length, labelled=False)
        return task.answer(table, encoded, score_rows(self.module, encoded, task.head)), encoded.num_truncated

    def predict(self, rows: Sequence[str] | Sequence[tuple[str, str]] | Sequence[Mapping[str, Any]]) -> list[Any]:
        """A dict of answers for each text, each pair of texts, or each row with the columns of the task."""
        columns = self.require_task()[0].columns
        if len(rows) == 0:
            raise ValueError("no rows: give at least one")
        names = [name for name in (columns.text, columns.pair) if name is not None]
        wanted = "a text" if len(names) == 1 else "a pair of texts"
        dicts = []
        for number, row in enumerate(rows):
            parts = (row,) if isinstance(row, str) else row
            if not isinstance(parts, Mapping) and len(parts) != len(names):
                raise ValueError(f"row {number} is {row!r}; give {wanted}, or a dict with {', '.join(names)}")
            dicts.append(dict(parts) if isinstance(parts, Mapping) else dict(zip(names, parts, strict=True)))
        answers: list[Any] = self.answer(read(dicts).tables["train"]).to_pylist()
        return answers

    def require_task(self) -> tuple[Task, Tokenizer]:
        """Its task and tokenizer, or words on what it lacks."""
        task = self.task
        if task is None:
            raise ArtifactError(
                "this model was not trained for a task by Halfpint, so it has no answers to predict; "
                "train it (halfpint finetune), or ask it for embed, encode or logits"
            )
        if self.tokenizer is None:
            raise ArtifactError("this model has no tokenizer.json, so it takes ids (logits), not texts")
        return task, self.tokenizer

    def _find_head(self, head: str | None) -> str:
        """The kind of the head that is meant."""
        heads = [kind for kind in self.module.heads if kind != "embedding"]
        listed = ", ".join(heads)
        if (head is not None and head not in heads) or not heads:
            wanted = f"no {head} head" if head else "no head"
            raise ValueError(f"this model has {wanted} (it has: {listed or 'only the encoder'})")
        if head is None and len(heads) > 1:
            raise ValueError(f"this model has several heads ({listed}); say which: head={heads[0]!r}, for one")
        return head or heads[0]

    def _run(
        self, ids: Ids, segments: Ids | None, answer: Callable[[Batch, Output], Tensor], *, over_tokens: bool
    ) -> list[Array]:
        """One array a sequence, in their order; run in order of length, which makes equal neighbours."""
        _check_ids(ids, segments)
        device = next(self.module.parameters()).device
        answers: list[Array] = [_NOTHING] * len(ids)
        for group in _groups(ids, TOKENS_AT_ONCE.get(device.type, 4096)):
            batch = Batch.from_ids(
                [ids[index] for index in group], None if segments is None else [segments[index] for index in group]
            )
            batch.check(self.limits)
            with _evaluating(self.module), torch.inference_mode():
                moved = batch.to(device)
                values = answer(moved, self.encoder(moved)).float().cpu()
                pieces = batch.split(values) if over_tokens else values
                for index, piece in zip(group, pieces, strict=True):
                    answers[index] = piece.numpy()
        return answers


_NOTHING: Array = np.empty(0)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout; what was in training is so again, part by part."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _check_texts(texts: Sequence[str]) -> None:
    # Of a dict the names would be embedded, and a set has no order.
    if isinstance(texts, str | Mapping | Set) or not hasattr(texts, "__len__"):
        advice = "put the one text in a list" if isinstance(texts, str) else "give a list of strings"
        raise ValueError(f"embed takes a list of texts, and was given a {type(texts).__name__}; {advice}")
    if len(texts) == 0:
        raise ValueError("no texts: give at least one")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {index} is {text!r}, a {type(text).__name__}; embed takes strings")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {index} has half a character, {text[error.start]!r}, at {error.start}; read the text as UTF-8, "
                "or replace such halves (text.encode(errors='replace').decode())"
            ) from error


def _check_ids(ids: Ids, segments: Ids | None) -> None:
    if isinstance(ids, str) or (hasattr(ids, "__len__") and any(isinstance(each, str) for each in ids)):
        raise ValueError("this call takes token ids, one list a sequence; texts go to embed")
    count = len(lengths_of(ids))
    if segments is not None and len(segments) != count:
        raise ValueError(f"{len(segments)} lists of segments for {count} sequences; give one for each")


def _groups(ids: Ids, tokens: int) -> Iterator[list[int]]:
    """All sequences by length, in groups of at most so many tokens, or one that alone is longer."""
    group: list[int] = []
    count = 0
    for index in sorted(range(len(ids)), key=lambda each: len(ids[each])):
        if group and count + len(ids[index]) > tokens:
            yield group
            group, count = [], 0
        group.append(index)
        count += len(ids[index])
    yield group


DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def load(
    name: str | Path, *, dtype: torch.dtype | str = torch.float32, revision: str | None = None, verify: bool = True
) -> Model:
    """A model by its folder, preset or Hub name; architectures outside the family through the adapter.

    `dtype` is that of the weights, of torch or by name (`"bfloat16"`).
    `verify=False` takes an artifact as it is, though its files are not those that were hashed.
    """
    chosen = _read_dtype(dtype)
    artifact = read_artifact(find_folder(name, revision=revision), verify=verify)
    module = _read_module(artifact, chosen)
    # It is one of the heads, or described as everybody else does.
    embedding = module.head_config("embedding") or read_embedding_head(artifact)
    assert embedding is None or isinstance(embedding, EmbeddingHead)
    tokenizer = read_tokenizer(artifact)
    model = Model(module, tokenizer, embedding, artifact)
    if tokenizer is not None:
        require_fit(tokenizer, model.limits.vocab_size, artifact.folder)
    return model


def _read_dtype(dtype: object) -> torch.dtype:
    if isinstance(dtype, str):
        dtype = DTYPES.get(dtype, dtype)
    if not isinstance(dtype, torch.dtype) or dtype not in (*DTYPES.values(), torch.float64):
        raise ValueError(
            f"dtype is {dtype!r}; weights are of {', '.join(DTYPES)}: give one, by name or as torch has it"
        )
    return dtype


def _read_module(artifact: Artifact, dtype: torch.dtype) -> AnyNetwork:
    # An encoder that a family could express, such as that of an untied masked LM, has its heads beside it all the same.
    if not has_foreign_heads(artifact):
        with suppress(Inexpressible):
            return read_network(artifact, dtype=dtype)
    return read_foreign_network(artifact, dtype=dtype)
