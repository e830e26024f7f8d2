"""Networks whose every number matters, batches for them, and their answers sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from halfpint.config import (
    ChoiceHead,
    EmbeddingHead,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    Sharing,
    SpanHead,
    TokenHead,
)
from halfpint.model.attention import AttentionPlan, plan_attention
from halfpint.model.batch import FILLER, Batch
from halfpint.model.encoder import Encoder
from halfpint.model.network import Network

TINY = {"vocab_size": 40, "num_layers": 3, "hidden_size": 24, "num_heads": 3, "ffn_size": 20, "num_positions": 16}
FAMILIES: dict[str, EncoderConfig] = {
    "bert": EncoderConfig.uniform(**TINY),
    "roberta": EncoderConfig.uniform(**TINY, position_offset=2, num_token_types=1, pad_id=1),
    "albert": EncoderConfig.uniform(
        **TINY, embedding_size=8, embedding_projection="sum", sharing="all", activation="gelu_tanh", dropout=0.0
    ),
    "mobilebert": EncoderConfig.uniform(
        **TINY,
        embedding_size=8,
        embedding_projection="words",
        trigram=True,
        activation="relu",
        norm="no_norm",
        bottleneck_size=12,
        shared_query_key=True,
        num_ffns=2,
        dropout=0.0,
    ),
}
"""Members of the family as they are published, in small."""

ALL_HEADS = (
    MaskedLMHead(),
    OrderHead(),
    SequenceHead(("a", "b", "c")),
    TokenHead(("a", "b")),
    SpanHead(no_answer=True),
    ChoiceHead(),
    EmbeddingHead(),
)


def make_network(config: ModelConfig | EncoderConfig, dtype: torch.dtype = torch.float64) -> Network:
    """In eval mode, the same every time. Large weights and random biases and norms, so that nothing hides."""
    network = Network(config if isinstance(config, ModelConfig) else ModelConfig(config))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[1] ** 0.5 if parameter.dim() > 1 else parameter + 0.3 * noise)
    return network.to(dtype).eval()


def make_batch(config: EncoderConfig, ids: list[list[int]]) -> Batch:
    """With segments that depend on nothing but the ids."""
    types = max(config.num_token_types, 1)
    return Batch.from_ids(ids, [[(word + place) % types for place, word in enumerate(each)] for each in ids])


def ragged_plan(batch: Batch) -> AttentionPlan:
    """What the CPU does where nothing forces it to pad."""
    plan = plan_attention(batch, torch.float64, 8)
    assert plan.padding is None
    return plan


def draw_ids(lengths: Iterable[int], vocab_size: int = 40, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def answers_by_sequence(network: Network, batch: Batch) -> dict[str, list[Tensor]]:
    """States, pooled states and every head's answer, each cut into one tensor for each real sequence."""
    output, answers = network(batch)
    answers = {"hidden": output.hidden, **({} if output.pooled is None else {"pooled": output.pooled}), **answers}
    real = (batch.row != FILLER).nonzero()[:, 0]
    over_tokens = ("hidden", "masked_lm", "token", "span")
    return {
        name: list(batch.split(answer)) if name in over_tokens else list(answer[real])
        for name, answer in answers.items()
    }


def keep_layers(encoder: Encoder, layers: Iterable[int]) -> Encoder:
    """The chosen layers, counted from 0, in that order, each with copies of its blocks for itself alone."""
    config, sharing = encoder.config, encoder.config.sharing
    attention = [sharing.attention[layer] for layer in layers]
    ffn = [sharing.ffn[layer] for layer in layers]
    kept = Encoder(
        config.replace(
            sharing=Sharing.named("none", len(ffn)),
            num_heads=tuple(config.num_heads[block] for block in attention),
            ffn_size=tuple(config.ffn_size[block] for block in ffn),
        )
    ).to(next(encoder.parameters()).dtype)
    kept.embeddings.load_state_dict(encoder.embeddings.state_dict())
    if config.pooler == "tanh":
        kept.pooler.load_state_dict(encoder.pooler.state_dict())
    for number, (attention_block, ffn_block) in enumerate(zip(attention, ffn, strict=True)):
        kept.attention[number].load_state_dict(encoder.attention[attention_block].state_dict())
        kept.ffn[number].load_state_dict(encoder.ffn[ffn_block].state_dict())
    return kept.train(encoder.training)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in parts of the largest value."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    scale = float(theirs.detach().abs().max()) if theirs.numel() else 0.0
    difference = float((ours.detach() - theirs.detach()).abs().max()) if ours.numel() else 0.0
    return difference / scale if scale else difference
