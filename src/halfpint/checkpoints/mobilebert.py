"""MobileBERT's checkpoints: bottlenecks, stacked FFNs, trigram embeddings."""

from __future__ import annotations

from typing import Any

from halfpint.checkpoints import bert
from halfpint.checkpoints.families import (
    Family,
    Names,
    Values,
    affine,
    require,
    require_uniform,
    write_labels,
)
from halfpint.config import EncoderConfig, HeadConfig, ModelConfig

OUTER_NORM_EPS = 1e-5
"""`transformers` builds the embedding norm and the last FFN's norm without passing the config's epsilon."""

CLASSES = {
    "MobileBertModel": (),
    "MobileBertForPreTraining": ("masked_lm", "order"),
    "MobileBertForMaskedLM": ("masked_lm",),
    "MobileBertForNextSentencePrediction": ("order",),
    "MobileBertForSequenceClassification": ("sequence",),
    "MobileBertForMultipleChoice": ("choice",),
    "MobileBertForTokenClassification": ("token",),
    "MobileBertForQuestionAnswering": ("span",),
}


def read_encoder(values: Values) -> EncoderConfig:
    bottleneck = values.get("use_bottleneck", True)
    joint = values.get("use_bottleneck_attention", False)
    shared = values.get("key_query_shared_bottleneck", True)
    require(not bottleneck or joint or shared, "queries and keys of the full width do not fit a bottleneck")
    trigram, embedding_size = values.get("trigram_input", True), values.get("embedding_size", 128)
    norm = values.get("normalization_type", "no_norm")
    return EncoderConfig.uniform(
        **{
            **bert.read_sizes({"hidden_act": "relu", "hidden_dropout_prob": 0.0, **values}),
            "embedding_size": embedding_size,
            "trigram": trigram,
            "embedding_projection": "words" if trigram or embedding_size != values["hidden_size"] else "none",
            "norm": norm,
            "outer_norm_eps": OUTER_NORM_EPS if norm == "layer_norm" else None,
            "bottleneck_size": values.get("intra_bottleneck_size", 128) if bottleneck else None,
            "shared_query_key": bottleneck and not joint,
            "num_ffns": values.get("num_feedforward_networks", 4),
            # False in the published weights: their heads read the first token as it is.
            "pooler": "tanh" if values.get("classifier_activation", True) else "first",
        }
    )


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    return bert.read_head(kind, {"hidden_dropout_prob": 0.0, **values}, encoder)


def write_config(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    require_uniform(encoder)
    layers = tuple(range(encoder.num_layers))
    require(encoder.sharing.attention == layers == encoder.sharing.ffn, "layers share blocks")
    require(encoder.embedding_projection == "words", "the words are not projected to the hidden size")
    require(
        encoder.trigram or encoder.embedding_size != encoder.hidden_size,
        "MobileBERT projects single words only from another width",
    )
    require(encoder.position_offset == 0, "the positions begin at an offset")
    require(encoder.num_token_types > 0, "there are no token types")
    require(
        encoder.norm == "no_norm" or encoder.closing_norm_eps == OUTER_NORM_EPS,
        f"MobileBERT's outer layer norms have an epsilon of {OUTER_NORM_EPS}",
    )
    require(
        config.head("masked_lm") is None or encoder.hidden_size > encoder.embedding_size,
        "MobileBERT's masked-LM head decodes from more than the embedding's width",
    )
    bert.require_bert_heads(config)
    return {
        **bert.write_sizes(encoder),
        "model_type": "mobilebert",
        "embedding_size": encoder.embedding_size,
        "trigram_input": encoder.trigram,
        "normalization_type": encoder.norm,
        "use_bottleneck": encoder.bottleneck_size is not None,
        "intra_bottleneck_size": encoder.block_size,
        "use_bottleneck_attention": not encoder.shared_query_key,
        "key_query_shared_bottleneck": encoder.shared_query_key,
        "num_feedforward_networks": encoder.num_ffns,
        "classifier_activation": encoder.pooler != "first",
        **bert.write_classifier_dropout(config),
        **write_labels(config),
    }


def encoder_names(encoder: EncoderConfig) -> Names:
    names = bert.embedding_names(encoder)
    if encoder.embedding_projection == "words":
        names |= affine("embeddings.project", "embeddings.embedding_transformation")
    for layer in range(encoder.num_layers):
        names |= _attention_names(encoder, f"attention.{layer}", f"encoder.layer.{layer}")
        names |= _ffn_names(encoder, f"ffn.{layer}", f"encoder.layer.{layer}")
    if encoder.pooler == "tanh":
        names |= affine("pooler", "pooler.dense")
    return names


def _attention_names(encoder: EncoderConfig, ours: str, theirs: str) -> Names:
    names: Names = {}
    query, key, value = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
    if encoder.bottleneck_size:
        names |= affine(f"{ours}.bottleneck.dense", f"{theirs}.bottleneck.input.dense")
        names |= affine(f"{ours}.bottleneck.norm", f"{theirs}.bottleneck.input.LayerNorm")
    if encoder.shared_query_key:
        names |= affine(f"{ours}.query_key_bottleneck.dense", f"{theirs}.bottleneck.attention.dense")
        names |= affine(f"{ours}.query_key_bottleneck.norm", f"{theirs}.bottleneck.attention.LayerNorm")
        names |= affine(f"{ours}.query_key", query, key) | affine(f"{ours}.value", value)
    else:
        names |= affine(f"{ours}.query_key_value", query, key, value)
    names |= affine(f"{ours}.output", f"{theirs}.attention.output.dense")
    return names | affine(f"{ours}.norm", f"{theirs}.attention.output.LayerNorm")


def _ffn_names(encoder: EncoderConfig, ours: str, theirs: str) -> Names:
    names: Names = {}
    for index in range(encoder.num_ffns):
        # The last FFN of the stack is the layer's own; the others lie in a list.
        inner = theirs if index == encoder.num_ffns - 1 else f"{theirs}.ffn.{index}"
        names |= affine(f"{ours}.stack.{index}.up", f"{inner}.intermediate.dense")
        names |= affine(f"{ours}.stack.{index}.down", f"{inner}.output.dense")
        names |= affine(f"{ours}.stack.{index}.norm", f"{inner}.output.LayerNorm")
    if encoder.bottleneck_size:
        names |= affine(f"{ours}.expand", f"{theirs}.output.bottleneck.dense")
        names |= affine(f"{ours}.norm", f"{theirs}.output.bottleneck.LayerNorm")
    return names


def head_names(head: HeadConfig, encoder: EncoderConfig) -> Names:
    names = bert.head_names(head, encoder)
    if head.kind == "masked_lm" and encoder.hidden_size > encoder.embedding_size:
        names["extra.weight"] = ("cls.predictions.dense.weight",)
    return names


MOBILEBERT = Family(
    name="mobilebert",
    prefix="mobilebert.",
    classes=CLASSES,
    read_encoder=read_encoder,
    read_head=read_head,
    write_config=write_config,
    encoder_names=encoder_names,
    head_names=head_names,
    poolerless=frozenset({"masked_lm", "token", "span"}),
    tied={
        "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)
