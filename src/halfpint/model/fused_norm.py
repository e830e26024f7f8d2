"""norm(dropout(x + bias) + residual) on a GPU, in Triton: how every half of a layer ends, in one pass each way.

What is notable:
- a compiler spends more time on dropout's random numbers than on all the rest: Philox makes four words and it uses
  one. Here a word is a hash of the value's place, a seed of the forward pass and the number of the use; nothing of it
  is stored, the backward pass hashes again;
- the backward pass gathers the gradients of the norm's weights and of the bias while it reads what it needs for the
  states, where a compiler reads everything once more for each of them;
- what only the backward pass reads is not stored where no gradients are taken;
- arithmetic is float32 throughout; what is stored is of the states' precision.

Letters in comments: T tokens, H width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 264
"""Of a backward pass: two for each multiprocessor of the largest GPUs of their day."""
TILE = 4096
"""Values of a program's tile, about."""


@triton.jit
def kept(places, seed, use, threshold):
    """Which values stay: those whose hash reaches the threshold (the rounds are those of Wellons' `lowbias32`)."""
    key = seed.to(tl.uint32) + use.to(tl.uint32) * 0x3C6EF372
    word = places.to(tl.uint32) ^ key
    word = (word ^ (word >> 16)) * 0x21F0AAAD
    # Once more within, or the masks of two keys would be permutations of each other.
    word = word + (key ^ (key >> 11)) * 0x2545F491
    word = (word ^ (word >> 15)) * 0x735A2D97
    return (word ^ (word >> 15)) >= threshold.to(tl.uint32)


@triton.jit(do_not_specialize=["use"])
def _forward(
    x, bias, residual, weight, shift, seed,
    out, summed, means, deviations,  # (T, H), (T, H), (T,), (T,): of what was normed, mean and 1 / deviation
    num_rows, use, threshold, scale, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr, SAVES: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    mask = (rows < num_rows)[:, None] & inside[None, :]
    places = rows[:, None] * WIDTH + columns[None, :]
    values = tl.load(x + places, mask=mask, other=0.0).to(tl.float32)
    values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    if DROPS:
        values = tl.where(kept(places, tl.load(seed), use, threshold), values * scale, 0.0)
    values += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
    stored = values.to(summed.dtype.element_ty)
    if SAVES:
        tl.store(summed + places, stored, mask=mask)
    # What is stored is normed, so that the backward pass sees the same; rounded alike where nothing is stored.
    values = stored.to(tl.float32)
    mean = tl.sum(tl.where(mask, values, 0.0), 1) / WIDTH
    centred = tl.where(mask, values - mean[:, None], 0.0)
    deviation = 1 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    normed = centred * deviation[:, None]
    normed = normed * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    normed += tl.load(shift + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=mask)
    if SAVES:
        tl.store(means + rows, mean, mask=rows < num_rows)
        tl.store(deviations + rows, deviation, mask=rows < num_rows)


@triton.jit(do_not_specialize=["use"])
def _backward(
    grad_out, summed, means, deviations, weight, seed,
    grad_x, grad_residual, partial,  # (T, H), (T, H), (3, programs, H): of weight, shift and bias
    num_rows, use, threshold, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    sum_weight = tl.zeros([BLOCK], tl.float32)
    sum_shift = tl.zeros([BLOCK], tl.float32)
    sum_bias = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        there = rows < num_rows
        mask = there[:, None] & inside[None, :]
        places = rows[:, None] * WIDTH + columns[None, :]
        grad = tl.load(grad_out + places, mask=mask, other=0.0).to(tl.float32)
        values = tl.load(summed + places, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(means + rows, mask=there, other=0.0)
        deviation = tl.load(deviations + rows, mask=there, other=0.0)
        normed = tl.where(mask, (values - mean[:, None]) * deviation[:, None], 0.0)
        sum_weight += tl.sum(grad * normed, 0)
        sum_shift += tl.sum(grad, 0)
        grad = grad * gain[None, :]
        along = tl.sum(grad * normed, 1) / WIDTH
        level = tl.sum(grad, 1) / WIDTH
        grad = (grad - level[:, None] - normed * along[:, None]) * deviation[:, None]
        tl.store(grad_residual + places, grad.to(grad_residual.dtype.element_ty), mask=mask)
        if DROPS:
            grad = tl.where(kept(places, tl.load(seed), use, threshold), grad * scale, 0.0)
            tl.store(grad_x + places, grad.to(grad_x.dtype.element_ty), mask=mask)
        sum_bias += tl.sum(tl.where(mask, grad, 0.0), 0)
    size = tl.num_programs(0) * WIDTH
    here = partial + tl.program_id(0) * WIDTH + columns
    tl.store(here, sum_weight, mask=inside)
    tl.store(here + size, sum_shift, mask=inside)
    tl.store(here + 2 * size, sum_bias, mask=inside)


def add_norm(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dropout: float,
    seed: Tensor,
    use: int,
) -> Tensor:
    """norm(dropout(x + bias) + residual), (T, H), by a layer norm with this weight and shift.

    `seed` is a number on the device, int64, drawn for each forward pass; `use` tells its uses apart.
    """
    saves = torch.is_grad_enabled()
    x, residual = x.contiguous(), residual.contiguous()
    out: Tensor = _add_norm(x, bias, residual, weight, shift, seed, eps, dropout, use, saves)[0]
    return out


@torch.library.custom_op("halfpint::add_norm", mutates_args=())
def _add_norm(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    weight: Tensor,
    shift: Tensor,
    seed: Tensor,
    eps: float,
    dropout: float,
    use: int,
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What comes out; and for the backward pass what was normed, its means and the inverse of its deviations.

    These are empty unless it `saves` them.
    """
    num_rows, width = x.shape
    out, summed, means, deviations = _empty_outputs(x, saves)
    sizes = _sizes(width)
    _forward[(triton.cdiv(num_rows, sizes["ROWS"]),)](
        x, bias, residual, weight, shift, seed, out, summed, means, deviations,
        num_rows, use, *_odds(dropout), eps, **sizes, DROPS=dropout > 0, SAVES=saves,
    )  # fmt: skip
    return out, summed, means, deviations


def _empty_outputs(x: Tensor, saves: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    summed = torch.empty_like(x) if saves else x.new_empty(0)
    means, deviations = (x.new_empty(len(x) if saves else 0, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), summed, means, deviations


@torch.library.custom_op("halfpint::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_out: Tensor,
    summed: Tensor,
    means: Tensor,
    deviations: Tensor,
    weight: Tensor,
    seed: Tensor,
    dropout: float,
    use: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x (empty where it is that of the residual), of the residual, and of weight, shift and bias: (3, H)."""
    num_rows, width = summed.shape
    grad_residual = torch.empty_like(summed)
    grad_x = torch.empty_like(summed) if dropout else summed.new_empty(0)
    sizes = _sizes(width)
    programs = min(PROGRAMS, triton.cdiv(num_rows, sizes["ROWS"]))
    partial = summed.new_empty(3, programs, width, dtype=torch.float32)
    _backward[(programs,)](
        grad_out, summed, means, deviations, weight, seed, grad_x, grad_residual, partial,
        num_rows, use, *_odds(dropout), **sizes, DROPS=dropout > 0,
    )  # fmt: skip
    return grad_x, grad_residual, partial.sum(dim=1)


def _sizes(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "ROWS": max(1, TILE // block), "num_warps": 4 if block <= TILE // 2 else 8}


def _odds(dropout: float) -> tuple[int, float]:
    """Hashes from here on are kept, and what the kept values are multiplied with."""
    threshold = round(dropout * 2**32)
    # A kernel's whole numbers are signed; as an unsigned one it is the same word.
    return threshold - 2**32 if threshold >= 2**31 else threshold, 1 / (1 - dropout)


@_add_norm.register_fake
def _(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    weight: Tensor,
    shift: Tensor,
    seed: Tensor,
    eps: float,
    dropout: float,
    use: int,
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_outputs(x, saves)


@_add_norm_backward.register_fake
def _(
    grad_out: Tensor,
    summed: Tensor,
    means: Tensor,
    deviations: Tensor,
    weight: Tensor,
    seed: Tensor,
    dropout: float,
    use: int,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = torch.empty_like(summed) if dropout else summed.new_empty(0)
    return grad_x, torch.empty_like(summed), summed.new_empty(3, summed.shape[1], dtype=torch.float32)


def _keep(ctx, inputs, output) -> None:
    _, bias, _, weight, shift, seed, _, ctx.dropout, ctx.use, saves = inputs
    assert saves, "gradients are wanted of what nothing was saved for"
    _, summed, means, deviations = output
    ctx.dtypes = bias.dtype, weight.dtype, shift.dtype
    ctx.save_for_backward(summed, means, deviations, weight, seed)


def _differentiate(ctx, grad_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_residual, sums = _add_norm_backward(grad_out.contiguous(), *ctx.saved_tensors, ctx.dropout, ctx.use)
    bias, weight, shift = ctx.dtypes
    of_x = grad_x if ctx.dropout else grad_residual
    return of_x, sums[2].to(bias), grad_residual, sums[0].to(weight), sums[1].to(shift), *[None] * 5


_add_norm.register_autograd(_differentiate, setup_context=_keep)
