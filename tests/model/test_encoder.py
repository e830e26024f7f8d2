"""The encoder's invariants: company, order, filler, sharing and padding change nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.model.attention import AttentionPlan, Padding, attend, plan_attention
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.network import Network
from halfpint.model.taps import Taps
from tests.model.samples import (
    ALL_HEADS,
    FAMILIES,
    answers_by_sequence,
    draw_ids,
    keep_layers,
    make_batch,
    make_network,
    ragged_plan,
    relative_error,
)
from tests.strategies import NUM_POSITIONS, encoder_configs, model_configs, ragged_ids

ROUNDING = 1e-9
"""Of float64, after a few layers of odd widths."""
SHAPE = BatchShape(tokens=120, sequences=20, longest=NUM_POSITIONS)
"""Larger than five sequences of `NUM_POSITIONS` tokens: filler and empty slots in every batch."""


def assert_same_answers(ours: dict[str, list[Tensor]], theirs: dict[str, list[Tensor]], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name in theirs:
        for our, their in zip(ours[name], theirs[name], strict=True):
            # A width of one leaves the norm nothing but rounding, so small values are compared as they stand.
            scale = max(1.0, float(their.detach().abs().max()))
            assert our.shape == their.shape
            assert float((our - their).detach().abs().max()) < tolerance * scale, name


def without_dropout(config: ModelConfig) -> ModelConfig:
    heads = (dataclasses.replace(head, dropout=0.0) if hasattr(head, "dropout") else head for head in config.heads)
    return ModelConfig(config.encoder.replace(dropout=0.0, attention_dropout=0.0), tuple(heads))


MOBILE = ModelConfig(FAMILIES["mobilebert"], ALL_HEADS)
"""Trigrams are the one place outside attention where a token sees another."""


@example(MOBILE, [[1, 2, 3], [4], [5, 6]])
@given(model_configs(), ragged_ids())
def test_a_sequence_alone_equals_the_same_in_company(config: ModelConfig, ids: list[list[int]]) -> None:
    network = make_network(config)
    alone = [answers_by_sequence(network, make_batch(config.encoder, [each])) for each in ids]
    together = answers_by_sequence(network, make_batch(config.encoder, ids))
    assert_same_answers(together, {name: [each[name][0] for each in alone] for name in together}, ROUNDING)


@given(model_configs(), ragged_ids(), st.data())
def test_the_order_of_sequences_does_not_matter(config: ModelConfig, ids: list[list[int]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(ids))))
    network = make_network(config)
    first = answers_by_sequence(network, make_batch(config.encoder, ids))
    second = answers_by_sequence(network, make_batch(config.encoder, [ids[number] for number in order]))
    assert_same_answers(second, {name: [first[name][number] for number in order] for name in first}, ROUNDING)


@given(model_configs(), ragged_ids())
def test_filler_changes_no_answer(config: ModelConfig, ids: list[list[int]]) -> None:
    network, batch = make_network(config), make_batch(config.encoder, ids)
    filled = batch.fill(SHAPE, config.encoder.pad_id)
    assert_same_answers(answers_by_sequence(network, filled), answers_by_sequence(network, batch), ROUNDING)


@settings(max_examples=25)
@given(model_configs(), ragged_ids())
def test_filler_changes_no_gradient(config: ModelConfig, ids: list[list[int]]) -> None:
    def gradients(batch: Batch) -> dict[str, Tensor]:
        network = make_network(config)
        answers = answers_by_sequence(network, batch)
        sum(part.square().sum() for parts in answers.values() for part in parts).backward()
        return {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}

    batch = make_batch(config.encoder, ids)
    ours, theirs = gradients(batch.fill(SHAPE, config.encoder.pad_id)), gradients(batch)
    assert ours.keys() == theirs.keys()
    # Of the largest of all gradients: a key's bias has none but rounding.
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert all(float((ours[name] - theirs[name]).abs().max()) <= ROUNDING * largest for name in theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_in_single_precision_equals_double(family: str) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    batch = make_batch(config.encoder, draw_ids([5, 1, 16, 9]))
    with torch.no_grad():
        single = answers_by_sequence(make_network(config, torch.float32), batch)
    double = answers_by_sequence(make_network(config), batch)
    for name in double:
        ours, theirs = (torch.cat([part.reshape(-1) for part in parts[name]]) for parts in (single, double))
        assert relative_error(ours.double(), theirs) < 1e-5, name


def draw_qkv(num_tokens: int, heads: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randn(num_tokens, 3, heads, size, generator=generator, dtype=torch.float64).requires_grad_()


RUNS = st.lists(st.sampled_from([1, 3, 7]), min_size=2, max_size=7).map(draw_ids)
"""Neighbours are often of equal length, which the CPU attends to together."""


@given(ragged_ids() | RUNS, st.booleans(), st.integers(1, 3), st.integers(1, 9))
def test_padded_attention_equals_ragged(ids: list[list[int]], filled: bool, heads: int, size: int) -> None:
    batch = Batch.from_ids(ids).fill(SHAPE) if filled else Batch.from_ids(ids)
    qkv = draw_qkv(batch.num_tokens, heads, size)
    ragged = attend(qkv, ragged_plan(batch))
    padded = attend(qkv, AttentionPlan("padded", batch, Padding.of(batch)))
    assert relative_error(padded, ragged) < 1e-12
    weights = torch.randn(ragged.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(out, qkv, weights)[0] for out in (padded, ragged))
    # Not relative: the query and key of a single token have no gradient but rounding.
    assert float((ours - theirs).abs().max()) < 1e-10


@given(ragged_ids() | RUNS, st.integers(1, 3), st.integers(1, 9))
def test_ragged_attention_is_the_softmax_of_every_sequence(ids: list[list[int]], heads: int, size: int) -> None:
    batch = Batch.from_ids(ids)
    qkv = draw_qkv(batch.num_tokens, heads, size).detach()
    query, key, value = qkv.unbind(1)
    expected = []
    for start, end in zip(batch.cu_lengths[:-1].tolist(), batch.cu_lengths[1:].tolist(), strict=True):
        exponents = np.einsum("ihd,jhd->hij", query[start:end], key[start:end]) / np.sqrt(size)
        weights = np.exp(exponents - exponents.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected.append(np.einsum("hij,jhd->ihd", weights, value[start:end]))
    assert relative_error(attend(qkv, ragged_plan(batch)), torch.from_numpy(np.concatenate(expected))) < 1e-12


def test_dropped_attention_weights_keep_their_mean() -> None:
    batch = Batch.from_ids([[1] * 3, [1] * 2] * 2000)
    qkv = draw_qkv(5, 2, 4).detach().repeat(2000, 1, 1, 1)
    plan = AttentionPlan("padded", batch, Padding.of(batch))
    dropped = attend(qkv, dataclasses.replace(plan, dropout=0.5)).unflatten(0, (2000, 5))
    kept = attend(qkv, plan).unflatten(0, (2000, 5))[0]
    deviation = dropped.std(dim=0) / 2000**0.5
    assert ((dropped.mean(dim=0) - kept).abs() < 5 * deviation).all()


@settings(max_examples=25)
@given(model_configs(), ragged_ids())
def test_empty_slots_give_no_nan(config: ModelConfig, ids: list[list[int]]) -> None:
    exact = config.encoder.replace(attention_dropout=0.1)
    network = make_network(ModelConfig(exact, config.heads)).train()
    output, answers = network(make_batch(exact, ids).fill(SHAPE))
    answers = [output.hidden, *answers.values()]
    assert all(answer.isfinite().all() for answer in answers)
    sum(answer.sum() for answer in answers).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)


@given(model_configs().map(without_dropout), ragged_ids())
def test_without_dropout_training_is_evaluation(config: ModelConfig, ids: list[list[int]]) -> None:
    network, batch = make_network(config), make_batch(config.encoder, ids)
    evaluated, trained = answers_by_sequence(network, batch), answers_by_sequence(network.train(), batch)
    assert_same_answers(trained, evaluated, 1e-15)


@pytest.mark.parametrize("field", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_for_training_alone(family: str, field: str) -> None:
    config = FAMILIES[family].replace(**{"dropout": 0.0, field: 0.5})
    encoder, batch = make_network(config).encoder, make_batch(config, draw_ids([9, 5]))
    evaluated = encoder(batch).hidden
    assert torch.equal(encoder(batch).hidden, evaluated)
    assert not torch.allclose(encoder.train()(batch).hidden, evaluated)


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("bert", {"embeddings", "attention", "ffn"}),
        ("albert", {"embeddings", "attention", "ffn"}),
        ("mobilebert", {"embeddings", "ffn"}),
    ],
)
def test_dropout_is_in_every_part_but_inside_a_bottleneck(family: str, parts: set[str]) -> None:
    config = FAMILIES[family].replace(dropout=0.5)
    encoder, batch = make_network(config).encoder, make_batch(config, draw_ids([9, 5]))
    evaluated, drops = encoder(batch).hidden, set()
    for part in ("embeddings", "attention", "ffn"):
        encoder.eval().get_submodule(part).train()
        if not torch.equal(encoder(batch).hidden, evaluated):
            drops.add(part)
    assert drops == parts


def blocks_used(network: Network, part: str, batch: Batch) -> list[int]:
    """For every layer, in order, where the weights of its block lie."""
    used: list[int] = []
    for block in getattr(network.encoder, part):
        block.register_forward_hook(lambda block, *_: used.append(next(block.parameters()).data_ptr()))
    network(batch)
    return used


@pytest.mark.parametrize("part", ["attention", "ffn"])
@given(config=encoder_configs())
def test_shared_blocks_are_one_storage(part: str, config: EncoderConfig) -> None:
    used = blocks_used(make_network(config), part, make_batch(config, [[1, 2]]))
    blocks = getattr(config.sharing, part)
    assert len(used) == config.num_layers
    assert [used.index(each) for each in used] == [blocks.index(each) for each in blocks]


@given(encoder_configs(), ragged_ids())
def test_sharing_changes_no_number(config: EncoderConfig, ids: list[list[int]]) -> None:
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    unshared = keep_layers(encoder, range(config.num_layers))
    assert relative_error(encoder(batch).hidden, unshared(batch).hidden) < 1e-15


@given(encoder_configs(), ragged_ids())
def test_a_shared_gradient_is_the_sum_over_uses(config: EncoderConfig, ids: list[list[int]]) -> None:
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    unshared = keep_layers(encoder, range(config.num_layers))
    for each in (encoder, unshared):
        each(batch).hidden.square().sum().backward()
    largest = max(float(parameter.grad.abs().max()) for parameter in encoder.parameters() if parameter.grad is not None)
    for part in ("attention", "ffn"):
        for block, module in enumerate(getattr(encoder, part)):
            users = [layer for layer, used in enumerate(getattr(config.sharing, part)) if used == block]
            for name, parameter in module.named_parameters():
                uses = [getattr(unshared, part)[layer].get_parameter(name).grad for layer in users]
                assert float((parameter.grad - torch.stack(uses).sum(dim=0)).abs().max()) <= 1e-12 * largest, name


@given(encoder_configs(), ragged_ids(), st.data())
def test_dropping_the_last_layers_leaves_the_states_before_them(
    config: EncoderConfig, ids: list[list[int]], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, config.num_layers))
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    tapped = encoder(batch, Taps(hidden=(kept,))).tapped.hidden[kept]
    assert relative_error(keep_layers(encoder, range(kept))(batch).hidden, tapped) < 1e-15


@pytest.mark.parametrize("lengths", [[3, 3, 17, 1], [96, 96, 40], [130, 95, 300]], ids=str)
def test_attention_in_half_precision_is_as_exact_as_its_inputs(lengths: list[int]) -> None:
    """Values and gradients on the CPU, against double precision: short sequences, long ones, and both."""
    torch.manual_seed(0)
    batch = Batch.from_ids([[1] * length for length in lengths])
    exact = torch.randn(sum(lengths), 3, 4, 16).bfloat16().double().requires_grad_()
    half = exact.detach().bfloat16().requires_grad_()
    wanted = torch.randn(sum(lengths), 4, 16).bfloat16()
    outs = [attend(qkv, plan_attention(batch, qkv.dtype, 16)) for qkv in (half, exact)]
    for out in outs:
        out.backward(wanted.to(out.dtype))
    assert outs[0].dtype == torch.bfloat16
    for ours, true in ((outs[0].detach(), outs[1].detach()), (half.grad, exact.grad)):
        assert float((ours.double() - true).norm() / true.norm()) < 2**-7
