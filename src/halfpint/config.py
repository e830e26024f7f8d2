"""The shape of an encoder and of its heads: frozen, validated, and free of torch.

A family (BERT, ALBERT, MobileBERT …) is not a class here but a point of `EncoderConfig`.
What is notable:
- `Sharing` maps every logical layer to the physical attention block and FFN block that computes it.
  ALBERT, its ablations, layer groups and plain BERT are different maps, nothing else.
- Head counts and FFN widths belong to *physical* blocks, and the head size is given, so a pruned
  encoder is as ordinary as a fresh one.
- Every head is a small dataclass of its own; `ModelConfig` is an encoder and its heads.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

Activation = Literal["gelu", "gelu_tanh", "relu"]
Norm = Literal["layer_norm", "no_norm"]
Projection = Literal["none", "words", "sum"]
Problem = Literal["single_label", "multi_label", "regression"]
Pooling = Literal["mean", "cls"]
Pooler = Literal["none", "tanh", "first"]
Dense = Literal["tanh", "relu"]
Precision = Literal["fp32", "bf16"]
"""What is computed in: bf16 is autocast, over float32 weights."""

SHARING_NAMES = ("none", "attention", "ffn", "all")


class ConfigError(ValueError):
    """A configuration that cannot be built; the message says what was given and what is possible."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _check_types(config: Any, prefix: str = "") -> None:
    """Every field is of the type that its class says, whether it was given in Python or read from JSON."""
    for name, kind in _kinds(type(config)).items():
        _require_kind(prefix + name, getattr(config, name), kind)


def _kinds(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)}


def _require_kind(name: str, value: object, kind: Any) -> None:
    words = _words(kind)
    verb = "is" if words.startswith("one of") else "must be"
    _require(_is(value, kind), f"{name} is {reprlib.repr(value)}; it {verb} {words}")


def _is(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in parts
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(each, parts[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_WORDS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "a text", NoneType: "None"}


def _words(kind: Any) -> str:
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return ", or ".join(map(_words, parts))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(parts)}"
    if get_origin(kind) is tuple:
        return f"a list, each of it {_words(parts[0])}"
    return _WORDS.get(kind, f"{kind.__name__}(…)")


def _freeze(config: object, *names: str) -> None:
    """Lists are tuples too; what is no list is left to the check of types."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            object.__setattr__(config, name, tuple(value))


def _require_share(name: str, value: float) -> None:
    _require(0 <= value < 1, f"{name} is {value}; it must be in [0, 1)")


@dataclass(frozen=True)
class Sharing:
    """Logical layer → physical attention block, and logical layer → physical FFN block."""

    attention: tuple[int, ...]
    ffn: tuple[int, ...]

    def __post_init__(self) -> None:
        _freeze(self, "attention", "ffn")
        _check_types(self, "sharing.")
        _require(len(self.attention) > 0, "an encoder needs at least one layer")
        _require(
            len(self.attention) == len(self.ffn),
            f"sharing maps {len(self.attention)} layers to attention blocks and {len(self.ffn)} to FFN "
            "blocks; both tuples need one entry a layer",
        )
        for part, blocks in (("attention", self.attention), ("ffn", self.ffn)):
            _require(
                min(blocks) == 0 and max(blocks) == len(set(blocks)) - 1,
                f"sharing.{part} is {reprlib.repr(blocks)}: its blocks must be numbered 0, 1, 2 … without a gap",
            )

    @classmethod
    def named(cls, name: str, num_layers: int) -> Sharing:
        """One of ALBERT's strategies: `none`, `attention`, `ffn` or `all` (what is *shared*)."""
        _require(name in SHARING_NAMES, f"unknown sharing {name!r}; it is one of {', '.join(SHARING_NAMES)}, or a map")
        _require_kind("num_layers", num_layers, int)
        _require(num_layers > 0, f"num_layers is {num_layers}; an encoder needs at least one layer")
        own, shared = tuple(range(num_layers)), (0,) * num_layers
        return cls(
            attention=shared if name in ("attention", "all") else own,
            ffn=shared if name in ("ffn", "all") else own,
        )

    @classmethod
    def groups(cls, num_layers: int, num_groups: int) -> Sharing:
        """Consecutive layers share both blocks within each of `num_groups` groups, as ALBERT's do."""
        _require_kind("num_layers", num_layers, int)
        _require_kind("num_groups", num_groups, int)
        _require(
            0 < num_groups <= num_layers, f"{num_layers} layers cannot form {num_groups} groups; use 1 to {num_layers}"
        )
        blocks = tuple(layer * num_groups // num_layers for layer in range(num_layers))
        return cls(attention=blocks, ffn=blocks)

    @property
    def num_layers(self) -> int:
        return len(self.attention)

    @property
    def num_attention_blocks(self) -> int:
        return max(self.attention) + 1

    @property
    def num_ffn_blocks(self) -> int:
        return max(self.ffn) + 1


@dataclass(frozen=True)
class EncoderConfig:
    """Everything that decides an encoder's tensors and its arithmetic."""

    vocab_size: int
    hidden_size: int
    """Width of the states between layers."""
    sharing: Sharing
    num_heads: tuple[int, ...]
    """Attention heads of each physical attention block."""
    head_size: int
    ffn_size: tuple[int, ...]
    """Inner width of each physical FFN block."""
    embedding_size: int
    """Width E of the word embeddings."""
    embedding_projection: Projection = "none"
    """From E to the hidden size: of the sum of all embeddings (ALBERT), or of the words only (MobileBERT)."""
    trigram: bool = False
    """MobileBERT: a word is embedded with its two neighbours, side by side."""
    num_positions: int = 512
    """The longest sequence."""
    position_offset: int = 0
    """Rows of the position table before position 0 (RoBERTa: 2)."""
    num_token_types: int = 2
    pad_id: int = 0
    activation: Activation = "gelu"
    norm: Norm = "layer_norm"
    norm_eps: float = 1e-12
    outer_norm_eps: float | None = None
    """Epsilon of the embedding norm and of the norm after a block's last FFN, where it differs."""
    bottleneck_size: int | None = None
    """MobileBERT: the width inside a block, when it is narrower than the hidden size."""
    shared_query_key: bool = False
    """MobileBERT: queries and keys read a bottleneck of their own, values read the full width."""
    num_ffns: int = 1
    """FFNs stacked in one block."""
    pooler: Pooler = "tanh"
    """The first token through a dense layer with tanh, the first token as it is (MobileBERT's weights), or none."""
    dropout: float = 0.1
    attention_dropout: float = 0.0
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        _freeze(self, "num_heads", "ffn_size")
        _check_types(self)
        self._check_sizes()
        self._check_blocks()
        self._check_embeddings()

    def _check_sizes(self) -> None:
        positive = ("vocab_size", "hidden_size", "head_size", "embedding_size", "num_positions", "num_ffns")
        for name in positive:
            _require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("position_offset", "num_token_types", "pad_id"):
            _require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it cannot be negative")
        _require(self.pad_id < self.vocab_size, f"pad_id is {self.pad_id}, outside the vocabulary of {self.vocab_size}")
        for name in ("norm_eps", "outer_norm_eps", "bottleneck_size", "initializer_range"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} is {value}; it must be positive")
        for name in ("dropout", "attention_dropout"):
            _require_share(name, getattr(self, name))

    def _check_blocks(self) -> None:
        for name, num_blocks in (
            ("num_heads", self.sharing.num_attention_blocks),
            ("ffn_size", self.sharing.num_ffn_blocks),
        ):
            values = getattr(self, name)
            _require(
                len(values) == num_blocks,
                f"{name} has {len(values)} entries, but sharing names {num_blocks} physical blocks",
            )
            _require(all(value > 0 for value in values), f"{name} is {values}; every block needs at least one")
        _require(
            not self.shared_query_key or self.bottleneck_size is not None,
            "shared_query_key needs a bottleneck_size",
        )

    def _check_embeddings(self) -> None:
        if self.embedding_projection == "none":
            _require(
                self.embedding_size == self.hidden_size and not self.trigram,
                f"embedding_size {self.embedding_size}{' with trigrams' if self.trigram else ''} and hidden_size "
                f"{self.hidden_size} need an embedding_projection: 'sum' (ALBERT) or 'words' (MobileBERT)",
            )
        _require(
            not self.trigram or self.embedding_projection == "words",
            "trigram embeddings need embedding_projection='words'",
        )

    @classmethod
    def uniform(
        cls,
        *,
        num_layers: int,
        num_heads: int,
        ffn_size: int,
        hidden_size: int,
        sharing: str | Sharing = "none",
        head_size: int | None = None,
        embedding_size: int | None = None,
        **fields: Any,
    ) -> EncoderConfig:
        """The config in which all blocks look alike, as every published family has it."""
        bottleneck_size = fields.get("bottleneck_size")
        counts = {"num_layers": num_layers, "num_heads": num_heads, "ffn_size": ffn_size, "hidden_size": hidden_size}
        for name, value in counts.items():
            _require_kind(name, value, int)
        _require_kind("bottleneck_size", bottleneck_size, int | None)
        if isinstance(sharing, str):
            sharing = Sharing.named(sharing, num_layers)
        _require_kind("sharing", sharing, Sharing)
        _require(
            sharing.num_layers == num_layers,
            f"sharing maps {sharing.num_layers} layers, but num_layers is {num_layers}",
        )
        if head_size is None:
            width = bottleneck_size or hidden_size
            _require(
                num_heads > 0 and width % num_heads == 0,
                f"a width of {width} does not divide into {num_heads} heads; give head_size",
            )
            head_size = width // num_heads
        built: EncoderConfig = _build(
            cls,
            {
                "hidden_size": hidden_size,
                "sharing": sharing,
                "num_heads": (num_heads,) * sharing.num_attention_blocks,
                "head_size": head_size,
                "ffn_size": (ffn_size,) * sharing.num_ffn_blocks,
                "embedding_size": hidden_size if embedding_size is None else embedding_size,
                **fields,
            },
        )
        return built

    @property
    def num_layers(self) -> int:
        return self.sharing.num_layers

    @property
    def block_size(self) -> int:
        """Width of the states inside a block."""
        return self.bottleneck_size or self.hidden_size

    @property
    def closing_norm_eps(self) -> float:
        return self.norm_eps if self.outer_norm_eps is None else self.outer_norm_eps

    def replace(self, **changes: Any) -> EncoderConfig:
        _require_known(type(self), changes)
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class MaskedLMHead:
    """Predicts words: a transform to width E, a norm, and the word embeddings as the decoder."""

    kind: ClassVar[str] = "masked_lm"
    activation: Activation = "gelu"

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True)
class OrderHead:
    """Two classes: next sentence (NSP) or sentence order (SOP); three: StructBERT's order."""

    kind: ClassVar[str] = "order"
    num_classes: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self.num_classes in (2, 3), f"an order head has 2 or 3 classes, not {self.num_classes}")
        _require_share("dropout", self.dropout)


@dataclass(frozen=True)
class SequenceHead:
    """One answer a sequence: a class, several labels, or numbers."""

    kind: ClassVar[str] = "sequence"
    labels: tuple[str, ...]
    problem: Problem = "single_label"
    dense: Dense | None = None
    """A dense layer of the head's own on the first token (RoBERTa, DistilBERT) instead of the pooler."""
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _freeze(self, "labels")
        _check_types(self)
        _require(len(self.labels) > 0, "a sequence head needs at least one label")
        _require_share("dropout", self.dropout)


@dataclass(frozen=True)
class TokenHead:
    """One label a token."""

    kind: ClassVar[str] = "token"
    labels: tuple[str, ...]
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _freeze(self, "labels")
        _check_types(self)
        _require(len(self.labels) > 0, "a token head needs at least one label")
        _require_share("dropout", self.dropout)


@dataclass(frozen=True)
class SpanHead:
    """Start and end of an answer; with `no_answer`, one more score that there is none."""

    kind: ClassVar[str] = "span"
    no_answer: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check_types(self)
        _require_share("dropout", self.dropout)


@dataclass(frozen=True)
class ChoiceHead:
    """One score a sequence; the sequences of a row are its options."""

    kind: ClassVar[str] = "choice"
    dense: Dense | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _check_types(self)
        _require_share("dropout", self.dropout)


@dataclass(frozen=True)
class EmbeddingHead:
    """One vector a sequence. It has no weights."""

    kind: ClassVar[str] = "embedding"
    pooling: Pooling = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        _check_types(self)


HeadConfig = MaskedLMHead | OrderHead | SequenceHead | TokenHead | SpanHead | ChoiceHead | EmbeddingHead
HEADS: dict[str, type] = {head.kind: head for head in get_args(HeadConfig)}
TOKEN_HEADS = ("masked_lm", "token", "span")
"""Kinds that answer for every token."""


@dataclass(frozen=True)
class ModelConfig:
    """An encoder and the heads on it, at most one of each kind."""

    encoder: EncoderConfig
    heads: tuple[HeadConfig, ...] = field(default=())

    def __post_init__(self) -> None:
        _freeze(self, "heads")
        _check_types(self)
        kinds = [head.kind for head in self.heads]
        _require(len(set(kinds)) == len(kinds), f"a model has at most one head of a kind, not {', '.join(kinds)}")
        _require(
            self.head("masked_lm") is None
            or self.encoder.embedding_projection != "words"
            or self.encoder.embedding_size <= self.encoder.hidden_size,
            f"a masked-LM head cannot decode from width {self.encoder.hidden_size} with word embeddings of "
            f"{self.encoder.embedding_size}; make the embeddings no wider than the hidden size",
        )
        for head in self.heads:
            _require(
                not reads_pooler(head) or self.encoder.pooler != "none",
                f"the {head.kind} head reads the pooler, and this encoder has none; "
                "give the head a dense layer of its own or the encoder a pooler",
            )

    def head(self, kind: str) -> HeadConfig | None:
        return next((head for head in self.heads if head.kind == kind), None)


def reads_pooler(head: HeadConfig) -> bool:
    """Whether a head works on the encoder's pooled first token."""
    return isinstance(head, OrderHead) or (isinstance(head, SequenceHead | ChoiceHead) and head.dense is None)


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """Plain values, as they stand in Halfpint's own `config.json`."""
    return {
        "encoder": dataclasses.asdict(config.encoder),
        "heads": [head_to_dict(head) for head in config.heads],
    }


def head_to_dict(head: HeadConfig) -> dict[str, Any]:
    return {"kind": head.kind, **dataclasses.asdict(head)}


def from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """The reverse of `to_dict`; every unknown or missing field is named."""
    try:
        encoder = dict(values["encoder"])
        sharing = dict(encoder.pop("sharing"))
        heads = [dict(head) for head in values.get("heads", ())]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not a Halfpint config: {error!r} is missing or malformed") from error
    return ModelConfig(
        encoder=_build(EncoderConfig, {**encoder, "sharing": _build(Sharing, sharing)}),
        heads=tuple(head_from_dict(head) for head in heads),
    )


def head_from_dict(values: Mapping[str, Any]) -> HeadConfig:
    """The reverse of `head_to_dict`."""
    kind = values.get("kind")
    _require(isinstance(kind, str) and kind in HEADS, f"unknown head {kind!r}; it is one of {', '.join(HEADS)}")
    head: HeadConfig = _build(HEADS[str(kind)], {name: value for name, value in values.items() if name != "kind"})
    return head


def _build(cls: type, values: Mapping[str, Any]) -> Any:
    _require_known(cls, values)
    missing = [item.name for item in dataclasses.fields(cls) if item.name not in values and _has_no_default(item)]
    _require(not missing, f"{cls.__name__} needs {', '.join(missing)}")
    return cls(**values)


def _require_known(cls: type, names: Iterable[str]) -> None:
    known = [item.name for item in dataclasses.fields(cls)]
    unknown = sorted(set(names) - set(known))
    _require(not unknown, f"{cls.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(known)}")


def _has_no_default(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
