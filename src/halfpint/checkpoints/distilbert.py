"""DistilBERT's checkpoints: no pooler, no token types, names of its own for everything."""

from __future__ import annotations

from typing import Any

from halfpint.checkpoints import bert
from halfpint.checkpoints.families import (
    ACTIVATION_NAMES,
    Family,
    Names,
    affine,
    read_activation,
    read_labels,
    read_problem,
    require,
    require_bert_shape,
    require_head_dropouts,
    write_labels,
)
from halfpint.checkpoints.values import (
    Values,
    read_count,
    read_pad_id,
    read_positive,
    read_share,
    require_divisible,
)
from halfpint.config import (
    ChoiceHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    SequenceHead,
    SpanHead,
    TokenHead,
)

NORM_EPS = 1e-12
"""Written into DistilBERT's code, not into its config."""

CLASSES = {
    "DistilBertModel": (),
    "DistilBertForMaskedLM": ("masked_lm",),
    "DistilBertForSequenceClassification": ("sequence",),
    "DistilBertForQuestionAnswering": ("span",),
    "DistilBertForTokenClassification": ("token",),
    "DistilBertForMultipleChoice": ("choice",),
}


def read_encoder(values: Values) -> EncoderConfig:
    require_divisible(values, "dim", "n_heads")
    return EncoderConfig.uniform(
        vocab_size=read_count(values, "vocab_size"),
        hidden_size=read_count(values, "dim"),
        num_layers=read_count(values, "n_layers"),
        num_heads=read_count(values, "n_heads"),
        ffn_size=read_count(values, "hidden_dim"),
        num_positions=read_count(values, "max_position_embeddings", 512),
        num_token_types=0,
        pad_id=read_pad_id(values, 0),
        activation=read_activation(values, "activation", "gelu"),
        norm_eps=NORM_EPS,
        pooler="none",
        dropout=read_share(values, "dropout", 0.1),
        attention_dropout=read_share(values, "attention_dropout", 0.1),
        initializer_range=read_positive(values, "initializer_range", 0.02),
    )


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    classifier_dropout = read_share(values, "seq_classif_dropout", 0.2)
    match kind:
        case "masked_lm":
            return MaskedLMHead(encoder.activation)
        case "sequence":
            return SequenceHead(read_labels(values), read_problem(values), "relu", classifier_dropout)
        case "choice":
            return ChoiceHead("relu", classifier_dropout)
        case "token":
            return TokenHead(read_labels(values), encoder.dropout)
    assert kind == "span", kind
    return SpanHead(dropout=read_share(values, "qa_dropout", 0.1))


def write_config(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    require_bert_shape(encoder)
    require(encoder.pooler == "none", "there is a pooler")
    require(encoder.num_token_types == 0, "there are token types")
    require(encoder.position_offset == 0, "the positions begin at an offset")
    require(encoder.norm_eps == NORM_EPS, f"DistilBERT's norms have an epsilon of {NORM_EPS}")
    return {
        "model_type": "distilbert",
        "vocab_size": encoder.vocab_size,
        "dim": encoder.hidden_size,
        "n_layers": encoder.num_layers,
        "n_heads": encoder.num_heads[0],
        "hidden_dim": encoder.ffn_size[0],
        "max_position_embeddings": encoder.num_positions,
        "pad_token_id": encoder.pad_id,
        "activation": ACTIVATION_NAMES[encoder.activation],
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "initializer_range": encoder.initializer_range,
        **_write_heads(config),
        **write_labels(config),
    }


def _write_heads(config: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for head in config.heads:
        match head:
            case MaskedLMHead():
                require(head.activation == config.encoder.activation, "the masked-LM head has another activation")
            case SequenceHead() | ChoiceHead():
                require(head.dense == "relu", f"the {head.kind} head has no dense layer with relu of its own")
                values["seq_classif_dropout"] = head.dropout
            case TokenHead():
                require(head.dropout == config.encoder.dropout, "the token head has a dropout of its own")
            case SpanHead():
                require_head_dropouts(ModelConfig(config.encoder, (head,)), dropout=head.dropout)
                values["qa_dropout"] = head.dropout
    return values


def encoder_names(encoder: EncoderConfig) -> Names:
    names = bert.embedding_names(encoder)
    for layer in range(encoder.num_layers):
        theirs = f"transformer.layer.{layer}"
        attention, ffn = f"attention.{layer}", f"ffn.{layer}.stack.0"
        parts = (f"{theirs}.attention.{part}" for part in ("q_lin", "k_lin", "v_lin"))
        names |= affine(f"{attention}.query_key_value", *parts)
        names |= affine(f"{attention}.output", f"{theirs}.attention.out_lin")
        names |= affine(f"{attention}.norm", f"{theirs}.sa_layer_norm")
        names |= affine(f"{ffn}.up", f"{theirs}.ffn.lin1")
        names |= affine(f"{ffn}.down", f"{theirs}.ffn.lin2")
        names |= affine(f"{ffn}.norm", f"{theirs}.output_layer_norm")
    return names


def head_names(head: HeadConfig, encoder: EncoderConfig) -> Names:
    match head.kind:
        case "masked_lm":
            return {
                **affine("transform", "vocab_transform"),
                **affine("norm", "vocab_layer_norm"),
                "bias": ("vocab_projector.bias",),
            }
        case "sequence" | "choice":
            return affine("dense", "pre_classifier") | affine("classifier", "classifier")
    return bert.head_names(head, encoder)


DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    classes=CLASSES,
    read_encoder=read_encoder,
    read_head=read_head,
    write_config=write_config,
    encoder_names=encoder_names,
    head_names=head_names,
    poolerless=frozenset({"masked_lm", "sequence", "token", "span", "choice"}),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
