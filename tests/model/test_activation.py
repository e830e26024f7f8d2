"""The activations as compiled GPU code computes them are the activations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from halfpint.model.activation import activate, gelu, gelu_tanh

X = torch.linspace(-12, 12, 100_001, dtype=torch.float64)
ROUNDING = 4e-6
"""A few of float32's steps at 12."""


@pytest.mark.parametrize(("ours", "approximate"), [(gelu, "none"), (gelu_tanh, "tanh")], ids=["erf", "tanh"])
def test_values_and_gradients_are_exact_to_float32(ours, approximate: str) -> None:
    single, double = X.float().requires_grad_(), X.clone().requires_grad_()
    mine, theirs = ours(single), F.gelu(double, approximate=approximate)
    assert float((mine.double() - theirs).detach().abs().max()) < ROUNDING
    (my,), (their,) = torch.autograd.grad(mine.sum(), single), torch.autograd.grad(theirs.sum(), double)
    assert float((my.double() - their).abs().max()) < ROUNDING


@pytest.mark.parametrize("ours", [gelu, gelu_tanh], ids=["erf", "tanh"])
def test_extremes_are_finite(ours) -> None:
    x = torch.tensor([-1e9, -1e4, 1e4, 1e9], requires_grad=True)
    y = ours(x)
    assert torch.equal(y, torch.tensor([0.0, 0.0, 1e4, 1e9]))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0, 0, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_compiled_half_precision_rounds_as_torch_does(activation: str) -> None:
    x = X.to("cuda", torch.bfloat16)
    compiled = torch.compile(lambda values: activate(values, activation))(x)
    theirs = activate(x, activation)
    # Far below zero the values themselves are within float32's rounding of zero.
    assert float((compiled == theirs)[x > -3].float().mean()) > 0.99
    assert torch.allclose(compiled, theirs, rtol=2**-7, atol=1e-6)
