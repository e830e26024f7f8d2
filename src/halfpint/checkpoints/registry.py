"""All families, and the question which of them can express a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfpint.checkpoints.albert import ALBERT
from halfpint.checkpoints.bert import BERT
from halfpint.checkpoints.distilbert import DISTILBERT
from halfpint.checkpoints.families import Family, Inexpressible
from halfpint.checkpoints.mobilebert import MOBILEBERT
from halfpint.checkpoints.roberta import ROBERTA
from halfpint.config import ModelConfig

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, ROBERTA, DISTILBERT, ALBERT, MOBILEBERT)}

OWN = "halfpint"
"""`model_type` of what no family expresses."""


@dataclass(frozen=True)
class Expression:
    """A model in the words of a family."""

    family: Family
    values: dict[str, Any]
    """config.json, class name included."""


def express(config: ModelConfig) -> Expression:
    """The first family that expresses a model, or `Inexpressible` with each family's reason."""
    reasons = []
    for family in FAMILIES.values():
        try:
            values = family.write_config(config)
            values["architectures"] = [family.class_for(config)]
            return Expression(family, values)
        except Inexpressible as reason:
            reasons.append(f"{family.name}: {reason}")
    raise Inexpressible("; ".join(reasons))
