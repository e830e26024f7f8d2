"""The kernel that ends a layer's halves is bias, dropout, residual and layer norm, one after the other.

It runs here in Triton's interpreter; on a GPU the tests marked `gpu` run it as it is.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from halfpint.model.fused_norm import _add_norm, add_norm

EPS = 1e-12
interpreted = pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="the kernel is compiled here: see gpu")
SIZES = [(7, 24), (40, 312), (9, 768), (3, 1), (2, 2100)]


def draw(tokens: int, width: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Of x, bias, residual, weight, shift, and of the gradient of what comes out."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(tokens, width), (width,), (tokens, width), (width,), (width,), (tokens, width)]
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def mask_of(tokens: int, width: int, dropout: float, seed: int, use: int, device: str = "cpu") -> Tensor:
    """What stays of ones."""
    zeros, row = torch.zeros(tokens, width, device=device), torch.zeros(width, device=device)
    number = torch.tensor([seed], device=device)
    summed = _add_norm(zeros + 1, row, zeros, row, row, number, EPS, dropout, use, True)[1]
    assert set(summed.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - dropout)))}
    return (summed > 0).float()


def by_steps(parts: tuple[Tensor, ...], mask: Tensor, dropout: float) -> Tensor:
    x, bias, residual, weight, shift = parts
    return F.layer_norm((x + bias) * mask / (1 - dropout) + residual, x.shape[1:], weight, shift, EPS)


@interpreted
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.6])
@pytest.mark.parametrize(("tokens", "width"), SIZES)
def test_it_is_the_operations_one_by_one(tokens: int, width: int, dropout: float) -> None:
    *parts, grad = draw(tokens, width)
    parts = tuple(part.requires_grad_() for part in parts)
    ours = add_norm(*parts, EPS, dropout, torch.tensor([11]), 3)
    exact = tuple(part.detach().double().requires_grad_() for part in parts)
    mask = mask_of(tokens, width, dropout, 11, 3) if dropout else torch.ones(tokens, width)
    theirs = by_steps(exact, mask.double(), dropout)
    if width > 1:  # the norm of one value is zero, however large its error
        assert float((ours - theirs).detach().abs().max()) < 1e-5
        pairs = zip(torch.autograd.grad(ours, parts, grad), torch.autograd.grad(theirs, exact, grad), strict=True)
        assert all(float((our - their).abs().max()) < 1e-4 * float(1 + their.abs().max()) for our, their in pairs)


@interpreted
def test_masks_drop_their_share_independently_of_place_and_use() -> None:
    tokens, width, dropout = 512, 256, 0.1
    masks = [mask_of(tokens, width, dropout, seed, use) for seed, use in ((5, 1), (5, 2), (6, 1), (2**61, 1))]
    noise = (tokens * width) ** -0.5
    for mask in masks:
        assert abs(float(mask.mean()) - 0.9) < 4 * 0.3 * noise
        # Rows and columns as a binomial would spread.
        for axis, count in ((0, tokens), (1, width)):
            deviation = float(mask.mean(dim=axis).std()) / (0.09 / count) ** 0.5
            assert 0.85 < deviation < 1.15
        flat = mask.flatten()
        for shift in (1, 2, 3, 8, width, width + 1):
            assert abs(correlation(flat[shift:], flat[:-shift])) < 4 * noise
    for first in range(len(masks)):
        for second in range(first):
            assert abs(correlation(masks[first].flatten(), masks[second].flatten())) < 4 * noise


def correlation(first: Tensor, second: Tensor) -> float:
    return float(np.corrcoef(first.numpy(), second.numpy())[0, 1])


@interpreted
def test_a_mask_is_that_of_its_seed_and_use() -> None:
    assert torch.equal(mask_of(20, 64, 0.3, 7, 1), mask_of(20, 64, 0.3, 7, 1))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("tokens", "width"), SIZES)
def test_without_gradients_it_answers_the_same_and_saves_nothing(
    tokens: int, width: int, dropout: float, dtype: torch.dtype
) -> None:
    parts = tuple(part.to(dtype) for part in draw(tokens, width)[:5])
    seed = torch.tensor([11])
    expected = add_norm(*parts, EPS, dropout, seed, 3)
    with torch.no_grad():
        assert torch.equal(add_norm(*parts, EPS, dropout, seed, 3), expected)
    out, *saved = _add_norm(*parts, seed, EPS, dropout, 3, False)
    assert torch.equal(out, expected)
    assert [each.numel() for each in saved] == [0, 0, 0]
    whole = _add_norm(*parts, seed, EPS, dropout, 3, True)
    assert torch.equal(whole[0], expected)
    assert [each.numel() for each in whole[1:]] == [tokens * width, tokens, tokens]


@interpreted
@pytest.mark.parametrize("grads", [True, False])
def test_it_is_one_program_with_and_without_gradients(grads: bool) -> None:
    *parts, grad = draw(7, 24)
    parts, seed = tuple(part.requires_grad_() for part in parts), torch.tensor([11])
    torch._dynamo.reset()
    compiled = torch.compile(add_norm, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(grads):
        ours, expected = (run(*parts, EPS, 0.1, seed, 3) for run in (compiled, add_norm))
    assert torch.equal(ours, expected)
    assert ours.requires_grad == grads
    if grads:
        pairs = zip(torch.autograd.grad(ours, parts, grad), torch.autograd.grad(expected, parts, grad), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


@interpreted
@pytest.mark.parametrize("saves", [True, False])
def test_its_shapes_are_those_that_a_compiler_is_told(saves: bool) -> None:
    parts = tuple(part.requires_grad_(saves) for part in draw(7, 24)[:5])
    torch.library.opcheck(_add_norm, (*parts, torch.tensor([11]), EPS, 0.1, 3, saves))


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("tokens", "width"), [(1000, 768), (77, 312), (64, 4096), (5, 1024)])
def test_on_a_gpu_inference_is_training_to_the_bit(tokens: int, width: int, dropout: float) -> None:
    parts = tuple(part.cuda().bfloat16() for part in draw(tokens, width)[:5])
    seed = torch.tensor([11], device="cuda")
    expected = add_norm(*parts, EPS, dropout, seed, 3)
    for run in (add_norm, torch.compile(add_norm, fullgraph=True)):
        with torch.no_grad():
            assert torch.equal(run(*parts, EPS, dropout, seed, 3), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("tokens", "width"), [(1000, 768), (77, 312), (64, 4096), (5, 1024)])
def test_on_a_gpu_it_equals_double_precision(tokens: int, width: int, dropout: float) -> None:
    *parts, grad = draw(tokens, width)
    there = tuple(part.cuda().bfloat16().requires_grad_() for part in parts)
    ours = add_norm(*there, EPS, dropout, torch.tensor([11], device="cuda"), 3)
    exact = tuple(part.detach().double().requires_grad_() for part in there)
    mask = torch.ones(tokens, width, device="cuda")
    if dropout:
        mask = mask_of(tokens, width, dropout, 11, 3, "cuda")
    theirs = by_steps(exact, mask.double(), dropout)
    assert float((ours - theirs).norm() / theirs.norm()) < 2**-7
    ours = torch.autograd.grad(ours, there, grad.cuda().bfloat16())
    theirs = torch.autograd.grad(theirs, exact, grad.cuda().double())
    for our, their in zip(ours, theirs, strict=True):
        assert float((our - their).norm() / their.norm()) < 2**-6
