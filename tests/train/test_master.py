"""Flat float32 weights with bf16 copies: AdamW's arithmetic, nothing lost on the way in and out."""

from __future__ import annotations

import pytest
import torch

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.model.network import Network
from halfpint.train.master import MasterUpdate, MasterWeights
from halfpint.train.optimizers import make_optimizer
from halfpint.train.settings import Settings
from tests.train.samples import HEADS, LONGEST, VOCABULARY

SETTINGS = Settings(lr=1e-2, weight_decay=0.1, clip=1.0, precision="bf16")


def make_network() -> Network:
    torch.manual_seed(0)
    encoder = EncoderConfig.uniform(
        vocab_size=VOCABULARY, num_layers=2, hidden_size=24, num_heads=3, ffn_size=40, num_positions=LONGEST
    )
    return Network(ModelConfig(encoder, (HEADS["sequence"],)))


def state_of(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def test_in_and_out_again_nothing_is_lost() -> None:
    network = make_network()
    before = state_of(network)
    weights = MasterWeights(network)
    assert weights.named().keys() == before.keys()
    weights.release()
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_matrices_compute_in_bf16_and_norms_in_float32() -> None:
    network = make_network()
    MasterWeights(network)
    for name, parameter in network.named_parameters():
        assert parameter.dtype == (torch.float32 if "norm" in name else torch.bfloat16), name


def set_gradients(network: Network, step: int, unreached: str) -> None:
    generator = torch.Generator().manual_seed(step)
    for name, parameter in network.named_parameters():
        # Exact in bf16, so that both sides see the same.
        grad = torch.randn(parameter.shape, generator=generator).bfloat16()
        parameter.grad = None if unreached in name else grad.to(parameter.dtype)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_updates_are_those_of_torch_and_what_no_loss_reaches_stays(clip: float) -> None:
    settings = Settings(lr=1e-2, weight_decay=0.1, clip=clip, precision="bf16")
    ours, theirs = make_network(), make_network()
    start = state_of(theirs)
    weights = MasterWeights(ours)
    update, optimizer = MasterUpdate(weights, settings), make_optimizer(theirs.named_parameters(), settings)
    for step in range(4):
        set_gradients(ours, step, "pooler")
        set_gradients(theirs, step, "pooler")
        weights.gather_gradients()
        update(1e-2 / (step + 1))
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        optimizer.step()
    expected = theirs.state_dict()
    for name, value in weights.named().items():
        assert torch.allclose(value, expected[name], rtol=1e-5, atol=1e-6), name
    assert torch.equal(weights.named()["encoder.pooler.weight"], start["encoder.pooler.weight"])
    copies = ours.state_dict()
    assert all(torch.equal(copies[name], value.to(copies[name].dtype)) for name, value in weights.named().items())


def test_a_checkpoint_brings_weights_and_moments_back() -> None:
    def advance(weights: MasterWeights, network: Network, update: MasterUpdate, steps: range) -> None:
        for step in steps:
            set_gradients(network, step, "nothing")
            weights.gather_gradients()
            update(1e-2)

    first, second = make_network(), make_network()
    weights, other = MasterWeights(first), MasterWeights(second)
    update, other_update = MasterUpdate(weights, SETTINGS), MasterUpdate(other, SETTINGS)
    advance(weights, first, update, range(3))
    other.load({name: value.clone() for name, value in weights.named().items()})
    other_update.restore({name: value.clone() for name, value in update.tensors().items()})
    advance(weights, first, update, range(3, 5))
    advance(other, second, other_update, range(3, 5))
    assert torch.equal(weights.values, other.values)
