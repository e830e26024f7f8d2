"""The wrapper around CUDA's flash attention gives the attention of the true head size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen

from halfpint.model.attention import AttentionPlan, attend, plan_attention
from halfpint.model.batch import Batch, BatchShape
from tests.model.samples import FAMILIES, draw_ids, make_batch, make_network, ragged_plan, relative_error
from tests.strategies import ragged_ids

SIZES = [26, 32, 64, 1, 8]
"""tinybert-4's, minilm-6's and bert-base's head sizes; the smallest; and the smallest that needs no padding."""


def plain_varlen_attn(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, /
) -> Tensor:
    """`varlen_attn` by its definition, with what torch 2.11 to 2.13 have in common; it scales by the size it sees."""
    assert query.shape == key.shape == value.shape
    assert query.shape[-1] % 8 == 0
    assert torch.equal(cu_seq_q, cu_seq_k)
    assert cu_seq_q.dtype == torch.int32
    assert max_q == max_k >= int(torch.diff(cu_seq_q).max())
    out = torch.zeros_like(query)
    for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
        q, k, v = (part[start:end].transpose(0, 1) for part in (query, key, value))
        weights = (q @ k.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(dim=-1)
        out[start:end] = (weights @ v).transpose(0, 1)
    return out


def draw_vectors(num_tokens: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    return [
        torch.randn(num_tokens, 3, size, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in ("query", "key", "value")
    ]


@pytest.fixture
def _plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", plain_varlen_attn)


SHAPE = BatchShape(tokens=100, sequences=14, longest=16)


def batch_of(ids: list[list[int]], *, filled: bool) -> Batch:
    return Batch.from_ids(ids).fill(SHAPE) if filled else Batch.from_ids(ids)


def flash_plan(batch: Batch) -> AttentionPlan:
    return AttentionPlan("flash", batch, None)


@pytest.mark.usefixtures("_plain_kernel")
@pytest.mark.parametrize("size", SIZES)
@given(ids=ragged_ids(), filled=st.booleans())
@settings(max_examples=10)
def test_any_head_size_gives_its_own_attention(size: int, ids: list[list[int]], filled: bool) -> None:
    batch = batch_of(ids, filled=filled)
    vectors = draw_vectors(batch.num_tokens, size)
    flash, ragged = (attend(*vectors, plan) for plan in (flash_plan(batch), ragged_plan(batch)))
    assert relative_error(flash, ragged) < 1e-12


@pytest.mark.usefixtures("_plain_kernel")
@pytest.mark.parametrize("size", SIZES)
def test_any_head_size_has_its_own_gradients(size: int) -> None:
    batch = Batch.from_ids(draw_ids([5, 1, 16]))
    vectors = draw_vectors(batch.num_tokens, size)
    flash, ragged = (
        torch.autograd.grad(attend(*vectors, plan).square().sum(), vectors)
        for plan in (flash_plan(batch), ragged_plan(batch))
    )
    assert max(relative_error(ours, theirs) for ours, theirs in zip(flash, ragged, strict=True)) < 1e-12


@pytest.mark.gpu
@pytest.mark.parametrize("size", [26, 32, 64, 8])
@pytest.mark.parametrize("filled", [False, True])
def test_the_kernel_equals_double_precision(size: int, filled: bool) -> None:
    batch = batch_of(draw_ids([5, 1, 16, 9]), filled=filled)
    vectors = [vector.detach().bfloat16().requires_grad_() for vector in draw_vectors(batch.num_tokens, size)]
    exact = [vector.detach().double().requires_grad_() for vector in vectors]
    theirs = attend(*exact, ragged_plan(batch))
    there = [vector.detach().cuda().requires_grad_() for vector in vectors]
    ours = attend(*there, flash_plan(batch.to("cuda")))
    # bfloat16 keeps 8 bits; the weights and the result are each rounded once.
    assert relative_error(ours.cpu().double(), theirs) < 2**-6
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    gradients = torch.autograd.grad(ours, there, weights.cuda())
    expected = torch.autograd.grad(theirs, exact, weights.double())
    for our, their in zip(gradients, expected, strict=True):
        assert relative_error(our.cpu().double(), their) < 2**-5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "exact", "backend"),
    [
        (torch.bfloat16, False, "flash"),
        (torch.float16, False, "flash"),
        (torch.float32, False, "padded"),
        (torch.bfloat16, True, "padded"),
    ],
    ids=str,
)
def test_half_precision_on_cuda_attends_with_flash(dtype: torch.dtype, exact: bool, backend: str) -> None:
    batch = Batch.from_ids([[1, 2]]).to("cuda")
    assert plan_attention(batch, dtype, exact=exact, padding=False).backend == backend


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_on_cuda_equals_double_precision(family: str) -> None:
    network, batch = make_network(FAMILIES[family]), make_batch(FAMILIES[family], draw_ids([5, 1, 16, 9]))
    theirs = network.encoder(batch).hidden
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        ours = network.float().cuda().encoder(batch.to("cuda")).hidden
    similarity = F.cosine_similarity(ours.cpu().double(), theirs, dim=1)
    assert float(similarity.min()) > 0.995
