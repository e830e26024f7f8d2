"""A GPU's attention, by flash attention and by the kernel for short sequences, is that of the true head size.

Flash attention is called through a wrapper, which is tested here against the kernel's definition. The kernel for
short sequences runs here in Triton's interpreter. On a GPU both are tested as they are.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen

from halfpint.model.attention import AttentionPlan, Backend, attend, plan_attention
from halfpint.model.backends import SHORT
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


def draw_qkv(num_tokens: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(num_tokens, 3, 3, size, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def _plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", plain_varlen_attn)


SHAPE = BatchShape(tokens=100, sequences=14, longest=16)


def batch_of(ids: list[list[int]], *, filled: bool) -> Batch:
    return Batch.from_ids(ids).fill(SHAPE) if filled else Batch.from_ids(ids)


def plan_of(backend: Backend, batch: Batch) -> AttentionPlan:
    return AttentionPlan(backend, batch, None)


@pytest.mark.usefixtures("_plain_kernel")
@pytest.mark.parametrize("size", SIZES)
@given(ids=ragged_ids(), filled=st.booleans())
@settings(max_examples=10)
def test_any_head_size_gives_its_own_attention(size: int, ids: list[list[int]], filled: bool) -> None:
    batch = batch_of(ids, filled=filled)
    qkv = draw_qkv(batch.num_tokens, size)
    flash, ragged = attend(qkv, plan_of("flash", batch)), attend(qkv, ragged_plan(batch))
    assert relative_error(flash, ragged) < 1e-12


@pytest.mark.usefixtures("_plain_kernel")
@pytest.mark.parametrize("size", SIZES)
def test_any_head_size_has_its_own_gradients(size: int) -> None:
    batch = Batch.from_ids(draw_ids([5, 1, 16]))
    qkv = draw_qkv(batch.num_tokens, size)
    flash, ragged = (
        torch.autograd.grad(attend(qkv, plan).square().sum(), qkv)[0]
        for plan in (plan_of("flash", batch), ragged_plan(batch))
    )
    assert relative_error(flash, ragged) < 1e-12


@pytest.fixture
def _interpreted() -> None:
    pytest.importorskip("triton")
    if "TRITON_INTERPRET" not in os.environ:
        pytest.skip("the kernel is compiled here: see the tests marked gpu")


LENGTHS = [5, 1, 16, 9], [0, 50, 64, 65, 0, 33, 32, 31], [130, 1, 7]
"""Below, at and above the tiles' sizes, with empty slots, and with more tiles than two."""


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("size", [26, 64, 1])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_short_attention_is_attention(size: int, lengths: list[int]) -> None:
    batch = Batch.from_ids(draw_ids([length for length in lengths if length]))
    cu_lengths = torch.tensor([0, *lengths]).cumsum(0).int()
    with_empty = dataclasses.replace(batch, cu_lengths=cu_lengths)
    qkv = draw_qkv(batch.num_tokens, size).detach().float().requires_grad_()
    ours, theirs = attend(qkv, plan_of("short", with_empty)), attend(qkv.double(), ragged_plan(batch))
    assert relative_error(ours.double(), theirs) < 1e-6
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(0))
    our, their = (torch.autograd.grad(out, qkv, weights.to(out.dtype))[0] for out in (ours, theirs))
    assert float((our - their).abs().max()) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["flash", "short"])
@pytest.mark.parametrize("size", [26, 32, 64, 8])
@pytest.mark.parametrize("lengths", [[5, 1, 16, 9], [50, 64, 65, 33, 32, 130]], ids=str)
def test_the_kernel_equals_double_precision(backend: Backend, size: int, lengths: list[int]) -> None:
    batch = Batch.from_ids(draw_ids(lengths))
    batch = batch.fill(BatchShape(tokens=400, sequences=14, longest=130))
    qkv = draw_qkv(batch.num_tokens, size).detach().bfloat16().requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    theirs = attend(exact, ragged_plan(batch))
    there = qkv.detach().cuda().requires_grad_()
    ours = attend(there, plan_of(backend, batch.to("cuda")))
    # bfloat16 keeps 8 bits; the weights and the result are each rounded once.
    assert relative_error(ours.cpu().double(), theirs) < 2**-6
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    (our,) = torch.autograd.grad(ours, there, weights.cuda())
    (their,) = torch.autograd.grad(theirs, exact, weights.double())
    assert relative_error(our.cpu().double(), their) < 2**-5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "longest", "head_size", "dropout", "backend"),
    [
        (torch.bfloat16, SHORT, 64, 0.0, "short"),
        (torch.float16, 16, 26, 0.0, "short"),
        (torch.bfloat16, SHORT + 1, 64, 0.0, "flash"),
        (torch.bfloat16, 16, 256, 0.0, "flash"),
        (torch.float32, 16, 64, 0.0, "padded"),
        (torch.bfloat16, 16, 64, 0.1, "padded"),
    ],
    ids=str,
)
def test_half_precision_on_cuda_is_never_padded(
    dtype: torch.dtype, longest: int, head_size: int, dropout: float, backend: Backend
) -> None:
    batch = dataclasses.replace(Batch.from_ids([[1, 2]]).to("cuda"), longest=longest)
    assert plan_attention(batch, dtype, head_size, dropout=dropout).backend == backend


@pytest.mark.gpu
@pytest.mark.parametrize("longest", [16, SHORT + 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_on_cuda_equals_double_precision(family: str, longest: int) -> None:
    network, batch = make_network(FAMILIES[family]), make_batch(FAMILIES[family], draw_ids([5, 1, 16, 9]))
    batch = dataclasses.replace(batch, longest=longest)
    with torch.no_grad():
        theirs = network.encoder(batch).hidden
        with torch.autocast("cuda", torch.bfloat16):
            ours = network.float().cuda().encoder(batch.to("cuda")).hidden
    similarity = F.cosine_similarity(ours.cpu().double(), theirs, dim=1)
    assert float(similarity.min()) > 0.995
