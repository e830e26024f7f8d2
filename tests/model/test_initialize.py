"""Fresh weights: a normal cut at two deviations, no bias, norms that do nothing."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.model.initialize import initialize
from halfpint.model.network import Network
from halfpint.model.norm import NoNorm
from halfpint.presets import PRESETS
from tests.model.samples import ALL_HEADS, FAMILIES

STD = 0.02
CUT_STD = 0.8796
"""Deviation of a standard normal cut at two; 71.5% of it lie within one, where the uncut normal has 68.3%."""


@cache
def draws() -> Tensor:
    layer = nn.Linear(1000, 1000)
    initialize(layer, STD)
    return layer.weight.detach().double().flatten() / STD


def make_fresh(config: EncoderConfig) -> Network:
    return Network(ModelConfig(config, ALL_HEADS))


def test_weights_have_the_deviation_of_the_cut_normal() -> None:
    assert float(draws().std()) == pytest.approx(CUT_STD, rel=0.005)
    assert float(draws().mean()) == pytest.approx(0, abs=0.005)


def test_weights_are_spread_like_the_cut_normal() -> None:
    normal = torch.distributions.Normal(0.0, 1.0)
    for bound in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5):
        below, cut = (normal.cdf(torch.tensor(each)).item() for each in (bound, -2.0))
        expected = (below - cut) / (1 - 2 * cut)
        assert float((draws() <= bound).double().mean()) == pytest.approx(expected, abs=0.0025)


def test_no_weight_lies_beyond_two_deviations() -> None:
    assert 1.99 < float(draws().abs().max()) <= 2 * (1 + 1e-6)


@pytest.mark.parametrize("std", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_matrix_of_a_network_is_drawn_so(family: str, std: float) -> None:
    sizes = {"vocab_size": 500, "hidden_size": 240, "num_positions": 128, "head_size": 64}
    wide = {"embedding_size": 64} if FAMILIES[family].embedding_projection != "none" else {"embedding_size": 240}
    blocks = {"num_heads": (3,) * FAMILIES[family].sharing.num_attention_blocks}
    blocks["ffn_size"] = (200,) * FAMILIES[family].sharing.num_ffn_blocks
    config = FAMILIES[family].replace(**sizes, **wide, **blocks, initializer_range=std)
    for name, parameter in make_fresh(config).named_parameters():
        if parameter.dim() < 2:
            continue
        assert float(parameter.detach().abs().max()) <= 2 * std * (1 + 1e-6), name
        if parameter.numel() > 8000:  # enough draws for two percent
            assert float(parameter.detach().std()) == pytest.approx(CUT_STD * std, rel=0.02), name


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_are_zero(family: str) -> None:
    network = make_fresh(FAMILIES[family])
    biases = [parameter for name, parameter in network.named_parameters() if name.endswith("bias")]
    assert biases
    assert not any(bias.any() for bias in biases)


def test_a_bias_is_zero_whatever_it_was() -> None:
    layer = nn.Linear(3, 4)
    nn.init.ones_(layer.bias)
    initialize(layer, STD)
    assert not layer.bias.any()


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_change_nothing(family: str) -> None:
    norms = [module for module in make_fresh(FAMILIES[family]).modules() if isinstance(module, nn.LayerNorm | NoNorm)]
    assert norms
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)


def test_no_norm_is_a_scale_and_a_shift() -> None:
    norm = NoNorm(3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.5, 0.0, -1.0]))
    assert norm(torch.tensor([[1.0, 1.0, 2.0]])).tolist() == [[1.5, 2.0, 5.0]]


def test_a_network_is_the_same_for_the_same_seed() -> None:
    def draw(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return make_fresh(FAMILIES["bert"]).state_dict()

    first, second, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["encoder.embeddings.words.weight"], other["encoder.embeddings.words.weight"])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_start_with_the_papers_deviation(name: str) -> None:
    assert PRESETS[name].config.initializer_range == STD
