"""The losses of the tasks against their formulas in NumPy, sequence by sequence; filler counts nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halfpint.config import EmbeddingHead, HeadConfig, SequenceHead, SpanHead
from halfpint.data.loader import make_batch
from halfpint.model.batch import FILLER, IGNORED, Batch, BatchShape
from halfpint.model.encoder import Output
from halfpint.objectives.objective import Seen
from halfpint.objectives.task import TEMPERATURE, TaskObjective, log_sum_exp
from tests.train.samples import HEADS, draw_rows

SHAPE = BatchShape(tokens=600, sequences=60, longest=16)
COLUMNS = {"sequence": 3, "multi_label": 2, "regression": 1, "token": 2, "span": 2}


def softmax_loss(scores: np.ndarray, label: int) -> float:
    highest = scores.max()
    return float(np.log(np.exp(scores - highest).sum()) + highest - scores[label])


def draw_scores(kind: str, batch: Batch) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "embedding":
        vectors = torch.randn(batch.num_slots, 8, generator=generator)
        return torch.nn.functional.normalize(vectors, dim=1)
    if kind == "choice":
        return torch.randn(batch.num_slots, generator=generator)
    over = batch.num_tokens if kind in ("token", "span") else batch.num_slots
    return torch.randn(over, COLUMNS[kind], generator=generator)


def terms(kind: str, scores: np.ndarray, batch: Batch) -> list[float]:
    """The loss of every labelled thing, one after the other."""
    real = np.flatnonzero(batch.row.numpy() != FILLER)
    labels = batch.per_slot["label"].numpy() if "label" in batch.per_slot else None
    cu = batch.cu_lengths.tolist()
    match kind:
        case "sequence":
            return [softmax_loss(scores[slot], labels[slot]) for slot in real]
        case "multi_label":
            return [float(np.mean(np.log1p(np.exp(-scores[s] * (2 * labels[s] - 1))))) for s in real]
        case "regression":
            return [float((scores[slot, 0] - labels[slot]) ** 2) for slot in real]
        case "token":
            words = batch.per_token["label"].numpy()
            return [softmax_loss(scores[index], words[index]) for index in np.flatnonzero(words != IGNORED)]
        case "span":
            return [
                0.5 * sum(softmax_loss(scores[cu[s] : cu[s + 1], end], labels[s, end]) for end in (0, 1)) for s in real
            ]
        case "choice":
            return [softmax_loss(scores[start : start + 3], labels[start]) for start in real[::3]]
    seconds = real[1::2]
    return [softmax_loss(scores[first] @ scores[seconds].T / TEMPERATURE, row) for row, first in enumerate(real[::2])]


def loss_of(head: HeadConfig, scores: Tensor, batch: Batch, **options: Any) -> tuple[Tensor, Tensor]:
    objective = TaskObjective(head, **options)
    seen = Seen(Output(torch.empty(0), None), {head.kind: scores})
    return objective.losses(seen, batch)["task"], objective.counts(batch)["task"]


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_a_loss_is_its_formula(kind: str, filled: bool) -> None:
    batch = make_batch(draw_rows(kind, 12))
    batch = batch.fill(SHAPE) if filled else batch
    scores = draw_scores(kind, batch).requires_grad_()
    total, count = loss_of(HEADS[kind], scores, batch)
    expected = terms(kind, scores.detach().numpy().astype(np.float64), batch)
    assert float(count) == len(expected)
    assert float(total.detach()) == pytest.approx(sum(expected), rel=1e-5)
    (gradient,) = torch.autograd.grad(total, scores)
    assert gradient.isfinite().all()
    if kind not in ("span", "token"):
        assert not gradient[batch.row == FILLER].any()


def test_class_weights_weigh_terms_and_count() -> None:
    batch = make_batch(draw_rows("sequence", 12)).fill(SHAPE)
    scores, weights = draw_scores("sequence", batch), (0.5, 2.0, 1.0)
    total, count = loss_of(HEADS["sequence"], scores, batch, class_weights=weights)
    ours = torch.nn.functional.cross_entropy(
        scores, batch.per_slot["label"], torch.tensor(weights), ignore_index=IGNORED
    )
    assert float(total / count) == pytest.approx(float(ours))


def test_a_score_for_no_answer_has_a_loss_of_its_own() -> None:
    encoded = draw_rows("span", 6)
    encoded.per_sequence["label"][::2] = 0
    batch = make_batch(encoded).fill(SHAPE)
    scores = torch.randn(batch.num_tokens, 3)
    plain, _ = loss_of(SpanHead(), scores[:, :2], batch)
    total, _ = loss_of(SpanHead(no_answer=True), scores, batch)
    absent = scores[batch.first_tokens()[:6], 2]
    own = torch.nn.functional.binary_cross_entropy_with_logits(
        absent, torch.tensor([1.0, 0, 1, 0, 1, 0]), reduction="sum"
    )
    assert float(total - plain) == pytest.approx(float(own), rel=1e-5)


def test_a_third_text_of_a_row_is_one_more_candidate() -> None:
    rows = draw_rows("embedding", 8)
    triplets = make_batch(rows)
    triplets = Batch(**{**vars(triplets), "row": torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5])[:16]})
    vectors = draw_scores("embedding", triplets)
    total, count = loss_of(EmbeddingHead(), vectors, triplets)
    others = [1, 2, 4, 5, 7, 8, 10, 11, 13, 14]
    scores = (vectors @ vectors.T / TEMPERATURE).numpy().astype(np.float64)
    expected = [softmax_loss(scores[first, others], others.index(first + 1)) for first in (0, 3, 6, 9, 12)]
    assert float(total) == pytest.approx(sum(expected), rel=1e-5)
    assert float(count) == 5  # the last row has but one text


@pytest.mark.parametrize("filled", [False, True])
def test_a_labelled_pair_is_taught_its_cosine(filled: bool) -> None:
    batch = make_batch(draw_rows("embedding", 12))
    labels = torch.rand(12)
    batch.per_slot["label"] = labels.repeat_interleave(2)
    batch = batch.fill(SHAPE) if filled else batch
    # Not of length one, as a head that does not normalise gives them; the mean of an empty slot is zero.
    vectors = (torch.diff(batch.cu_lengths) > 0)[:, None] * torch.randn(batch.num_slots, 8)
    vectors.requires_grad_()
    total, count = loss_of(EmbeddingHead(normalize=False), vectors, batch)
    pairs = vectors.detach().numpy().astype(np.float64)[:24].reshape(12, 2, 8)
    lengths = np.linalg.norm(pairs, axis=2).prod(axis=1)
    expected = ((pairs[:, 0] * pairs[:, 1]).sum(axis=1) / lengths - labels.numpy()) ** 2
    assert float(count) == 12
    assert float(total.detach()) == pytest.approx(expected.sum(), rel=1e-5)
    (gradient,) = torch.autograd.grad(total, vectors)
    assert gradient.isfinite().all()
    assert gradient[:24].abs().sum(dim=1).all()
    assert not gradient[24:].any()


def test_log_sum_exp_of_groups() -> None:
    values = torch.tensor([1.0, 800.0, 800.0, -5.0], requires_grad=True)
    out = log_sum_exp(values, torch.tensor([0, 1, 1, 3]), 4)
    assert out.tolist() == pytest.approx([1.0, 800.0 + np.log(2), 0.0, -5.0])
    assert torch.autograd.grad(out.sum(), values)[0].tolist() == pytest.approx([1, 0.5, 0.5, 1])


def test_more_labels_than_one_are_averaged() -> None:
    batch = make_batch(draw_rows("regression", 4))
    batch.per_slot["label"] = torch.rand(4, 2)
    scores = torch.rand(4, 2)
    total, _ = loss_of(SequenceHead(("a", "b"), "regression"), scores, batch)
    assert float(total) == pytest.approx(float((scores - batch.per_slot["label"]).square().mean(dim=1).sum()))
