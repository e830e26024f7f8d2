"""Linear layers give the same numbers whichever path computes them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from halfpint.config import Activation, ModelConfig
from halfpint.model.linear import Linear, linear, pack_for_inference
from tests.model.samples import ALL_HEADS, FAMILIES, draw_ids, make_batch, make_network, relative_error

ACTIVATIONS = (None, *get_args(Activation))
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""One rounding of the product and one of the activation."""


def draw(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return x.to(dtype), (weight / inputs**0.5).to(dtype), bias.to(dtype)


def by_definition(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> Tensor:
    functions = {
        None: lambda y: y,
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "relu": F.relu,
    }
    out = x.double() @ weight.double().t()
    return functions[activation](out if bias is None else out + bias.double())


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_precision_gives_the_activation_of_the_product(
    activation: Activation | None, dtype: torch.dtype, gradients: bool
) -> None:
    x, weight, bias = draw(40, 24, 31, dtype)
    for each in (bias, None):
        with torch.set_grad_enabled(gradients):
            ours = linear(x, weight, each, activation)
        assert ours.dtype == dtype
        assert relative_error(ours.double(), by_definition(x, weight, each, activation)) < ROUNDING[dtype]


@given(st.integers(0, 70), st.integers(1, 40), st.integers(1, 40), st.sampled_from(ACTIVATIONS))
def test_any_size_gives_the_activation_of_the_product(
    rows: int, inputs: int, outputs: int, activation: Activation | None
) -> None:
    x, weight, bias = draw(rows, inputs, outputs, torch.float32)
    with torch.no_grad():
        ours = linear(x, weight, bias, activation)
    theirs = by_definition(x, weight, bias, activation)
    # Not relative: of few outputs all may have cancelled to almost nothing. The inputs are of size one.
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=2e-6)


def test_columns_that_do_not_lie_together_are_read_right() -> None:
    x, weight, bias = draw(40, 24, 31, torch.float32)
    with torch.no_grad():
        ours = linear(x.t().contiguous().t(), weight, bias)
    assert relative_error(ours.double(), by_definition(x, weight, bias, None)) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_computes_the_same_with_and_without_gradients(family: str) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    network = make_network(config, torch.float32)
    batch = make_batch(config.encoder, draw_ids([5, 1, 16, 9]))
    with torch.autocast("cpu", torch.bfloat16):
        trained = network(batch)[1]
        with torch.no_grad():
            inferred = network(batch)[1]
    for kind, answer in trained.items():
        assert inferred[kind].dtype == answer.dtype
        assert relative_error(inferred[kind].float(), answer.float()) < 2**-5, kind


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_weights_give_the_same_answers(family: str, dtype: torch.dtype) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    network = make_network(config, torch.float32).to(dtype)
    batch = make_batch(config.encoder, draw_ids([5, 1, 16, 9]))
    with torch.inference_mode():
        plain = network(batch)[1]
        pack_for_inference(network)
        packed = network(batch)[1]
    for kind, answer in plain.items():
        assert relative_error(packed[kind].float(), answer.float()) < 4 * ROUNDING[dtype], kind


def test_packing_frees_the_plain_weight_and_refuses_to_be_moved() -> None:
    layer = Linear(24, 31)
    pack_for_inference(layer)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    with pytest.raises(ValueError, match="load the model again"):
        layer.to(torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("take", "word"),
    [(nn.Module.state_dict, "saved"), (copy.deepcopy, "copied"), (pickle.dumps, "copied")],
    ids=["state dict", "copy", "pickle"],
)
def test_packed_weights_are_left_out_of_nothing(family: str, take: Callable[[nn.Module], object], word: str) -> None:
    network = make_network(ModelConfig(FAMILIES[family], ALL_HEADS), torch.float32)
    take(network)
    pack_for_inference(network)
    with pytest.raises(ValueError, match=f"packed weights cannot be {word}; load the model again"):
        take(network)


def test_what_onednn_cannot_do_is_left_unpacked() -> None:
    layer = Linear(24, 31).double()
    pack_for_inference(layer)
    assert layer.packed is None
