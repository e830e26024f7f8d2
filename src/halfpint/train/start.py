"""What a training run starts from: a model with its weights, or a shape with random ones and a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import pyarrow as pa

from halfpint.artifact import ArtifactError
from halfpint.checkpoints.foreign_network import AnyNetwork, ForeignNetwork, foreign_head
from halfpint.checkpoints.hub import WeightsUnavailable, local_folder
from halfpint.checkpoints.registry import default_head
from halfpint.config import EmbeddingHead, EncoderConfig, HeadConfig, ModelConfig
from halfpint.data.pipelines import Kind
from halfpint.data.task import Task
from halfpint.data.train_tokenizer import train_tokenizer
from halfpint.engines.model import Model, load
from halfpint.model.network import Network
from halfpint.presets import find_preset
from halfpint.train.recipe import changed_encoder
from halfpint.train.settings import SettingsError

SCRATCH_VOCABULARY = 8000
"""Of a tokenizer that is trained on the rows of a task."""


def start_model(
    model: str | PathLike[str] | Model, table: pa.Table, task: Task, *, from_scratch: bool
) -> tuple[Model, str]:
    """The model, and its name for the card."""
    if isinstance(model, Model):
        if from_scratch:
            raise ArtifactError("from_scratch starts from a preset's shape, and a loaded model was given")
        return _with_tokenizer(model, "the model"), str(model.source.folder) if model.source else "a loaded model"
    if not from_scratch:
        return _with_tokenizer(_load(model), str(model)), str(model)
    preset = None if local_folder(Path(model)) else find_preset(str(model))
    if preset is None:
        raise ArtifactError(f"--from-scratch takes the shape of a preset, and {model} is none; see: halfpint profile")
    kind = _tokenizer_kind(preset.config)
    tokenizer = train_tokenizer(_texts(table, task), kind, vocab_size=min(SCRATCH_VOCABULARY, preset.config.vocab_size))
    pad = tokenizer.backend.token_to_id("<pad>" if kind != "wordpiece" else "[PAD]")
    config = preset.config.replace(vocab_size=tokenizer.size, pad_id=pad)
    return Model(Network(ModelConfig(config)), tokenizer, None), preset.name


def _load(model: str | PathLike[str]) -> Model:
    try:
        return load(Path(model) if isinstance(model, PathLike) else model)
    except WeightsUnavailable as error:
        raise WeightsUnavailable(f"{error}; or start from random weights: --from-scratch") from error


def _with_tokenizer(model: Model, name: str) -> Model:
    if model.tokenizer is None:
        raise ArtifactError(f"{name} has no tokenizer.json, so it cannot read texts; put its tokenizer beside it")
    return model


def _tokenizer_kind(config: EncoderConfig) -> Kind:
    """As the families have it: ALBERT's is Unigram, RoBERTa's is byte-level BPE."""
    if config.embedding_projection == "sum":
        return "unigram"
    return "bpe" if config.position_offset else "wordpiece"


def _texts(table: pa.Table, task: Task) -> list[str]:
    """All texts that the task reads, words and options joined."""
    names = (task.columns.text, task.columns.pair)
    return [_joined(value) for name in names if name is not None for value in table[name].to_pylist()]


def _joined(value: object) -> str:
    return " ".join(map(_joined, value)) if isinstance(value, list) else str(value)


def head_for(task: Task, network: AnyNetwork) -> HeadConfig:
    """The head that answers the task, as the encoder's family has it."""
    if isinstance(network, ForeignNetwork):
        return foreign_head(task.head, network.encoder, task.labels, task.problem)
    if task.head == "embedding":
        return network.config.head("embedding") or EmbeddingHead()
    return default_head(task.head, network.config.encoder, task.labels, task.problem)


def with_dropouts(network: AnyNetwork, changes: Mapping[str, float]) -> tuple[AnyNetwork, str | None]:
    """The network as it trains, and what there is to say about it."""
    if isinstance(network, ForeignNetwork):
        if changes:
            raise SettingsError(
                f"{network.encoder.name} runs through the transformers adapter, where {', '.join(changes)} cannot be "
                "set; change its config.json"
            )
        return network, None
    before = network.config.encoder
    encoder = changed_encoder(before, changes)
    dropped = before.attention_dropout > 0 and encoder.attention_dropout == 0
    note = "attention dropout is 0 in training (--set attention_dropout=0.1 takes the exact, slower path)"
    return network.with_config(ModelConfig(encoder, network.config.heads)), note if dropped else None
