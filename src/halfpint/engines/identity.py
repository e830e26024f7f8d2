"""What a model is, as a hash: two that have the same answer the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from halfpint.artifact import ArtifactError
from halfpint.config import to_dict
from halfpint.engines.model import Model
from halfpint.model.linear import Linear


def hash_model(model: Model) -> str:
    """Of weights, config, tokenizer, pooling and task, as they are in memory, wherever they were loaded from."""
    task = model.task
    facts = {
        "kind": type(model.module).__name__,
        "config": _config_of(model),
        "tokenizer": model.tokenizer.to_json() if model.tokenizer else None,
        "embedding": asdict(model.embedding),
        "task": task.to_dict() if task else None,
        "lengths": [model.task_length, model.max_length],
    }
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=16)
    for part in _weights(model):
        digest.update(part)
    return digest.hexdigest()


def _config_of(model: Model) -> Any:
    if model.config is not None:
        return to_dict(model.config)
    config: Any = getattr(model.encoder, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else {}
    # Where it was loaded from says nothing of what it is.
    return {name: value for name, value in values.items() if name not in ("_name_or_path", "transformers_version")}


def _weights(model: Model) -> Iterator[bytes | memoryview]:
    if any(isinstance(part, Linear) and part.packed is not None for part in model.module.modules()):
        yield from _packed(model)
        return
    for name, tensor in sorted(model.module.state_dict().items()):
        yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
        yield memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _packed(model: Model) -> Iterator[bytes]:
    """Weights in oneDNN's layout cannot be read again: their files can."""
    if model.source is None:
        raise ArtifactError("this model is packed and was not loaded from a folder; load it, and pack it then")
    yield f"packed {next(model.module.parameters()).dtype}".encode()
    for path in model.source.weight_files():
        with path.open("rb") as file:
            yield hashlib.file_digest(file, "blake2b").digest()
