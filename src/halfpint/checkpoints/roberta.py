"""RoBERTa's checkpoints: BERT's tensors, positions that begin at pad + 1, and other heads."""

from __future__ import annotations

from typing import Any

from halfpint.checkpoints import bert
from halfpint.checkpoints.families import (
    Family,
    Names,
    affine,
    read_common_head,
    require,
    require_bert_shape,
    require_head_dropouts,
    require_values,
    write_labels,
)
from halfpint.checkpoints.values import Values, misfit, read_pad_id, require_absolute_positions
from halfpint.config import ChoiceHead, EncoderConfig, HeadConfig, MaskedLMHead, ModelConfig, SequenceHead

CLASSES = {
    "RobertaModel": (),
    "RobertaForMaskedLM": ("masked_lm",),
    "RobertaForSequenceClassification": ("sequence",),
    "RobertaForMultipleChoice": ("choice",),
    "RobertaForTokenClassification": ("token",),
    "RobertaForQuestionAnswering": ("span",),
}


def read_encoder(values: Values) -> EncoderConfig:
    require_absolute_positions(values)
    require_values(values, bert.NO_DECODER)
    sizes = bert.read_sizes(values)
    # The first positions of the table are never used: real ones are counted from pad + 1.
    offset = read_pad_id(values, 1) + 1
    if sizes["num_positions"] <= offset:
        raise misfit("max_position_embeddings", sizes["num_positions"], f"more than pad_token_id + 1, {offset}")
    return EncoderConfig.uniform(
        **{
            **sizes,
            "pad_id": offset - 1,
            "position_offset": offset,
            "num_positions": sizes["num_positions"] - offset,
        }
    )


def read_head(kind: str, values: Values, encoder: EncoderConfig) -> HeadConfig:
    dropout = bert.read_classifier_dropout(values)
    if kind == "masked_lm":
        return MaskedLMHead("gelu")
    if kind == "choice":
        return ChoiceHead(dropout=encoder.dropout)
    head = read_common_head(kind, values, dropout)
    return SequenceHead(head.labels, head.problem, "tanh", dropout) if isinstance(head, SequenceHead) else head


def write_config(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    require_bert_shape(encoder)
    require(encoder.position_offset == encoder.pad_id + 1, "the positions do not begin at pad_id + 1")
    require(encoder.num_token_types > 0, "there are no token types")
    require_head_dropouts(config, dropout=0.0)
    for head in config.heads:
        if isinstance(head, MaskedLMHead):
            require(head.activation == "gelu", "RoBERTa's masked-LM head always has the erf GELU")
        if isinstance(head, SequenceHead):
            require(head.dense == "tanh", "RoBERTa's classifier has a dense layer with tanh of its own")
        if isinstance(head, ChoiceHead):
            require(head.dense is None and head.dropout == encoder.dropout, "the choice head is not RoBERTa's")
    sizes = bert.write_sizes(encoder)
    return {"model_type": "roberta", **sizes, **bert.write_classifier_dropout(config), **write_labels(config)}


def head_names(head: HeadConfig, encoder: EncoderConfig) -> Names:
    match head.kind:
        case "masked_lm":
            return {
                **affine("transform", "lm_head.dense"),
                **affine("norm", "lm_head.layer_norm"),
                "bias": ("lm_head.bias",),
            }
        case "sequence":
            return affine("dense", "classifier.dense") | affine("classifier", "classifier.out_proj")
    return bert.head_names(head, encoder)


ROBERTA = Family(
    name="roberta",
    prefix="roberta.",
    classes=CLASSES,
    read_encoder=read_encoder,
    read_head=read_head,
    write_config=write_config,
    encoder_names=bert.encoder_names,
    head_names=head_names,
    poolerless=frozenset({"masked_lm", "sequence", "token", "span"}),
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
)
