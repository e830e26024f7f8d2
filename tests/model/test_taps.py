"""What a forward pass shows of its inside is what it computed, and nothing is computed that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from halfpint.config import EncoderConfig
from halfpint.model.attention import Padding, relations
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.encoder import Encoder
from halfpint.model.taps import Tapped, Taps
from tests.model.samples import FAMILIES, draw_ids, keep_layers, make_batch, make_network, relative_error
from tests.strategies import NUM_POSITIONS, encoder_configs, ragged_ids

SHAPE = BatchShape(tokens=120, sequences=20, longest=NUM_POSITIONS)
"""Filler and empty slots in every batch."""


def all_layers(config: EncoderConfig) -> tuple[int, ...]:
    return tuple(range(1, config.num_layers + 1))


def tap_attention(config: EncoderConfig, ids: list[list[int]]) -> tuple[Batch, Tapped]:
    layers = all_layers(config)
    batch = make_batch(config, ids).fill(SHAPE)
    taps = Taps(scores=layers, probabilities=layers, vectors=layers)
    return batch, make_network(config).encoder(batch, taps).tapped


def heads_of(config: EncoderConfig, layer: int) -> int:
    return config.num_heads[config.sharing.attention[layer - 1]]


def softmax(scores: np.ndarray) -> np.ndarray:
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def corners(batch: Batch, values: Tensor) -> Iterator[np.ndarray]:
    """(S, heads, L, L) → for every sequence that has tokens, its (heads, length, length)."""
    for square, length in zip(values.detach().numpy(), batch.lengths, strict=True):
        if length:
            yield square[:, :length, :length]


def cut(batch: Batch, values: Tensor) -> Iterator[np.ndarray]:
    """(T, …) → for every sequence that has tokens, its (length, …)."""
    yield from (part.detach().numpy() for part in values.split(batch.lengths) if len(part))


def assert_equal(ours: Iterator[np.ndarray], theirs: Iterator[np.ndarray]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-10, atol=1e-10)


@given(encoder_configs(), ragged_ids())
def test_hidden_states_are_those_between_the_layers(config: EncoderConfig, ids: list[list[int]]) -> None:
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    output = encoder(batch, Taps(hidden=(0, *all_layers(config))))
    assert torch.equal(output.tapped.hidden[0], encoder.embeddings(batch))
    assert torch.equal(output.tapped.hidden[config.num_layers], output.hidden)
    for layer in all_layers(config):
        ends_here = keep_layers(encoder, range(layer))
        assert relative_error(ends_here(batch).hidden, output.tapped.hidden[layer]) < 1e-15


@given(encoder_configs(), ragged_ids())
def test_vectors_have_the_heads_of_their_block(config: EncoderConfig, ids: list[list[int]]) -> None:
    batch, tapped = tap_attention(config, ids)
    for vectors in (tapped.queries, tapped.keys, tapped.values):
        assert {layer: tuple(each.shape) for layer, each in vectors.items()} == {
            layer: (batch.num_tokens, heads_of(config, layer), config.head_size) for layer in all_layers(config)
        }


@given(encoder_configs(), ragged_ids())
def test_scores_are_the_scaled_products_of_queries_and_keys(config: EncoderConfig, ids: list[list[int]]) -> None:
    batch, tapped = tap_attention(config, ids)
    for layer in all_layers(config):
        pairs = zip(cut(batch, tapped.queries[layer]), cut(batch, tapped.keys[layer]), strict=True)
        products = (np.einsum("ihd,jhd->hij", query, key) / np.sqrt(config.head_size) for query, key in pairs)
        assert_equal(corners(batch, tapped.scores[layer]), products)


@given(encoder_configs(), ragged_ids())
def test_probabilities_are_the_softmax_of_scores(config: EncoderConfig, ids: list[list[int]]) -> None:
    batch, tapped = tap_attention(config, ids)
    for layer in all_layers(config):
        expected = (softmax(scores) for scores in corners(batch, tapped.scores[layer]))
        assert_equal(corners(batch, tapped.probabilities[layer]), expected)


@given(encoder_configs(), ragged_ids())
def test_rows_of_probabilities_sum_to_one_over_tokens(config: EncoderConfig, ids: list[list[int]]) -> None:
    batch, tapped = tap_attention(config, ids)
    is_token = torch.arange(NUM_POSITIONS) < torch.tensor(batch.lengths)[:, None]
    for layer in all_layers(config):
        sums = tapped.probabilities[layer].sum(dim=-1)
        assert torch.allclose(sums, is_token[:, None].expand_as(sums).double())


@given(encoder_configs(), ragged_ids())
def test_where_no_token_is_all_is_zero(config: EncoderConfig, ids: list[list[int]]) -> None:
    batch, tapped = tap_attention(config, ids)
    is_token = torch.arange(NUM_POSITIONS) < torch.tensor(batch.lengths)[:, None]
    both = is_token[:, None, :, None] & is_token[:, None, None, :]
    for values in (*tapped.scores.values(), *tapped.probabilities.values()):
        assert values.shape[0::2] == (SHAPE.sequences, SHAPE.longest)
        assert not values.masked_fill(both, 0.0).any()


@given(encoder_configs(), ragged_ids())
def test_probabilities_times_values_are_what_the_layer_attended_to(config: EncoderConfig, ids: list[list[int]]) -> None:
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    attended: list[Tensor] = []
    for block in encoder.attention:
        block.output.register_forward_pre_hook(lambda _, inputs: attended.append(inputs[0]))
    tapped = encoder(batch, Taps(probabilities=all_layers(config), vectors=all_layers(config))).tapped
    for layer in all_layers(config):
        pairs = zip(corners(batch, tapped.probabilities[layer]), cut(batch, tapped.values[layer]), strict=True)
        expected = (np.einsum("hij,jhd->ihd", weights, values) for weights, values in pairs)
        ours = attended[layer - 1].unflatten(1, (heads_of(config, layer), config.head_size))
        assert_equal(cut(batch, ours), expected)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 12])
@given(ids=ragged_ids())
def test_relations_are_softmaxes_of_regrouped_vectors_with_themselves(num_heads: int, ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids).fill(SHAPE)
    vectors = torch.randn(batch.num_tokens, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    related = relations(vectors, Padding.of(batch), num_heads)
    assert related.shape == (SHAPE.sequences, num_heads, SHAPE.longest, SHAPE.longest)

    def relate(part: np.ndarray) -> np.ndarray:
        regrouped = part.reshape(len(part), num_heads, 12 // num_heads)
        return softmax(np.einsum("ihd,jhd->hij", regrouped, regrouped) / np.sqrt(12 / num_heads))

    assert_equal(corners(batch, related), (relate(part) for part in cut(batch, vectors)))
    assert float(related.sum()) == pytest.approx(num_heads * batch.num_tokens)


def test_relation_heads_must_divide_the_width() -> None:
    batch = Batch.from_ids([[1, 2]])
    with pytest.raises(ValueError, match="width of 12 does not divide into 5 relation heads"):
        relations(torch.zeros(2, 3, 4), Padding.of(batch), 5)


@st.composite
def taps_of(draw: st.DrawFn, num_layers: int) -> Taps:
    def some(first: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(first, num_layers), unique=True, max_size=2)))

    return Taps(hidden=some(0), scores=some(1), probabilities=some(1), vectors=some(1))


@given(encoder_configs(), st.data())
def test_what_is_asked_for_is_shown_and_nothing_else(config: EncoderConfig, data: st.DataObject) -> None:
    taps = data.draw(taps_of(config.num_layers))
    shown = make_network(config).encoder(make_batch(config, [[1, 2], [3]]), taps).tapped
    assert {name: set(layers) for name, layers in vars(shown).items()} == {
        "hidden": set(taps.hidden),
        "scores": set(taps.scores),
        "probabilities": set(taps.probabilities),
        "queries": set(taps.vectors),
        "keys": set(taps.vectors),
        "values": set(taps.vectors),
    }


@given(encoder_configs(), ragged_ids(), st.data())
def test_taps_change_no_number(config: EncoderConfig, ids: list[list[int]], data: st.DataObject) -> None:
    taps = data.draw(taps_of(config.num_layers))
    encoder, batch = make_network(config).encoder, make_batch(config, ids)
    assert torch.equal(encoder(batch, taps).hidden, encoder(batch).hidden)


class CountSquares(TorchDispatchMode):
    """Counts matrix products that make a padded score matrix of every head of every sequence."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest, self.number = longest, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        products = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)
        self.number += func in products and out.shape[-2:] == (self.longest, self.longest)
        return out


def count_squares(encoder: Encoder, batch: Batch, taps: Taps) -> int:
    with CountSquares(batch.longest) as counter:
        encoder(batch, taps)
    return counter.number


@pytest.mark.parametrize(
    ("taps", "number"),
    [
        (Taps(), 0),
        (Taps(hidden=(0, 1, 2, 3), vectors=(1, 2, 3)), 0),
        (Taps(scores=(2,)), 1),
        (Taps(scores=(2,), probabilities=(2,)), 1),
        (Taps(scores=(1,), probabilities=(3,)), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_only_layers_asked_for_compute_a_score_matrix(family: str, taps: Taps, number: int) -> None:
    network = make_network(FAMILIES[family], torch.float32)
    # One length is 13, the longest, which is no size of any weight.
    batch = make_batch(FAMILIES[family], draw_ids([13, 4, 7]))
    assert count_squares(network.encoder, batch, taps) == number
    with torch.no_grad():
        assert count_squares(network.encoder, batch, taps) == number


@pytest.mark.parametrize(
    ("name", "layer", "first"),
    [
        ("hidden", -1, 0),
        ("hidden", 4, 0),
        *((name, layer, 1) for name in ("scores", "probabilities", "vectors") for layer in (-1, 0, 4)),
    ],
)
def test_a_layer_that_is_not_there_is_refused(name: str, layer: int, first: int) -> None:
    encoder = make_network(FAMILIES["bert"]).encoder
    with pytest.raises(ValueError, match=rf"taps\.{name} asks for layer {layer}; .* has layers {first} to 3"):
        encoder(Batch.from_ids([[1]]), Taps(**{name: (1, layer)}))
