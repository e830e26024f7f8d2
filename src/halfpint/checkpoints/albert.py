"""ALBERT's checkpoints: factorized embeddings, and layers that share both blocks in groups.

`transformers` runs group ⌊i / (layers / groups)⌋ at step i, and all inner layers of the group at each step.
"""

from __future__ import annotations

from typing import Any

from halfpint.checkpoints import bert
from halfpint.checkpoints.families import (
    Family,
    Names,
    affine,
    read_common_head,
    require,
    require_head_dropouts,
    require_plain_blocks,
    require_uniform,
    write_labels,
)
from halfpint.checkpoints.values import (
    Values,
    misfit,
    read_count,
    read_optional_share,
    require_absolute_positions,
)
from halfpint.config import (
    ChoiceHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    Sharing,
    TokenHead,
)

CLASSIFIER_DROPOUT = 0.1
DEFAULTS = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

CLASSES = {
    "AlbertModel": (),
    "AlbertForPreTraining": ("masked_lm", "order"),
    "AlbertForMaskedLM": ("masked_lm",),
    "AlbertForSequenceClassification": ("sequence",),
    "AlbertForTokenClassification": ("token",),
    "AlbertForQuestionAnswering": ("span",),
    "AlbertForMultipleChoice": ("choice",),
}


def group_sharing(num_steps: int, num_groups: int, inner: int) -> Sharing:
    """The sharing map of `num_steps` steps through `num_groups` groups of `inner` layers each."""
    blocks = tuple(
        int(step / (num_steps / num_groups)) * inner + layer for step in range(num_steps) for layer in range(inner)
    )
    return Sharing(blocks, blocks)


def find_groups(sharing: Sharing) -> tuple[int, int, int]:
    """Steps, groups and inner layers that give this map; `Inexpressible` where there are none."""
    require(sharing.attention == sharing.ffn, "attention and FFN blocks are shared differently")
    num_blocks = sharing.num_attention_blocks
    for inner in range(1, num_blocks + 1):
        if num_blocks % inner == 0 and sharing.num_layers % inner == 0:
            num_steps, num_groups = sharing.num_layers // inner, num_blocks // inner
            if num_groups <= num_steps and group_sharing(num_steps, num_groups, inner) == sharing:
                return num_steps, num_groups, inner
    require(False, f"the layers run through blocks {sharing.attention}, and ALBERT's classes know only groups")
    raise AssertionError


def read_encoder(values: Values) -> EncoderConfig:
    require_absolute_positions(values)
    steps, groups = read_count(values, "num_hidden_layers"), read_count(values, "num_hidden_groups", 1)
    if groups > steps:
        raise misfit("num_hidden_groups", groups, f"no more than num_hidden_layers, {steps}")
    sharing = group_sharing(steps, groups, read_count(values, "inner_group_num", 1))
    return EncoderConfig.uniform(
        **{
            **bert.read_sizes({**DEFAULTS, **values}),
            "num_layers": sharing.num_layers,
            "sharing": sharing,
            "embedding_size": read_count(values, "embedding_size", 128),
            "embedding_projection": "sum",
        }
    )


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    if kind == "masked_lm":
        return MaskedLMHead(encoder.activation)
    # Where it is null, the token classifier has the hidden dropout; the other classes cannot be built then.
    given = {"classifier_dropout_prob": CLASSIFIER_DROPOUT, **values}
    dropout = read_optional_share(given, "classifier_dropout_prob", encoder.dropout)
    return OrderHead(dropout=dropout) if kind == "order" else read_common_head(kind, values, dropout)


def write_config(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    require_uniform(encoder)
    require_plain_blocks(encoder)
    require(encoder.embedding_projection == "sum", "the sum of the embeddings is not projected")
    require(encoder.position_offset == 0, "the positions begin at an offset")
    require(encoder.num_token_types > 0, "there are no token types")
    steps, groups, inner = find_groups(encoder.sharing)
    return {
        **bert.write_sizes(encoder),
        "model_type": "albert",
        "num_hidden_layers": steps,
        "num_hidden_groups": groups,
        "inner_group_num": inner,
        "embedding_size": encoder.embedding_size,
        "classifier_dropout_prob": _classifier_dropout(config),
        **write_labels(config),
    }


def _classifier_dropout(config: ModelConfig) -> float:
    dropouts = {
        head.dropout for head in config.heads if isinstance(head, OrderHead | SequenceHead | TokenHead | ChoiceHead)
    }
    require(len(dropouts) <= 1, f"the heads have several dropouts: {sorted(dropouts)}")
    dropout = dropouts.pop() if dropouts else CLASSIFIER_DROPOUT
    for head in config.heads:
        if isinstance(head, MaskedLMHead):
            require(head.activation == config.encoder.activation, "the masked-LM head has an activation of its own")
        elif isinstance(head, SequenceHead | ChoiceHead):
            require(head.dense is None, f"the {head.kind} head has a dense layer of its own")
        else:
            require_head_dropouts(
                ModelConfig(config.encoder, (head,)), dropout=dropout if isinstance(head, OrderHead) else 0.0
            )
    return dropout


def encoder_names(encoder: EncoderConfig) -> Names:
    _, groups, inner = find_groups(encoder.sharing)
    names = bert.embedding_names(encoder) | affine("embeddings.project", "encoder.embedding_hidden_mapping_in")
    for block in range(groups * inner):
        theirs = f"encoder.albert_layer_groups.{block // inner}.albert_layers.{block % inner}"
        attention, ffn = f"attention.{block}", f"ffn.{block}.stack.0"
        parts = (f"{theirs}.attention.{part}" for part in ("query", "key", "value"))
        names |= affine(f"{attention}.query_key_value", *parts)
        names |= affine(f"{attention}.output", f"{theirs}.attention.dense")
        names |= affine(f"{attention}.norm", f"{theirs}.attention.LayerNorm")
        names |= affine(f"{ffn}.up", f"{theirs}.ffn")
        names |= affine(f"{ffn}.down", f"{theirs}.ffn_output")
        names |= affine(f"{ffn}.norm", f"{theirs}.full_layer_layer_norm")
    if encoder.pooler == "tanh":
        names |= affine("pooler", "pooler")
    return names


def head_names(head: HeadConfig, encoder: EncoderConfig) -> Names:
    match head.kind:
        case "masked_lm":
            return {
                **affine("transform", "predictions.dense"),
                **affine("norm", "predictions.LayerNorm"),
                "bias": ("predictions.bias",),
            }
        case "order":
            return affine("classifier", "sop_classifier.classifier")
    return bert.head_names(head, encoder)


ALBERT = Family(
    name="albert",
    prefix="albert.",
    classes=CLASSES,
    read_encoder=read_encoder,
    read_head=read_head,
    write_config=write_config,
    encoder_names=encoder_names,
    head_names=head_names,
    poolerless=frozenset({"masked_lm", "token", "span"}),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
)
