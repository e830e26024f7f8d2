"""Tiny random `transformers` models of every family and head, and what they answer, one text at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import Tensor

from halfpint.checkpoints.families import Family
from halfpint.checkpoints.registry import FAMILIES

SMALL: dict[str, dict[str, Any]] = {
    "bert": {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
             "intermediate_size": 20, "max_position_embeddings": 18},
    "roberta": {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": 28, "max_position_embeddings": 20, "type_vocab_size": 1},
    "distilbert": {"vocab_size": 40, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 20,
                   "max_position_embeddings": 18},
    "albert": {"vocab_size": 40, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 4,
               "num_attention_heads": 2, "intermediate_size": 20, "max_position_embeddings": 18},
    "mobilebert": {"vocab_size": 40, "embedding_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
                   "num_attention_heads": 2, "intermediate_size": 20, "intra_bottleneck_size": 12,
                   "max_position_embeddings": 18, "num_feedforward_networks": 3},
}  # fmt: skip

# (family, class): every class that Halfpint knows.
CLASSES = [(family.name, name) for family in FAMILIES.values() for name in family.classes]

HEAD_OUTPUTS = {"masked_lm": "logits", "order": "logits", "sequence": "logits", "token": "logits", "choice": "logits"}


def make_foreign(family: str, class_name: str, **changes: Any) -> Any:
    """A random model in eval mode; biases and norms are random too, so that nothing hides behind a zero."""
    values = {**SMALL[family], "pad_token_id": 1 if family == "roberta" else 0, **changes}
    if "SequenceClassification" in class_name or "TokenClassification" in class_name:
        values.setdefault("num_labels", 5)
    config = getattr(transformers, type(transformers.AutoConfig.for_model(family)).__name__)(**values)
    model = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.tie_weights()
    return model.eval()


def foreign_answers(
    family: Family, class_name: str, model: Any, ids: list[int], segments: list[int]
) -> dict[str, Tensor]:
    """Every head's answer for one text, in our shapes."""
    inputs = {"input_ids": torch.tensor([ids])}
    if family.name != "distilbert":
        inputs["token_type_ids"] = torch.tensor([segments])
    kinds = family.classes[class_name]
    if kinds == ("choice",):
        inputs = {name: value[:, None] for name, value in inputs.items()}
    out = model(**inputs)
    if not kinds:
        return {"hidden": out.last_hidden_state[0]}
    if kinds == ("masked_lm", "order"):
        order = out.sop_logits if family.name == "albert" else out.seq_relationship_logits
        return {"masked_lm": out.prediction_logits[0], "order": order}
    if kinds == ("span",):
        return {"span": torch.stack([out.start_logits[0], out.end_logits[0]], dim=1)}
    if kinds == ("choice",):
        return {"choice": out.logits[:, 0]}
    per_token = kinds[0] in ("masked_lm", "token")
    return {kinds[0]: out.logits[0] if per_token else out.logits}


def save_foreign(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder
