"""What a family's checkpoints look like: the contract that each family's file fills in.

Read from and written for `transformers`: its config values, its class names, its tensor names. A name map
says for each of our tensors which of theirs it is made of, stacked along the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from halfpint.checkpoints.values import Values, misfit, read_count, read_text
from halfpint.config import (
    Activation,
    ChoiceHead,
    ConfigError,
    EncoderConfig,
    HeadConfig,
    ModelConfig,
    OrderHead,
    Problem,
    SequenceHead,
    SpanHead,
    TokenHead,
    reads_pooler,
)

Names = dict[str, tuple[str, ...]]

TRANSPOSED = frozenset({"heads.masked_lm.extra.weight"})
"""Tensors that lie the other way round in `transformers`."""

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ACTIVATION_NAMES: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
PROBLEM_NAMES: dict[Problem, str] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


class Inexpressible(ValueError):
    """A config that this family (written) or this encoder (read) has no place for.

    What is read is left to `transformers` then.
    """


@dataclass(frozen=True)
class Family:
    """One family of checkpoints."""

    name: str
    """`model_type` in config.json."""
    prefix: str
    """Of the encoder's tensors inside a class with a head."""
    classes: Mapping[str, tuple[str, ...]]
    """`transformers` class → the kinds of its heads."""
    read_encoder: Callable[[Values], EncoderConfig]
    read_head: Callable[[str, Values, EncoderConfig], HeadConfig]
    write_config: Callable[[ModelConfig], dict[str, Any]]
    """The config values of the family; raises `Inexpressible` with the reason."""
    encoder_names: Callable[[EncoderConfig], Names]
    head_names: Callable[[HeadConfig, EncoderConfig], Names]
    poolerless: frozenset[str]
    """Kinds of heads whose class builds no pooler."""
    tied: Mapping[str, str]
    """Their tensors that repeat another of theirs."""

    def names(self, config: ModelConfig) -> Names:
        """Every tensor of a model → their names, as a class with heads stores them."""
        prefix = self.prefix if any(head.kind != "embedding" for head in config.heads) else ""
        names = {
            f"encoder.{ours}": tuple(prefix + name for name in theirs)
            for ours, theirs in self.encoder_names(config.encoder).items()
        }
        for head in config.heads:
            for ours, theirs in self.head_names(head, config.encoder).items():
                names[f"heads.{head.kind}.{ours}"] = theirs
        return names

    def class_for(self, config: ModelConfig) -> str:
        """The class that has exactly these heads."""
        kinds = _kinds(config)
        for name, heads in self.classes.items():
            if tuple(sorted(heads)) == kinds:
                return name
        raise Inexpressible(f"{self.name} has no class with the heads {', '.join(kinds)}")

    def without_unread_pooler(self, config: ModelConfig) -> ModelConfig:
        """The model as its class builds it: a pooler that the class lacks and no head reads is left out."""
        read = any(reads_pooler(head) for head in config.heads)
        if config.encoder.pooler != "tanh" or read or self.builds_pooler(_kinds(config)):
            return config
        return ModelConfig(config.encoder.replace(pooler="none"), config.heads)

    def lacks_pooler(self, config: ModelConfig) -> bool:
        """Whether the class has a pooler's tensors and the model none: a bare encoder may, and nothing reads them."""
        pooled = self.encoder_names(config.encoder.replace(pooler="tanh"))
        return config.encoder.pooler == "none" and "pooler.weight" in pooled and self.builds_pooler(_kinds(config))

    def builds_pooler(self, kinds: tuple[str, ...]) -> bool:
        """Whether the class with these heads has a pooler; two heads are those of pretraining."""
        return not self.poolerless.intersection(kinds) or len(kinds) > 1


def _kinds(config: ModelConfig) -> tuple[str, ...]:
    """The heads that have weights."""
    return tuple(sorted(head.kind for head in config.heads if head.kind != "embedding"))


def require_values(values: Values, expected: Values) -> None:
    """Leave a foreign config whose settings this encoder does not have to `transformers`."""
    for name, wanted in expected.items():
        if values.get(name, wanted) != wanted:
            raise Inexpressible(f"{name} is {values[name]!r}; Halfpint's own encoder has {wanted!r}")


def read_activation(values: Values, name: str, default: str) -> Activation:
    activation = read_text(values, name, default)
    if activation not in ACTIVATIONS:
        raise Inexpressible(f"{name} is {activation!r}, none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def read_labels(values: Values) -> tuple[str, ...]:
    given = values.get("id2label")
    if not given:
        return tuple(f"LABEL_{index}" for index in range(read_count(values, "num_labels", 2)))
    if not isinstance(given, Mapping) or not all(str(index).isdecimal() for index in given):
        raise misfit("id2label", given, 'labels by their number: {"0": …, "1": …}')
    names = {int(index): str(label) for index, label in given.items()}
    if sorted(names) != list(range(len(names))):
        raise ConfigError(f"id2label numbers its labels {sorted(names)}; they must be 0, 1, 2 …")
    return tuple(names[index] for index in range(len(names)))


def read_problem(values: Values) -> Problem:
    named = {name: problem for problem, name in PROBLEM_NAMES.items()}
    given = values.get("problem_type")
    if given is None:
        return "regression" if len(read_labels(values)) == 1 else "single_label"
    if not isinstance(given, str) or given not in named:
        raise misfit("problem_type", given, f"one of {', '.join(named)}, or null")
    return named[given]


def read_common_head(kind: str, values: Values, dropout: float) -> HeadConfig:
    """The heads that all families build alike, with the family's classifier dropout."""
    if kind == "order":
        return OrderHead()
    if kind == "sequence":
        return SequenceHead(read_labels(values), read_problem(values), dropout=dropout)
    if kind == "token":
        return TokenHead(read_labels(values), dropout=dropout)
    if kind == "span":
        return SpanHead()
    assert kind == "choice", kind
    return ChoiceHead(dropout=dropout)


def write_labels(config: ModelConfig) -> dict[str, Any]:
    """`id2label` and what goes with it, from the head that has labels."""
    for head in config.heads:
        if isinstance(head, SequenceHead | TokenHead):
            labels: dict[str, Any] = {
                "id2label": {str(index): label for index, label in enumerate(head.labels)},
                "label2id": {label: index for index, label in enumerate(head.labels)},
            }
            if isinstance(head, SequenceHead):
                labels["problem_type"] = PROBLEM_NAMES[head.problem]
            return labels
    return {}


def require(expressible: bool, reason: str) -> None:
    if not expressible:
        raise Inexpressible(reason)


def require_uniform(encoder: EncoderConfig) -> None:
    """What every published family takes for granted: blocks alike, heads that fill the width."""
    require(len(set(encoder.num_heads)) == 1, f"head counts differ between blocks: {encoder.num_heads}")
    require(len(set(encoder.ffn_size)) == 1, f"FFN widths differ between blocks: {encoder.ffn_size}")
    require(
        encoder.num_heads[0] * encoder.head_size == encoder.block_size,
        f"{encoder.num_heads[0]} heads of {encoder.head_size} do not make up the width {encoder.block_size}",
    )


def require_bert_shape(encoder: EncoderConfig) -> None:
    """BERT's layers, with nothing shared, factorized or narrowed."""
    require_uniform(encoder)
    layers = tuple(range(encoder.num_layers))
    require(
        encoder.sharing.attention == layers and encoder.sharing.ffn == layers,
        "layers share blocks, and only ALBERT's classes can, both blocks alike",
    )
    require(encoder.embedding_projection == "none", "the embeddings are factorized")
    require_plain_blocks(encoder)


def require_plain_blocks(encoder: EncoderConfig) -> None:
    require(encoder.norm == "layer_norm", "the norms are MobileBERT's")
    require(encoder.closing_norm_eps == encoder.norm_eps, "two norms have an epsilon of their own")
    require(encoder.bottleneck_size is None, "the blocks have bottlenecks")
    require(encoder.num_ffns == 1, "the blocks stack several FFNs")
    require(encoder.pooler != "first", "the pooler is the bare first token")


def require_head_dropouts(config: ModelConfig, dropout: float) -> None:
    """Only classifiers have a dropout that `transformers` can be told."""
    for head in config.heads:
        if isinstance(head, OrderHead | SpanHead):
            require(head.dropout == dropout, f"the {head.kind} head has a dropout of {head.dropout}")
        if isinstance(head, OrderHead):
            require(head.num_classes == 2, "the order head has three classes")
        if isinstance(head, SpanHead):
            require(not head.no_answer, "the span head scores 'no answer'")


def affine(ours: str, *theirs: str) -> Names:
    """Weight and bias of a layer, ours and theirs."""
    return {f"{ours}.{part}": tuple(f"{name}.{part}" for name in theirs) for part in ("weight", "bias")}
