"""Attention over short ragged sequences on a GPU, in Triton: for texts of tens of tokens.

Flash attention works in tiles of 128 tokens, of which a sequence of 50 leaves most empty. Here a program holds a
tile of at most 64 queries of one sequence and head, and walks over that sequence's keys alone. What is notable:
- queries, keys and values are read where the projection wrote them, and their gradients are written side by side
  in one tensor, so that nothing is split, padded or joined around the kernel;
- head sizes need not be a multiple of anything: what a tile has too much is masked;
- in the backward pass the program of a tile gathers the gradients of its keys and values and, as queries, of
  itself; for a sequence of one tile all three come out of one set of weights.

Letters in comments: T tokens, h heads, d head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


@triton.jit
def _tile(base, rows, length, stride, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of one head, zero past the sequence's end and past the head's size."""
    columns = tl.arange(0, WIDTH)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    return tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _store(base, values, rows, length, stride, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    tl.store(base + rows[:, None] * stride + columns[None, :], values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _attend(
    qkv,  # (T, 3, h, d)
    out,  # (T, h, d)
    log_sums,  # (h, T)
    cu_lengths,
    num_tokens,
    scale,  # log2(e) / √d
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_lengths + slot).to(tl.int64)
    length = (tl.load(cu_lengths + slot + 1) - start).to(tl.int32)
    first = tl.program_id(1) * BLOCK
    if first < length:
        rows = first + tl.arange(0, BLOCK)
        stride = 3 * HEADS * SIZE
        queries = qkv + start * stride + head * SIZE
        keys, values = queries + HEADS * SIZE, queries + 2 * HEADS * SIZE
        query = _tile(queries, rows, length, stride, SIZE, WIDTH)
        total = tl.zeros([BLOCK], tl.float32)
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        attended = tl.zeros([BLOCK, WIDTH], tl.float32)
        for begin in range(0, length, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            key = _tile(keys, columns, length, stride, SIZE, WIDTH)
            value = _tile(values, columns, length, stride, SIZE, WIDTH)
            scores = tl.dot(query, tl.trans(key)) * scale
            scores = tl.where(columns[None, :] < length, scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            weights = tl.exp2(scores - higher[:, None])
            kept = tl.exp2(highest - higher)
            total = total * kept + tl.sum(weights, 1)
            attended = attended * kept[:, None] + tl.dot(weights.to(value.dtype), value)
            highest = higher
        tl.store(log_sums + head * num_tokens + start + rows, highest + tl.log2(total), mask=rows < length)
        result = out + start * HEADS * SIZE + head * SIZE
        _store(result, attended / total[:, None], rows, length, HEADS * SIZE, SIZE, WIDTH)


@triton.jit
def _weights(query, key, value, grad, log_sum, delta, columns, length, scale):
    """The attention weights of a tile, and the gradient of its scores (without 1 / √d)."""
    weights = tl.exp2(tl.dot(query, tl.trans(key)) * scale - log_sum[:, None])
    weights = tl.where(columns[None, :] < length, weights, 0.0)
    grad_scores = weights * (tl.dot(grad, tl.trans(value)) - delta[:, None])
    return weights.to(query.dtype), grad_scores.to(query.dtype)


@triton.jit
def _attend_backward(
    qkv,  # (T, 3, h, d)
    out,  # (T, h, d)
    log_sums,  # (h, T)
    grad_out,  # (T, h, d)
    grad_qkv,  # (T, 3, h, d)
    cu_lengths,
    num_tokens,
    scale,  # log2(e) / √d
    grad_scale,  # 1 / √d
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    start = tl.load(cu_lengths + slot).to(tl.int64)
    length = (tl.load(cu_lengths + slot + 1) - start).to(tl.int32)
    first = tl.program_id(1) * BLOCK
    if first < length:
        rows = first + tl.arange(0, BLOCK)
        stride, narrow = 3 * HEADS * SIZE, HEADS * SIZE
        queries = qkv + start * stride + head * SIZE
        keys, values = queries + narrow, queries + 2 * narrow
        outs, grads = out + start * narrow + head * SIZE, grad_out + start * narrow + head * SIZE
        sums = log_sums + head * num_tokens + start
        query = _tile(queries, rows, length, stride, SIZE, WIDTH)
        key = _tile(keys, rows, length, stride, SIZE, WIDTH)
        value = _tile(values, rows, length, stride, SIZE, WIDTH)
        grad = _tile(grads, rows, length, narrow, SIZE, WIDTH)
        attended = _tile(outs, rows, length, narrow, SIZE, WIDTH)
        delta = tl.sum(grad.to(tl.float32) * attended.to(tl.float32), 1)
        log_sum = tl.load(sums + rows, mask=rows < length, other=0.0)
        # This tile with itself: its gradients as queries, as keys and as values.
        weights, grad_scores = _weights(query, key, value, grad, log_sum, delta, rows, length, scale)
        grad_value = tl.dot(tl.trans(weights), grad)
        grad_key = tl.dot(tl.trans(grad_scores), query)
        grad_query = tl.dot(grad_scores, key)
        for begin in range(0, length, BLOCK):
            if begin != first:
                others = begin + tl.arange(0, BLOCK)
                # As keys and values of the other tile's queries …
                query_2 = _tile(queries, others, length, stride, SIZE, WIDTH)
                grad_2 = _tile(grads, others, length, narrow, SIZE, WIDTH)
                attended = _tile(outs, others, length, narrow, SIZE, WIDTH)
                delta_2 = tl.sum(grad_2.to(tl.float32) * attended.to(tl.float32), 1)
                log_sum_2 = tl.load(sums + others, mask=others < length, other=0.0)
                weights, grad_scores = _weights(query_2, key, value, grad_2, log_sum_2, delta_2, rows, length, scale)
                grad_value += tl.dot(tl.trans(weights), grad_2)
                grad_key += tl.dot(tl.trans(grad_scores), query_2)
                # … and as queries of its keys.
                key_2 = _tile(keys, others, length, stride, SIZE, WIDTH)
                value_2 = _tile(values, others, length, stride, SIZE, WIDTH)
                weights, grad_scores = _weights(query, key_2, value_2, grad, log_sum, delta, others, length, scale)
                grad_query += tl.dot(grad_scores, key_2)
        result = grad_qkv + start * stride + head * SIZE
        _store(result, grad_query * grad_scale, rows, length, stride, SIZE, WIDTH)
        _store(result + narrow, grad_key * grad_scale, rows, length, stride, SIZE, WIDTH)
        _store(result + 2 * narrow, grad_value, rows, length, stride, SIZE, WIDTH)


def attend_short(qkv: Tensor, cu_lengths: Tensor, longest: int) -> Tensor:
    """softmax(q · kᵀ / √d) · v within every sequence: (T, 3, h, d) → (T, h, d)."""
    out: Tensor = _attend_short(qkv.contiguous(), cu_lengths, longest)[0]
    return out


@torch.library.custom_op("halfpint::attend_short", mutates_args=())
def _attend_short(qkv: Tensor, cu_lengths: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """The attended values, and the logarithm of every query's sum of weights, which the backward pass needs."""
    num_tokens, _, heads, size = qkv.shape
    out = qkv.new_empty(num_tokens, heads, size)
    log_sums = qkv.new_empty(heads, num_tokens, dtype=torch.float32)
    grid, options = _launch(cu_lengths, longest, heads, size)
    _attend[grid](qkv, out, log_sums, cu_lengths, num_tokens, LOG2_E * size**-0.5, **options)
    return out, log_sums


@torch.library.custom_op("halfpint::attend_short_backward", mutates_args=())
def _attend_short_backward(
    grad_out: Tensor, qkv: Tensor, out: Tensor, log_sums: Tensor, cu_lengths: Tensor, longest: int
) -> Tensor:
    num_tokens, _, heads, size = qkv.shape
    grad_qkv = torch.empty_like(qkv)
    grid, options = _launch(cu_lengths, longest, heads, size)
    _attend_backward[grid](
        qkv, out, log_sums, grad_out, grad_qkv, cu_lengths, num_tokens, LOG2_E * size**-0.5, size**-0.5, **options
    )
    return grad_qkv


def _launch(cu_lengths: Tensor, longest: int, heads: int, size: int) -> tuple[tuple[int, int], dict[str, int]]:
    """One program for each tile that some sequence may have; those past a sequence's end return at once."""
    block = 32 if longest <= 32 else 64
    grid = ((len(cu_lengths) - 1) * heads, triton.cdiv(longest, block))
    width = max(16, triton.next_power_of_2(size))
    return grid, {"HEADS": heads, "SIZE": size, "WIDTH": width, "BLOCK": block, "num_warps": 4, "num_stages": 2}


@_attend_short.register_fake
def _(qkv: Tensor, cu_lengths: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    num_tokens, _, heads, size = qkv.shape
    return qkv.new_empty(num_tokens, heads, size), qkv.new_empty(heads, num_tokens, dtype=torch.float32)


@_attend_short_backward.register_fake
def _(grad_out: Tensor, qkv: Tensor, out: Tensor, log_sums: Tensor, cu_lengths: Tensor, longest: int) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx, inputs, output) -> None:
    qkv, cu_lengths, ctx.longest = inputs
    ctx.save_for_backward(qkv, *output, cu_lengths)


def _differentiate(ctx, grad_out: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return _attend_short_backward(grad_out.contiguous(), *ctx.saved_tensors, ctx.longest), None, None


_attend_short.register_autograd(_differentiate, setup_context=_keep)
