"""All families, and the questions which of them can express a model, and by which heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halfpint.checkpoints.albert import ALBERT
from halfpint.checkpoints.bert import BERT
from halfpint.checkpoints.distilbert import DISTILBERT
from halfpint.checkpoints.families import PROBLEM_NAMES, Family, Inexpressible
from halfpint.checkpoints.mobilebert import MOBILEBERT
from halfpint.checkpoints.roberta import ROBERTA
from halfpint.config import (
    HEADS,
    ChoiceHead,
    ConfigError,
    Dense,
    EmbeddingHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    Problem,
    SequenceHead,
    SpanHead,
    TokenHead,
    reads_pooler,
)

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, ROBERTA, DISTILBERT, ALBERT, MOBILEBERT)}

OWN = "halfpint"
"""`model_type` of what no family expresses."""


@dataclass(frozen=True)
class Expression:
    """A model in the words of a family."""

    family: Family
    values: dict[str, Any]
    """config.json, class name included."""
    config: ModelConfig
    """What of the model the class has a place for: all of it, but for a pooler that nothing reads."""


def express(config: ModelConfig) -> Expression:
    """The first family that expresses a model, or `Inexpressible` with each family's reason."""
    reasons = []
    for family in FAMILIES.values():
        try:
            fitted = family.without_unread_pooler(config)
            values = family.write_config(fitted)
            values["architectures"] = [family.class_for(fitted)]
            return Expression(family, values, fitted)
        except Inexpressible as reason:
            reasons.append(f"{family.name}: {reason}")
    raise Inexpressible("; ".join(reasons))


def default_head(
    kind: str, encoder: EncoderConfig, labels: Sequence[str] = (), problem: Problem = "single_label"
) -> HeadConfig:
    """A new head as the encoder's family has it, so that `transformers` opens the model with it, too.

    An encoder without a family, or one that has lost its family's pooler, gets a head that it can carry: on
    the pooler where there is one, else with a dense layer of its own. `labels` and `problem` are for the
    heads that have some.
    """
    if kind not in HEADS:
        raise ConfigError(f"there is no head {kind!r}; it is one of {', '.join(HEADS)}")
    if kind in ("sequence", "token") and not labels:
        raise ConfigError(f"a {kind} head without labels; give at least one")
    head = _family_head(kind, encoder, labels, problem)
    if head is None or (reads_pooler(head) and encoder.pooler == "none"):
        return _own_head(kind, encoder, labels, problem)
    return head


def _family_head(kind: str, encoder: EncoderConfig, labels: Sequence[str], problem: Problem) -> HeadConfig | None:
    """The head that is read from a folder of the bare encoder; None where its family has no such head."""
    try:
        bare = express(ModelConfig(encoder))
    except Inexpressible:
        return None
    if not any(kind in kinds for kinds in bare.family.classes.values()):
        return None
    named = {"id2label": dict(enumerate(labels)), "problem_type": PROBLEM_NAMES[problem]}
    return bare.family.read_head(kind, {**bare.values, **named}, encoder)


def _own_head(kind: str, encoder: EncoderConfig, labels: Sequence[str], problem: Problem) -> HeadConfig:
    dense: Dense | None = "tanh" if encoder.pooler == "none" else None
    match kind:
        case "masked_lm":
            return MaskedLMHead(encoder.activation)
        case "order":
            if encoder.pooler == "none":
                raise ConfigError("an order head reads the pooler, and this encoder has none; give the encoder one")
            return OrderHead()
        case "sequence":
            return SequenceHead(tuple(labels), problem, dense, encoder.dropout)
        case "token":
            return TokenHead(tuple(labels), encoder.dropout)
        case "choice":
            return ChoiceHead(dense, encoder.dropout)
        case "span":
            return SpanHead()
    assert kind == "embedding", kind
    return EmbeddingHead()
