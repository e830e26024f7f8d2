"""A network to a folder that `transformers` opens with the same class, or to Halfpint's own format.

Which of the two, and why, is returned: a model that no family expresses (pruned, attention-shared …) is
written under our own tensor names with `model_type: halfpint`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from halfpint.checkpoints.families import TRANSPOSED, Inexpressible, Names
from halfpint.checkpoints.registry import OWN, express
from halfpint.checkpoints.sentence import write_embedding_head
from halfpint.config import EmbeddingHead, ModelConfig, to_dict
from halfpint.model.network import Network

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Written:
    """How a network was written."""

    format: str
    """A family's name, or `halfpint`."""
    reason: str | None
    """Why no family could express it."""
    dropped: tuple[str, ...] = ()
    """What was left out: a pooler that the class has no place for and no head reads."""
    missing: tuple[str, ...] = ()
    """What the class has and the model lacks: a pooler, random when `transformers` opens it, that no head reads."""


def write_network(network: Network, folder: Path, *, dtype: torch.dtype | None = None) -> Written:
    """Write config.json, model.safetensors and what an embedding head needs into a folder that exists."""
    config = network.config
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    dtype = dtype or next(iter(state.values())).dtype
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    try:
        expression = express(config)
    except Inexpressible as reason:
        written = Written(OWN, str(reason))
        values: dict[str, Any] = {"model_type": OWN, "architectures": ["Halfpint"], **to_dict(config)}
        tensors = state
    else:
        family = expression.family
        dropped = ("pooler",) if expression.config.encoder.pooler != config.encoder.pooler else ()
        missing = ("pooler",) if family.lacks_pooler(expression.config) else ()
        written = Written(family.name, None, dropped, missing)
        values = expression.values
        tensors = _in_their_names(state, family.names(expression.config))
    _write_config(folder, {**values, "dtype": _DTYPES[dtype]})
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    _write_pooling(folder, config, written)
    return written


def _in_their_names(state: dict[str, Tensor], names: Names) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for ours, theirs in names.items():
        tensor = state[ours].t() if ours in TRANSPOSED else state[ours]
        for name, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            # A copy, so that no two names of the file share storage.
            tensors[name] = part.clone(memory_format=torch.contiguous_format)
    return tensors


def _write_config(folder: Path, values: dict[str, Any]) -> None:
    text = json.dumps(values, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _write_pooling(folder: Path, config: ModelConfig, written: Written) -> None:
    """An own-format model keeps its pooling in config.json; others say it as sentence-transformers does."""
    head = config.head("embedding")
    if isinstance(head, EmbeddingHead) and written.format != OWN:
        write_embedding_head(folder, head, config.encoder)
