"""Dropout on the CPU: the rate it is told, values scaled so that their mean stays, gradients of what was kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from halfpint.model.dropout import drop


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
def test_the_share_that_is_dropped_and_the_scale(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    out = drop(torch.ones(1000, 1001, dtype=dtype), rate)
    kept = out[out != 0]
    # Five standard deviations of a million draws.
    assert abs(1 - len(kept) / out.numel() - rate) < 5 * (rate * (1 - rate) / out.numel()) ** 0.5
    assert kept.unique().tolist() == [pytest.approx(1 / (1 - rate), rel=5e-3 if dtype is torch.bfloat16 else 2e-4)]


def test_values_are_dropped_independently_of_their_neighbours() -> None:
    torch.manual_seed(0)
    gone = (drop(torch.ones(4_000_000), 0.25) == 0).float() - 0.25
    for distance in range(1, 9):
        assert abs(float((gone[:-distance] * gone[distance:]).mean())) < 5 * 0.1875 / 2000


def test_no_two_calls_drop_the_same_and_a_seed_does() -> None:
    ones = torch.ones(1000)
    torch.manual_seed(7)
    first, second = drop(ones, 0.5), drop(ones, 0.5)
    torch.manual_seed(7)
    assert torch.equal(drop(ones, 0.5), first)
    assert not torch.equal(first, second)


def test_gradients_pass_where_values_do() -> None:
    x = torch.randn(13, 7, requires_grad=True)
    out = drop(x, 0.3)
    out.sum().backward()
    assert torch.equal(x.grad == 0, out == 0)
    assert torch.allclose(x.grad * x, out)


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped_without_a_rate_or_in_inference(rate: float, training: bool) -> None:
    x = torch.randn(5)
    assert drop(x, rate, training) is x


def test_a_rate_of_one_drops_all_as_torch_does() -> None:
    x = torch.randn(5)
    assert torch.equal(drop(x, 1.0), F.dropout(x, 1.0))
