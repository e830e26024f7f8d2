"""MobileBERT's checkpoints: bottlenecks, stacked FFNs, trigram embeddings."""

from __future__ import annotations

from typing import Any, get_args

from halfpint.checkpoints import bert
from halfpint.checkpoints.families import (
    Family,
    Names,
    affine,
    require,
    require_uniform,
    write_labels,
)
from halfpint.checkpoints.values import Values, misfit, read_count, read_switch, read_text
from halfpint.config import EncoderConfig, HeadConfig, ModelConfig, Norm

OUTER_NORM_EPS = 1e-5
"""`transformers` builds the embedding norm and the last FFN's norm without passing the config's epsilon."""

DEFAULTS = {"hidden_act": "relu", "hidden_dropout_prob": 0.0, "intra_bottleneck_size": 128}

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
    values = {**DEFAULTS, **values}
    bottleneck = read_switch(values, "use_bottleneck", True)
    joint = read_switch(values, "use_bottleneck_attention", False)
    shared = read_switch(values, "key_query_shared_bottleneck", True)
    if bottleneck and not joint and not shared:
        raise misfit(
            "key_query_shared_bottleneck", shared, "true, or use_bottleneck_attention true: queries fit no other"
        )
    trigram, embedding_size = read_switch(values, "trigram_input", True), read_count(values, "embedding_size", 128)
    norm = read_text(values, "normalization_type", "no_norm")
    if norm not in get_args(Norm):
        raise misfit("normalization_type", norm, f"one of {', '.join(get_args(Norm))}")
    sizes = bert.read_sizes(values, width="intra_bottleneck_size" if bottleneck else "hidden_size")
    return EncoderConfig.uniform(
        **{
            **sizes,
            "embedding_size": embedding_size,
            "trigram": trigram,
            "embedding_projection": "words" if trigram or embedding_size != sizes["hidden_size"] else "none",
            "norm": norm,
            "outer_norm_eps": OUTER_NORM_EPS if norm == "layer_norm" else None,
            "bottleneck_size": read_count(values, "intra_bottleneck_size") if bottleneck else None,
            "shared_query_key": bottleneck and not joint,
            "num_ffns": read_count(values, "num_feedforward_networks", 4),
            # False in the published weights: their heads read the first token as it is.
            "pooler": "tanh" if read_switch(values, "classifier_activation", True) else "first",
        }
    )


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    return bert.read_head(kind, {**DEFAULTS, **values}, encoder)


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
