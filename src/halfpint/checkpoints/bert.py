"""BERT's checkpoints; TinyBERT's and MiniLM's are BERT's."""

from __future__ import annotations

from typing import Any

from halfpint.checkpoints.families import (
    ACTIVATION_NAMES,
    Family,
    Names,
    affine,
    read_activation,
    read_common_head,
    require,
    require_bert_shape,
    require_head_dropouts,
    require_values,
    write_labels,
)
from halfpint.checkpoints.values import (
    Values,
    read_count,
    read_optional_share,
    read_pad_id,
    read_positive,
    read_share,
    require_absolute_positions,
    require_divisible,
)
from halfpint.config import (
    ChoiceHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    SequenceHead,
    TokenHead,
)

NO_DECODER = {"is_decoder": False, "add_cross_attention": False}

CLASSES = {
    "BertModel": (),
    "BertForPreTraining": ("masked_lm", "order"),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("order",),
    "BertForSequenceClassification": ("sequence",),
    "BertForMultipleChoice": ("choice",),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
}


def read_encoder(values: Values) -> EncoderConfig:
    require_absolute_positions(values)
    require_values(values, NO_DECODER)
    return EncoderConfig.uniform(**read_sizes(values))


def read_sizes(values: Values, *, width: str = "hidden_size") -> dict[str, Any]:
    """The fields that all but DistilBERT name alike; the heads fill the field `width`."""
    sizes = {
        "vocab_size": read_count(values, "vocab_size"),
        "hidden_size": read_count(values, "hidden_size"),
        "num_layers": read_count(values, "num_hidden_layers"),
        "num_heads": read_count(values, "num_attention_heads"),
        "ffn_size": read_count(values, "intermediate_size"),
        "num_positions": read_count(values, "max_position_embeddings", 512),
        "num_token_types": read_count(values, "type_vocab_size", 2, least=0),
        "pad_id": read_pad_id(values, 0),
        "activation": read_activation(values, "hidden_act", "gelu"),
        "norm_eps": read_positive(values, "layer_norm_eps", 1e-12),
        "dropout": read_share(values, "hidden_dropout_prob", 0.1),
        "attention_dropout": read_share(values, "attention_probs_dropout_prob", 0.1),
        "initializer_range": read_positive(values, "initializer_range", 0.02),
    }
    require_divisible(values, width, "num_attention_heads")
    return sizes


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    if kind == "masked_lm":
        return MaskedLMHead(encoder.activation)
    return read_common_head(kind, values, read_classifier_dropout(values))


def read_classifier_dropout(values: Values) -> float:
    return read_optional_share(values, "classifier_dropout", read_share(values, "hidden_dropout_prob", 0.1))


def write_config(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    require_bert_shape(encoder)
    require(encoder.position_offset == 0, "the positions begin at an offset, as RoBERTa's do")
    require(encoder.num_token_types > 0, "there are no token types")
    require_bert_heads(config)
    return {"model_type": "bert", **write_sizes(encoder), **write_classifier_dropout(config), **write_labels(config)}


def require_bert_heads(config: ModelConfig) -> None:
    """Heads on the pooler, and a masked-LM head with the encoder's activation."""
    require_head_dropouts(config, dropout=0.0)
    for head in config.heads:
        if isinstance(head, MaskedLMHead):
            require(head.activation == config.encoder.activation, "the masked-LM head has an activation of its own")
        if isinstance(head, SequenceHead | ChoiceHead):
            require(head.dense is None, f"the {head.kind} head has a dense layer of its own")


def write_sizes(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": encoder.vocab_size,
        "hidden_size": encoder.hidden_size,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": encoder.num_heads[0],
        "intermediate_size": encoder.ffn_size[0],
        "max_position_embeddings": encoder.num_positions + encoder.position_offset,
        "type_vocab_size": encoder.num_token_types,
        "pad_token_id": encoder.pad_id,
        "hidden_act": ACTIVATION_NAMES[encoder.activation],
        "layer_norm_eps": encoder.norm_eps,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "initializer_range": encoder.initializer_range,
    }


def write_classifier_dropout(config: ModelConfig) -> dict[str, Any]:
    for head in config.heads:
        if isinstance(head, SequenceHead | TokenHead | ChoiceHead) and head.dropout != config.encoder.dropout:
            return {"classifier_dropout": head.dropout}
    return {}


def encoder_names(encoder: EncoderConfig) -> Names:
    names: Names = embedding_names(encoder)
    for layer in range(encoder.num_layers):
        theirs = f"encoder.layer.{layer}"
        attention, ffn = f"attention.{layer}", f"ffn.{layer}.stack.0"
        parts = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        names |= affine(f"{attention}.query_key_value", *parts)
        names |= affine(f"{attention}.output", f"{theirs}.attention.output.dense")
        names |= affine(f"{attention}.norm", f"{theirs}.attention.output.LayerNorm")
        names |= affine(f"{ffn}.up", f"{theirs}.intermediate.dense")
        names |= affine(f"{ffn}.down", f"{theirs}.output.dense")
        names |= affine(f"{ffn}.norm", f"{theirs}.output.LayerNorm")
    if encoder.pooler == "tanh":
        names |= affine("pooler", "pooler.dense")
    return names


def embedding_names(encoder: EncoderConfig) -> Names:
    names: Names = {
        "embeddings.words.weight": ("embeddings.word_embeddings.weight",),
        "embeddings.positions.weight": ("embeddings.position_embeddings.weight",),
    }
    if encoder.num_token_types:
        names["embeddings.token_types.weight"] = ("embeddings.token_type_embeddings.weight",)
    return names | affine("embeddings.norm", "embeddings.LayerNorm")


def head_names(head: HeadConfig, encoder: EncoderConfig) -> Names:
    match head.kind:
        case "masked_lm":
            return {
                **affine("transform", "cls.predictions.transform.dense"),
                **affine("norm", "cls.predictions.transform.LayerNorm"),
                "bias": ("cls.predictions.bias",),
            }
        case "order":
            return affine("classifier", "cls.seq_relationship")
        case "sequence" | "token" | "choice":
            return affine("classifier", "classifier")
        case "span":
            return affine("classifier", "qa_outputs")
    assert head.kind == "embedding", head.kind
    return {}


BERT = Family(
    name="bert",
    prefix="bert.",
    classes=CLASSES,
    read_encoder=read_encoder,
    read_head=read_head,
    write_config=write_config,
    encoder_names=encoder_names,
    head_names=head_names,
    poolerless=frozenset({"masked_lm", "token", "span"}),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
