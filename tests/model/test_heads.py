"""Every head against its formula, written out in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from halfpint.config import (
    ChoiceHead,
    ConfigError,
    EmbeddingHead,
    EncoderConfig,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.encoder import Output
from halfpint.model.network import Network
from tests.model.samples import ALL_HEADS, FAMILIES, draw_ids, make_batch, make_network
from tests.strategies import NUM_POSITIONS, model_configs, ragged_ids

SHAPE = BatchShape(tokens=120, sequences=20, longest=NUM_POSITIONS, targets=6)
"""Filler and empty slots in every batch."""
LABELS = ("a", "b", "c")
BERT = FAMILIES["bert"]
LENGTHS = (5, 1, 16, 9)
FIRST = [0, 5, 6, 22]
"""The first token of each sequence of `LENGTHS`."""


def filled_batch(config: EncoderConfig = BERT) -> Batch:
    return make_batch(config, draw_ids(LENGTHS)).fill(SHAPE)


def run(head: HeadConfig, config: EncoderConfig = BERT, batch: Batch | None = None) -> tuple[Any, Output, np.ndarray]:
    """The head, the encoder's output, and the head's answer to it."""
    network = make_network(ModelConfig(config, (head,)))
    batch = batch or filled_batch(config)
    output = network.encoder(batch)
    return network.heads[head.kind], output, numpy(network.answer(head.kind, output, batch))


def numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def linear(layer: Any, x: np.ndarray) -> np.ndarray:
    return x @ numpy(layer.weight).T + numpy(layer.bias)


def assert_equal(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@given(model_configs(), ragged_ids(), st.booleans())
def test_answers_have_one_row_a_token_or_a_slot(config: ModelConfig, ids: list[list[int]], filled: bool) -> None:
    batch = Batch.from_ids(ids).fill(SHAPE) if filled else Batch.from_ids(ids)
    tokens, slots = batch.num_tokens, batch.num_slots
    with torch.no_grad():
        _, answers = make_network(config, torch.float32)(batch)

    def expected(head: HeadConfig) -> tuple[int, ...]:
        match head:
            case MaskedLMHead():
                return (tokens, config.encoder.vocab_size)
            case OrderHead():
                return (slots, head.num_classes)
            case SequenceHead():
                return (slots, len(head.labels))
            case TokenHead():
                return (tokens, len(head.labels))
            case SpanHead():
                return (tokens, 3 if head.no_answer else 2)
            case ChoiceHead():
                return (slots,)
            case EmbeddingHead():
                return (slots, config.encoder.hidden_size)

    assert {kind: tuple(answer.shape) for kind, answer in answers.items()} == {
        head.kind: expected(head) for head in config.heads
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_lm_decodes_with_the_word_embeddings(family: str) -> None:
    config = FAMILIES[family]
    network, batch = make_network(ModelConfig(config, (MaskedLMHead("relu"),))), filled_batch(config)
    output, head = network.encoder(batch), network.heads["masked_lm"]
    states = np.maximum(linear(head.transform, numpy(output.hidden)), 0)
    centred = states - states.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + config.norm_eps)
    normed = normed * numpy(head.norm.weight) + numpy(head.norm.bias)
    decoder = numpy(network.encoder.embeddings.words.weight)
    if family == "mobilebert":  # the embedding is narrower than the transform
        decoder = np.concatenate([decoder, numpy(head.extra.weight)], axis=1)
    assert_equal(numpy(network.answer("masked_lm", output, batch)), normed @ decoder.T + numpy(head.bias))


@pytest.mark.parametrize(("family", "width"), [("bert", 24), ("roberta", 24), ("albert", 8), ("mobilebert", 24)])
def test_masked_lm_transforms_to_the_width_of_its_decoder(family: str, width: int) -> None:
    head = make_network(ModelConfig(FAMILIES[family], (MaskedLMHead(),))).heads["masked_lm"]
    assert head.transform.weight.shape == (width, 24)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_word_changes_its_score_alone(family: str) -> None:
    config = FAMILIES[family]
    network, batch = make_network(ModelConfig(config, (MaskedLMHead(),))), filled_batch(config)
    output = network.encoder(batch)
    before = numpy(network.answer("masked_lm", output, batch))
    with torch.no_grad():
        network.encoder.embeddings.words.weight[7] += 1
    changed = (numpy(network.answer("masked_lm", output, batch)) != before).any(axis=0)
    assert np.flatnonzero(changed).tolist() == [7]


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_lm_stores_no_second_decoder(family: str) -> None:
    stored = make_network(ModelConfig(FAMILIES[family], (MaskedLMHead(),))).heads["masked_lm"].state_dict()
    names = {"transform.weight", "transform.bias", "norm.weight", "norm.bias", "bias"}
    assert set(stored) == (names | {"extra.weight"} if family == "mobilebert" else names)


@pytest.mark.parametrize("family", FAMILIES)
def test_word_embeddings_learn_as_input_and_as_decoder(family: str) -> None:
    config = FAMILIES[family]
    network, batch = make_network(ModelConfig(config, (MaskedLMHead(),))), Batch.from_ids([[4, 5]])
    network(batch)[1]["masked_lm"].square().sum().backward()
    assert network.encoder.embeddings.words.weight.grad.any(dim=1).all()


@given(st.lists(st.integers(0, sum(LENGTHS) - 1), max_size=SHAPE.targets))
def test_targets_are_rows_of_the_full_answer(targets: list[int]) -> None:
    batch = make_batch(BERT, draw_ids(LENGTHS))
    few = batch.with_targets(torch.tensor(targets, dtype=torch.int64)).fill(SHAPE)
    _, _, full = run(MaskedLMHead(), batch=batch)
    _, _, ours = run(MaskedLMHead(), batch=few)
    assert ours.shape == (SHAPE.targets, BERT.vocab_size)
    assert_equal(ours[: len(targets)], full[targets])


@pytest.mark.parametrize("num_classes", [2, 3])
def test_order_reads_the_pooler(num_classes: int) -> None:
    head, output, answer = run(OrderHead(num_classes))
    assert_equal(answer, linear(head.classifier, numpy(output.pooled)))


def test_a_sequence_head_without_a_dense_layer_reads_the_pooler() -> None:
    head, output, answer = run(SequenceHead(LABELS))
    assert_equal(answer, linear(head.classifier, numpy(output.pooled)))


@pytest.mark.parametrize("kind", [SequenceHead, ChoiceHead])
@pytest.mark.parametrize(("dense", "function"), [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0))])
def test_a_dense_layer_of_the_head_s_own_reads_first_tokens(kind: type, dense: str, function: Any) -> None:
    labels = {"labels": LABELS} if kind is SequenceHead else {}
    head, output, answer = run(kind(**labels, dense=dense), BERT.replace(pooler="none"))
    scores = linear(head.classifier, function(linear(head.dense, numpy(output.hidden)[FIRST])))
    assert_equal(answer[: len(FIRST)], scores if kind is SequenceHead else scores[:, 0])


def test_choice_is_one_score_of_the_pooler() -> None:
    head, output, answer = run(ChoiceHead())
    assert_equal(answer, linear(head.classifier, numpy(output.pooled))[:, 0])


def test_token_scores_every_token() -> None:
    head, output, answer = run(TokenHead(LABELS))
    assert_equal(answer, linear(head.classifier, numpy(output.hidden)))


@pytest.mark.parametrize("no_answer", [False, True])
def test_span_scores_every_token_as_start_and_end(no_answer: bool) -> None:
    head, output, answer = run(SpanHead(no_answer))
    assert_equal(answer[:, :2], linear(head.classifier, numpy(output.hidden)))


def test_span_repeats_a_sequence_s_score_of_no_answer() -> None:
    head, output, answer = run(SpanHead(no_answer=True))
    absent = linear(head.no_answer, numpy(output.hidden)[FIRST])[:, 0]
    assert_equal(answer[: sum(LENGTHS), 2], np.repeat(absent, LENGTHS))


@pytest.mark.parametrize("kind", ["first", "tanh"])
def test_the_pooler_reads_first_tokens(kind: str) -> None:
    network = make_network(BERT.replace(pooler=kind))
    output = network.encoder(filled_batch())
    first = numpy(output.hidden)[FIRST]
    expected = np.tanh(linear(network.encoder.pooler, first)) if kind == "tanh" else first
    assert_equal(numpy(output.pooled)[: len(FIRST)], expected)


def padded(hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, width) → (sequences, longest, width), and the mask, as other libraries have it."""
    states, mask = np.zeros((len(LENGTHS), max(LENGTHS), hidden.shape[1])), np.zeros((len(LENGTHS), max(LENGTHS), 1))
    for number, (first, length) in enumerate(zip(FIRST, LENGTHS, strict=True)):
        states[number, :length], mask[number, :length] = hidden[first : first + length], 1
    return states, mask


def test_a_mean_embedding_is_the_mean_of_what_is_no_padding() -> None:
    _, output, answer = run(EmbeddingHead("mean", normalize=False))
    states, mask = padded(numpy(output.hidden))
    means = (states * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(answer[: len(LENGTHS)], means, rtol=1e-6, atol=1e-6)


def test_a_cls_embedding_is_the_first_token() -> None:
    _, output, answer = run(EmbeddingHead("cls", normalize=False))
    assert_equal(answer[: len(LENGTHS)], numpy(output.hidden)[FIRST])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_normalized_embedding_has_length_one_and_the_same_direction(pooling: str) -> None:
    _, _, plain = run(EmbeddingHead(pooling, normalize=False))
    _, _, answer = run(EmbeddingHead(pooling))
    assert_equal(np.linalg.norm(answer[: len(LENGTHS)], axis=1), np.ones(len(LENGTHS)))
    assert_equal(answer, plain / np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), 1e-12))


@pytest.mark.parametrize("normalize", [False, True])
def test_the_mean_of_an_empty_slot_is_zero(normalize: bool) -> None:
    batch = filled_batch()
    _, _, answer = run(EmbeddingHead("mean", normalize), batch=batch)
    empty = np.array(batch.lengths) == 0
    assert empty.any()
    assert not answer[empty].any()
    assert answer[~empty].any(axis=1).all()


@pytest.mark.parametrize(
    "head", [head for head in ALL_HEADS if hasattr(head, "dropout")], ids=lambda head: str(head.kind)
)
def test_a_head_drops_in_training_alone(head: Any) -> None:
    head = dataclasses.replace(head, dropout=0.5)
    network, batch = make_network(ModelConfig(BERT, (head,))), filled_batch()
    output = network.encoder(batch)
    evaluated = network.answer(head.kind, output, batch)
    assert torch.equal(network.answer(head.kind, output, batch), evaluated)
    trained = [network.train().answer(head.kind, output, batch) for _ in range(2)]
    assert not torch.equal(*trained)
    draws = torch.stack([network.answer(head.kind, output, batch) for _ in range(400)])
    deviation = draws.std(dim=0) / len(draws) ** 0.5
    real = slice(0, len(FIRST))
    assert ((draws.mean(dim=0) - evaluated).abs() <= 6 * deviation)[real].all()


def test_a_new_head_replaces_one_of_its_kind() -> None:
    network = Network(ModelConfig(BERT, (TokenHead(LABELS), SequenceHead(LABELS))))
    network.add_head(SequenceHead(("yes", "no"), dropout=0.0))
    assert network.config == ModelConfig(BERT, (TokenHead(LABELS), SequenceHead(("yes", "no"), dropout=0.0)))
    _, answers = network(filled_batch())
    assert answers["sequence"].shape == (SHAPE.sequences, 2)


def test_dropped_heads_leave_the_encoder() -> None:
    network = Network(ModelConfig(BERT, ALL_HEADS))
    network.drop_heads()
    assert network.config == ModelConfig(BERT)
    assert all(name.startswith("encoder.") for name in network.state_dict())
    assert network(filled_batch())[1] == {}


def test_a_head_that_the_encoder_cannot_carry_is_refused_and_changes_nothing() -> None:
    network = Network(ModelConfig(BERT.replace(pooler="none"), (TokenHead(LABELS),)))
    with pytest.raises(ConfigError, match="order head reads the pooler"):
        network.add_head(OrderHead())
    assert set(network.heads) == {"token"}
    assert network.config.heads == (TokenHead(LABELS),)


def test_a_dense_head_with_tanh_drops_before_the_dense_layer_too() -> None:
    # RoBERTa's: with everything dropped but a half, what the dense layer sees differs from one row to the next.
    network = make_network(ModelConfig(BERT, (SequenceHead(LABELS, dense="tanh", dropout=0.5),))).train()
    head, output = network.heads["sequence"], network.encoder(filled_batch())
    seen: list[Tensor] = []
    head.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network.answer("sequence", output, filled_batch())
    assert 0.3 < float((seen[0] == 0).double().mean()) < 0.7


@pytest.mark.parametrize("training", [False, True])
def test_a_new_head_is_as_the_network_it_joins(training: bool) -> None:
    network = make_network(BERT, torch.bfloat16).train(training)
    network.add_head(TokenHead(LABELS))
    assert network.heads["token"].classifier.weight.dtype == torch.bfloat16
    assert all(module.training == training for module in network.modules())


def test_another_config_keeps_the_weights() -> None:
    network = make_network(ModelConfig(BERT, (TokenHead(LABELS),)))
    without = ModelConfig(BERT.replace(dropout=0.0, attention_dropout=0.0), (TokenHead(("x", "y", "z")),))
    other = network.with_config(without)
    assert other.config == without
    shared = {name: parameter.data_ptr() for name, parameter in network.named_parameters()}
    assert {name: parameter.data_ptr() for name, parameter in other.named_parameters()} == shared
    assert all(parameter.requires_grad for parameter in other.parameters())


def test_a_config_of_other_shapes_is_refused() -> None:
    network = make_network(ModelConfig(BERT, (TokenHead(LABELS),)))
    with pytest.raises(RuntimeError, match="size mismatch"):
        network.with_config(ModelConfig(BERT, (TokenHead(("x",)),)))
