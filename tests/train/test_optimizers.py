"""LAMB and Muon against NumPy and torch's own, which weights go where, and their states' way through a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from halfpint.config import EncoderConfig, MaskedLMHead, ModelConfig, SequenceHead
from halfpint.model.network import Network
from halfpint.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from halfpint.train.lamb import Lamb
from halfpint.train.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonalized, scale_of
from halfpint.train.optimizers import is_hidden, make_optimizer, optimizer_tensors, restore_optimizer
from halfpint.train.settings import OptimizerName, Settings, SettingsError

NAMES = get_args(OptimizerName)
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12))


def draw(*shapes: tuple[int, ...], seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def descend(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int, seed: int = 1) -> None:
    """So many steps along random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


def gradients_of(shapes: list[tuple[int, ...]], steps: int, seed: int = 1) -> list[list[np.ndarray]]:
    """Those of `descend`."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator).numpy() for shape in shapes] for _ in range(steps)]


def lamb_by_hand(
    x: np.ndarray, gradients: list[np.ndarray], *, lr: float, decay: float, adapted: bool = True
) -> np.ndarray:
    """Algorithm 2 of You et al., line by line, in double precision."""
    x, m, v = x.astype(np.float64), np.zeros(x.shape), np.zeros(x.shape)
    for t, g in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g.astype(np.float64) ** 2
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6)
        update = r + decay * x
        ratio = np.linalg.norm(x) / np.linalg.norm(update) if adapted and x.any() else 1.0
        x = x - lr * ratio * update
    return x


@pytest.mark.parametrize("shape", [(5, 7), (4,), (2, 3, 4)])
@pytest.mark.parametrize("adapted", [True, False])
def test_lamb_is_its_algorithm(shape: tuple[int, ...], adapted: bool) -> None:
    (weight,) = draw(shape)
    before = weight.detach().clone().numpy()
    optimizer = Lamb([{"params": [weight], "weight_decay": 0.1, "adapted": adapted}], lr=0.03)
    descend(optimizer, [weight], 6)
    gradients = [each for (each,) in gradients_of([shape], 6)]
    expected = lamb_by_hand(before, gradients, lr=0.03, decay=0.1, adapted=adapted)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_trust_ratio_of_zero_weights_is_one() -> None:
    weight = nn.Parameter(torch.zeros(3, 4))
    descend(Lamb([{"params": [weight]}], lr=0.5), [weight], 1)
    assert weight.detach().abs().numpy() == pytest.approx(0.5, rel=1e-4)


def test_a_weight_without_gradient_stays_as_it_is() -> None:
    for name in NAMES:
        moved, still = draw((3, 4), (3, 4))
        before = still.detach().clone()
        optimizer = make_optimizer([("a.weight", moved), ("b.weight", still)], Settings(optimizer=name, lr=0.1))
        descend(optimizer, [moved], 2)
        assert torch.equal(still, before)


def polynomial(values: np.ndarray) -> np.ndarray:
    """What Newton and Schulz's iterations do to a singular value."""
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    return values


def orthogonalized_by_hand(matrix: np.ndarray) -> np.ndarray:
    matrix = matrix.astype(np.float64)
    left, values, right = np.linalg.svd(matrix / np.linalg.norm(matrix), full_matrices=False)
    return left * polynomial(values) @ right


@given(SHAPES, st.integers(0, 99))
def test_orthogonalizing_is_a_polynomial_of_the_singular_values(shape: tuple[int, int], seed: int) -> None:
    matrices = np.random.default_rng(seed).normal(size=(2, *shape))
    ours = orthogonalized(torch.from_numpy(matrices)).numpy()
    np.testing.assert_allclose(ours, [orthogonalized_by_hand(each) for each in matrices], atol=1e-9)


def test_singular_values_come_to_about_one() -> None:
    (matrix,) = draw((30, 50))
    values = torch.linalg.svdvals(orthogonalized(matrix.detach()))
    assert values.min() > 0.6
    assert values.max() < 1.25


@given(SHAPES)
def test_a_scaled_orthogonal_matrix_is_as_large_as_a_step_of_adamw(shape: tuple[int, int]) -> None:
    matrix = np.eye(*shape)
    assert np.sqrt(np.mean(np.square(scale_of(*shape) * matrix))) == pytest.approx(0.2)


def muon_by_hand(x: np.ndarray, gradients: list[np.ndarray], *, lr: float, decay: float) -> np.ndarray:
    """Equations 1, 2 and 4 of Liu et al., with Nesterov's momentum as in their code."""
    x, momentum = x.astype(np.float64), np.zeros(x.shape)
    for gradient in gradients:
        momentum = 0.95 * momentum + gradient
        update = orthogonalized_by_hand(gradient + 0.95 * momentum)
        x = x - lr * (0.2 * np.sqrt(max(x.shape)) * update + decay * x)
    return x


def test_muon_is_its_equations_whatever_is_stacked() -> None:
    shapes = [(6, 9), (9, 6), (6, 9), (5, 5), (1, 7)]
    weights = draw(*shapes)
    before = [weight.detach().clone().numpy() for weight in weights]
    descend(Muon([{"params": weights, "hidden": True, "weight_decay": 0.1}], lr=0.03), weights, 4)
    for index, weight in enumerate(weights):
        gradients = [each[index] for each in gradients_of(shapes, 4)]
        expected = muon_by_hand(before[index], gradients, lr=0.03, decay=0.1)
        np.testing.assert_allclose(weight.detach().numpy(), expected, atol=1e-4)


def test_many_matrices_are_orthogonalized_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (draw(*[(4, 6)] * 5, (20, 3)) for _ in range(2))
    descend(Muon([{"params": theirs, "hidden": True}], lr=0.1), theirs, 3)
    monkeypatch.setattr("halfpint.train.muon.VALUES_AT_ONCE", 50)
    descend(Muon([{"params": ours, "hidden": True}], lr=0.1), ours, 3)
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours)


def test_joined_matrices_are_orthogonalized_apart() -> None:
    (joined,) = draw((12, 5))
    parts = [nn.Parameter(part.clone()) for part in joined.detach().chunk(3)]
    generator = torch.Generator().manual_seed(1)
    together = Muon([{"params": [joined], "hidden": True, "parts": 3}], lr=0.1)
    apart = Muon([{"params": parts, "hidden": True}], lr=0.1)
    for _ in range(3):
        joined.grad = torch.randn(joined.shape, generator=generator)
        for part, gradient in zip(parts, joined.grad.chunk(3), strict=True):
            part.grad = gradient.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(joined.detach(), torch.cat([part.detach() for part in parts]))


def test_muon_is_torchs_own_up_to_its_precision() -> None:
    """Which orthogonalizes in bf16."""
    ours, theirs = draw((40, 24)), draw((40, 24))
    start = ours[0].detach().clone()
    descend(Muon([{"params": ours, "hidden": True}], lr=0.1, weight_decay=0.1), ours, 1)
    peer = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    descend(peer, theirs, 1)
    assert float((ours[0] - theirs[0]).detach().norm() / (theirs[0] - start).detach().norm()) < 0.03


def test_what_is_not_hidden_takes_adamws_steps() -> None:
    ours, theirs = draw((4, 6), (5,)), draw((4, 6), (5,))
    descend(Muon([{"params": ours}], lr=0.01, weight_decay=0.1), ours, 5)
    descend(torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, fused=True), theirs, 5)
    assert all(torch.equal(mine, yours) for mine, yours in zip(ours, theirs, strict=True))


def test_muon_refuses_hidden_weights_that_are_no_matrices() -> None:
    with pytest.raises(ValueError, match=r"a hidden weight has the shape \(5,\); expected a matrix of 1 equal parts"):
        Muon([{"params": draw((5,)), "hidden": True}], lr=0.1)


def network(**fields: Any) -> Network:
    sizes = {"vocab_size": 40, "num_layers": 4, "hidden_size": 24, "num_heads": 3, "ffn_size": 40, "num_positions": 16}
    return Network(
        ModelConfig(EncoderConfig.uniform(**{**sizes, **fields}), (MaskedLMHead(), SequenceHead(("a", "b"))))
    )


def test_hidden_are_the_matrices_of_blocks_and_pooler() -> None:
    found = {
        name
        for name, each in network(embedding_size=8, embedding_projection="sum").named_parameters()
        if is_hidden(name, each)
    }
    blocks = ("attention.{}.query_key_value", "attention.{}.output", "ffn.{}.stack.0.up", "ffn.{}.stack.0.down")
    expected = {f"encoder.{block.format(index)}.weight" for block in blocks for index in range(4)}
    assert found == {*expected, "encoder.pooler.weight"}


def test_queries_keys_and_values_are_parts() -> None:
    optimizer = make_optimizer(network().named_parameters(), Settings(optimizer="muon"))
    hidden = {group["parts"]: [tuple(each.shape) for each in group["params"]] for group in hidden_groups(optimizer)}
    assert hidden[3] == 4 * [(72, 24)]
    assert set(hidden[1]) == {(24, 24), (40, 24), (24, 40)}


def hidden_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [group for group in optimizer.param_groups if group["hidden"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_in_one_group_and_vectors_are_not_decayed(name: OptimizerName) -> None:
    model = network()
    optimizer = make_optimizer(model.named_parameters(), Settings(optimizer=name, weight_decay=0.1))
    members = [each for group in optimizer.param_groups for each in group["params"]]
    assert len(members) == len(set(members)) == len(list(model.parameters()))
    for group in optimizer.param_groups:
        assert {each.dim() > 1 for each in group["params"]} == {group["weight_decay"] > 0}


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_weight_is_updated_once(name: OptimizerName) -> None:
    once, twice = network(sharing="all"), network(sharing="all")
    twice.load_state_dict(once.state_dict())
    settings = Settings(optimizer=name, lr=0.1)
    aliases = [(f"layer.{index}.{key}", each) for index in range(4) for key, each in twice.named_parameters()]
    optimizers = (
        make_optimizer(once.named_parameters(), settings),
        make_optimizer([*twice.named_parameters(), *aliases], settings),
    )
    for optimizer, model in zip(optimizers, (once, twice), strict=True):
        descend(optimizer, list(model.parameters()), 2)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(once.parameters(), twice.parameters(), strict=True))


def test_a_weight_that_is_also_an_embedding_is_not_hidden() -> None:
    (shared,) = draw((6, 4))
    for names in (("encoder.first.weight", "embeddings.words.weight"), ("embeddings.words.weight", "z.weight")):
        optimizer = make_optimizer([(name, shared) for name in names], Settings(optimizer="muon"))
        assert not hidden_groups(optimizer)


class Regression(nn.Module):
    """Two layers of a network, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.heads = nn.Linear(16, 1)

    def loss(self, inputs: Tensor) -> Tensor:
        wanted = inputs[:, :1] * inputs[:, 1:2] + inputs[:, 2:3]
        return (self.heads(self.encoder(inputs)) - wanted).square().mean()


@pytest.mark.parametrize("name", NAMES)
def test_a_small_regression_is_learnt(name: OptimizerName) -> None:
    model, inputs = Regression(), torch.randn(256, 6)
    optimizer = make_optimizer(model.named_parameters(), Settings(optimizer=name, lr=0.02))
    first = float(model.loss(inputs).detach())
    for _ in range(100):
        optimizer.zero_grad()
        model.loss(inputs).backward()
        optimizer.step()
    assert float(model.loss(inputs).detach()) < 0.1 * first


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_goes_on_to_the_same_weights(name: OptimizerName, tmp_path: Path) -> None:
    settings = Settings(optimizer=name, lr=0.05)
    whole, halted, resumed = network(), network(), network()
    halted.load_state_dict(whole.state_dict())
    optimizers = [make_optimizer(model.named_parameters(), settings) for model in (whole, halted, resumed)]
    for model, optimizer in zip((whole, halted), optimizers[:2], strict=True):
        descend(optimizer, list(model.parameters()), 3)
    tensors = {"model": dict(halted.state_dict()), "optimizer": optimizer_tensors(optimizers[1])}
    write_checkpoint(tmp_path, Checkpoint(3, tensors, {}))
    found = read_checkpoint(tmp_path)
    assert found is not None
    resumed.load_state_dict(found.tensors["model"])
    restore_optimizer(optimizers[2], found.tensors["optimizer"])
    for model, optimizer in ((whole, optimizers[0]), (resumed, optimizers[2])):
        descend(optimizer, list(model.parameters()), 3, seed=2)
    ours, theirs = resumed.state_dict(), whole.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_an_optimizer_that_is_not_known_is_refused() -> None:
    with pytest.raises(SettingsError, match="optimizer is 'sgd'; it is one of adamw, lamb, muon"):
        Settings(optimizer="sgd")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_the_steps_are_those_of_the_cpu(name: OptimizerName) -> None:
    settings = Settings(optimizer=name, lr=0.01)
    ours, theirs = network().cuda(), network()
    ours.load_state_dict(theirs.state_dict())
    start = {key: value.clone() for key, value in theirs.state_dict().items()}
    here, there = (make_optimizer(model.named_parameters(), settings) for model in (ours, theirs))
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        if step == 2:  # by way of a checkpoint
            tensors = {key: value.cpu().clone() for key, value in optimizer_tensors(here).items()}
            here = make_optimizer(ours.named_parameters(), settings)
            restore_optimizer(here, tensors)
        for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
            yours.grad = torch.randn(yours.shape, generator=generator)
            mine.grad = yours.grad.cuda()
        here.step()
        there.step()
    for key, value in theirs.state_dict().items():
        error = (ours.state_dict()[key].cpu() - value).norm() / (value - start[key]).norm()
        assert error < (0.05 if name == "muon" else 1e-3), key  # Muon orthogonalizes in bf16 there
