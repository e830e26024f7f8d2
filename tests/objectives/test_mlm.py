"""The masked-LM loss in chunks is the loss over all words, value and gradients, in a fraction of the memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from halfpint.config import EncoderConfig, MaskedLMHead, ModelConfig
from halfpint.model.batch import FILLER, Batch
from halfpint.model.network import Network
from halfpint.objectives import mlm
from halfpint.objectives.mlm import MaskedLMObjective, cross_entropy_sum, num_chunks
from halfpint.objectives.objective import Seen

WORDS = 97


@pytest.fixture(params=[1, 7, 1000], ids=["one target a chunk", "seven", "all at once"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlm, "CHUNK_VALUES", request.param * WORDS)


def draw(num_targets: int = 23, width: int = 12, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    states, decoder = torch.randn(num_targets, width, dtype=dtype), torch.randn(WORDS, width, dtype=dtype)
    return [each.requires_grad_() for each in (states, decoder, torch.randn(WORDS, dtype=dtype))]


def wanted(num_targets: int = 23) -> torch.Tensor:
    words = torch.randint(WORDS, (num_targets,), generator=torch.Generator().manual_seed(1))
    words[::5] = FILLER
    return words


def plain(states: torch.Tensor, decoder: torch.Tensor, bias: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(states @ decoder.t() + bias, words, ignore_index=FILLER, reduction="sum")


@pytest.mark.usefixtures("_chunks")
def test_values_and_gradients_are_those_of_the_whole() -> None:
    ours, theirs = draw(dtype=torch.float32), draw(dtype=torch.float32)
    (3 * cross_entropy_sum(*ours, wanted())).backward()
    (3 * plain(*theirs, wanted())).backward()
    assert torch.allclose(cross_entropy_sum(*ours, wanted()), plain(*theirs, wanted()), rtol=1e-6)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine.grad, other.grad, atol=1e-5)


def test_in_bf16_gradients_are_as_exact_as_its_inputs() -> None:
    ours, theirs = draw(dtype=torch.bfloat16), draw(dtype=torch.bfloat16)
    exact = [each.detach().double().requires_grad_() for each in theirs]
    cross_entropy_sum(*ours, wanted()).backward()
    plain(*exact, wanted()).backward()
    for mine, true in zip(ours, exact, strict=True):
        assert mine.grad.dtype == torch.bfloat16
        assert float((mine.grad.double() - true.grad).norm() / true.grad.norm()) < 2**-7


def test_without_targets_there_is_nothing_to_learn() -> None:
    given = draw()
    cross_entropy_sum(*given, torch.full((23,), FILLER)).backward()
    assert all(not each.grad.any() for each in given)


class Largest(TorchDispatchMode):
    """Watches how many values the largest tensor has."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor):
                self.most = max(self.most, each.numel())
        return out


def test_all_scores_are_never_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlm, "CHUNK_VALUES", 100 * WORDS)
    given = draw(5000, 12, torch.float32)
    with Largest() as watched:
        cross_entropy_sum(*given, wanted(5000)).backward()
    assert watched.most < 5000 * WORDS / 4
    assert watched.most >= 100 * WORDS


@pytest.mark.parametrize(("targets", "words", "chunks"), [(1, 10, 1), (10_000, 30_522, 10), (0, 5, 1)])
def test_chunks_are_of_a_bounded_size(targets: int, words: int, chunks: int) -> None:
    assert num_chunks(targets, words) == chunks


FAMILIES = {
    "tied": {},
    "factorized": {"embedding_size": 8, "embedding_projection": "sum"},
    "mobilebert's": {"embedding_size": 8, "embedding_projection": "words", "trigram": True},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_objective_is_the_head_s_loss_for_every_decoder(family: str) -> None:
    torch.manual_seed(0)
    config = EncoderConfig.uniform(
        vocab_size=WORDS, num_layers=1, hidden_size=24, num_heads=2, ffn_size=20, num_positions=16, **FAMILIES[family]
    )
    network = Network(ModelConfig(config, (MaskedLMHead(),))).eval()
    batch = Batch.from_ids([[5, 6, 7], [8, 9]]).with_targets(torch.tensor([1, 4, FILLER]))
    batch.per_token["word"] = torch.tensor([11, 12, 13, 14, 15])
    objective = MaskedLMObjective()
    assert objective.counts(batch) == {"mlm": torch.tensor(2)}
    output = network.encoder(batch)
    loss = objective.losses(Seen(output, {}, network), batch)["mlm"]
    loss.backward()
    ours = {name: each.grad.clone() for name, each in network.named_parameters() if each.grad is not None}
    network.zero_grad()
    scores = network.answer("masked_lm", network.encoder(batch), batch)
    whole = F.cross_entropy(scores[:2], torch.tensor([12, 15]), reduction="sum")
    whole.backward()
    assert torch.allclose(loss, whole)
    theirs = {name: each.grad for name, each in network.named_parameters() if each.grad is not None}
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        assert torch.allclose(ours[name], grad, atol=1e-5), name
