"""Odd but valid configs for hypothesis: everything the config allows, at sizes that run in milliseconds."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from halfpint.config import (
    Activation,
    ChoiceHead,
    EmbeddingHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    Norm,
    OrderHead,
    Pooling,
    Problem,
    Projection,
    SequenceHead,
    Sharing,
    SpanHead,
    TokenHead,
    reads_pooler,
)

DROPOUT = st.sampled_from([0.0, 0.1])
ACTIVATION = st.sampled_from(get_args(Activation))
DENSE = st.sampled_from([None, "tanh", "relu"])
LABELS = st.integers(1, 4).map(lambda number: tuple(f"label {index}" for index in range(number)))
NUM_POSITIONS = 16


@st.composite
def block_maps(draw: st.DrawFn, num_layers: int) -> tuple[int, ...]:
    """Layers to physical blocks, in any order, every block used."""
    drawn = draw(st.lists(st.integers(0, num_layers - 1), min_size=num_layers, max_size=num_layers))
    numbers = {block: number for number, block in enumerate(sorted(set(drawn)))}
    return tuple(numbers[block] for block in drawn)


@st.composite
def sharings(draw: st.DrawFn) -> Sharing:
    num_layers = draw(st.integers(1, 4))
    return Sharing(attention=draw(block_maps(num_layers)), ffn=draw(block_maps(num_layers)))


@st.composite
def embedding_fields(draw: st.DrawFn, hidden_size: int) -> dict[str, Any]:
    projection = draw(st.sampled_from(get_args(Projection)))
    # MobileBERT's decoder is never narrower than its embedding.
    sizes = {"none": st.just(hidden_size), "words": st.integers(4, hidden_size), "sum": st.integers(4, 28)}
    return {
        "embedding_size": draw(sizes[projection]),
        "embedding_projection": projection,
        "trigram": projection == "words" and draw(st.booleans()),
        "vocab_size": draw(st.integers(20, 50)),
        "num_positions": NUM_POSITIONS,
        "position_offset": draw(st.integers(0, 2)),
        "num_token_types": draw(st.integers(0, 3)),
        "pad_id": draw(st.integers(0, 3)),
    }


@st.composite
def encoder_configs(draw: st.DrawFn) -> EncoderConfig:
    """Any sharing map, head counts and FFN widths that differ by block, bottlenecks, stacks, trigrams …"""
    hidden_size = draw(st.integers(8, 24))
    sharing = draw(sharings())
    bottleneck_size = draw(st.none() | st.integers(4, 12))

    def one_a_block(number: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
        return st.lists(st.integers(1, most), min_size=number, max_size=number).map(tuple)

    return EncoderConfig(
        hidden_size=hidden_size,
        sharing=sharing,
        num_heads=draw(one_a_block(sharing.num_attention_blocks, 4)),
        head_size=draw(st.integers(1, 8)),
        ffn_size=draw(one_a_block(sharing.num_ffn_blocks, 32)),
        activation=draw(ACTIVATION),
        norm=draw(st.sampled_from(get_args(Norm))),
        norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
        outer_norm_eps=draw(st.sampled_from([None, 1e-3])),
        bottleneck_size=bottleneck_size,
        shared_query_key=bottleneck_size is not None and draw(st.booleans()),
        num_ffns=draw(st.integers(1, 3)),
        pooler=draw(st.sampled_from(("none", "tanh", "first"))),
        dropout=draw(DROPOUT),
        attention_dropout=draw(DROPOUT),
        **draw(embedding_fields(hidden_size)),
    )


HEADS: dict[str, st.SearchStrategy[HeadConfig]] = {
    "masked_lm": st.builds(MaskedLMHead, activation=ACTIVATION),
    "order": st.builds(OrderHead, num_classes=st.sampled_from([2, 3]), dropout=DROPOUT),
    "sequence": st.builds(
        SequenceHead, labels=LABELS, problem=st.sampled_from(get_args(Problem)), dense=DENSE, dropout=DROPOUT
    ),
    "token": st.builds(TokenHead, labels=LABELS, dropout=DROPOUT),
    "span": st.builds(SpanHead, no_answer=st.booleans(), dropout=DROPOUT),
    "choice": st.builds(ChoiceHead, dense=DENSE, dropout=DROPOUT),
    "embedding": st.builds(EmbeddingHead, pooling=st.sampled_from(get_args(Pooling)), normalize=st.booleans()),
}
"""One strategy a head kind; a test checks that none is missing."""


@st.composite
def model_configs(draw: st.DrawFn) -> ModelConfig:
    """An odd encoder with any heads that it can carry, in any order."""
    encoder = draw(encoder_configs())
    kinds = draw(st.lists(st.sampled_from(sorted(HEADS)), unique=True))
    heads = tuple(draw(HEADS[kind]) for kind in kinds)
    return ModelConfig(encoder, tuple(head for head in heads if encoder.pooler != "none" or not reads_pooler(head)))


@st.composite
def ragged_ids(draw: st.DrawFn, vocab_size: int = 20) -> list[list[int]]:
    """Token ids of one to five sequences; 20 is the smallest vocabulary that is drawn."""
    sequence = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=NUM_POSITIONS)
    return draw(st.lists(sequence, min_size=1, max_size=5))
