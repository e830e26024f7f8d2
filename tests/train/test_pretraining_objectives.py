"""Each objective of pretraining learns what it is for, on a small language that has it; where it is not, nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from halfpint.config import EncoderConfig, MaskedLMHead, ModelConfig, OrderHead
from halfpint.data.corpus import Corpus
from halfpint.data.corpus_loader import CorpusLoader
from halfpint.data.draws import Draws
from halfpint.data.examples import KINDS, Examples, Order
from halfpint.data.masking import masking_for
from halfpint.model.network import Network
from halfpint.objectives.mlm import MaskedLMObjective
from halfpint.objectives.order import OrderObjective
from halfpint.train.loop import train
from halfpint.train.settings import Settings
from tests.train.languages import make_corpus

UNSEEN = Draws(seed=999)
"""Rows are cut, swapped and masked as they never were in training."""


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpora") / "staged", stages=True)


@pytest.fixture(scope="module")
def topical(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Sentences that do not know where they stand."""
    return make_corpus(tmp_path_factory.mktemp("corpora") / "topical", stages=False)


def learn(corpus: Corpus, order: Order | None, *, masks: bool, epochs: int = 12) -> tuple[Network, CorpusLoader]:
    torch.manual_seed(0)
    encoder = EncoderConfig.uniform(
        vocab_size=corpus.tokenizer.size, num_layers=2, hidden_size=48, num_heads=4, ffn_size=96, num_positions=64,
        dropout=0.0, attention_dropout=0.0, initializer_range=0.1,
    )  # fmt: skip
    heads = (MaskedLMHead(), OrderHead(len(KINDS[order]) if order else 2))
    network = Network(ModelConfig(encoder, heads))
    masking = masking_for(corpus.tokenizer) if masks else None
    loader = CorpusLoader(Examples(corpus, 40, order), 32, masking=masking)
    objectives = [(MaskedLMObjective(), 1.0)] * masks + [(OrderObjective(), 1.0)] * (order is not None)
    train(network, objectives, loader, Settings(epochs=epochs, lr=4e-3, warmup=0.1))
    return network.eval(), loader


def order_accuracy(network: Network, loader: CorpusLoader) -> float:
    (batch,) = loader.batches(np.arange(len(loader.examples)), UNSEEN)
    with torch.inference_mode():
        answers = network.answer("order", network.encoder(batch), batch).argmax(dim=1)
    return float((answers == batch.per_slot["order"]).float().mean())


def word_accuracy(network: Network, loader: CorpusLoader) -> float:
    (batch,) = loader.batches(np.arange(len(loader.examples)), UNSEEN)
    with torch.inference_mode():
        words = network.answer("masked_lm", network.encoder(batch), batch).argmax(dim=1)
    return float((words == batch.per_token["word"][batch.targets]).float().mean())


def test_a_masked_lm_learns_companions(topical: Corpus) -> None:
    network, loader = learn(topical, None, masks=True, epochs=30)
    # The companion of a visible word is certain; of a pair that is hidden whole only the topic is known.
    assert word_accuracy(network, loader) > 0.7


@pytest.mark.parametrize(("order", "least"), [("nsp", 0.8), ("sop", 0.9), ("structbert", 0.8)])
def test_order_is_learnt_where_there_is_one(staged: Corpus, order: Order, least: float) -> None:
    assert order_accuracy(*learn(staged, order, masks=False)) > least


def test_topics_alone_tell_strangers_but_no_order(topical: Corpus) -> None:
    assert order_accuracy(*learn(topical, "nsp", masks=False)) > 0.85
    assert order_accuracy(*learn(topical, "sop", masks=False)) == pytest.approx(0.5, abs=0.06)


def test_objectives_add_up(staged: Corpus) -> None:
    network, loader = learn(staged, "sop", masks=True, epochs=20)
    assert order_accuracy(network, loader) > 0.85
    assert word_accuracy(network, loader) > 0.5


def test_a_killed_run_goes_on_to_the_same_weights(staged: Corpus, tmp_path: Path) -> None:
    def run(folder: Path, stop_at: int | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        encoder = EncoderConfig.uniform(
            vocab_size=staged.tokenizer.size, num_layers=1, hidden_size=16, num_heads=2, ffn_size=16, num_positions=64
        )
        network = Network(ModelConfig(encoder, (MaskedLMHead(), OrderHead(3))))
        examples = Examples(staged, 40, "structbert")
        loader = CorpusLoader(examples, 64, masking=masking_for(staged.tokenizer, unit="span"))

        def stop(event: dict[str, object]) -> None:
            if event["event"] == "evaluation" and event["step"] == stop_at:
                raise RuntimeError

        train(
            network, [(MaskedLMObjective(), 1.0), (OrderObjective(), 0.5)], loader, Settings(epochs=3, evaluations=3),
            evaluate=lambda network: {"score": 0.0}, checkpoints=folder, watchers=[stop], checkpoint_seconds=0.0,
        )  # fmt: skip
        return network.state_dict()

    steps = CorpusLoader(Examples(staged, 40, "structbert"), 64).num_steps
    with pytest.raises(RuntimeError):
        run(tmp_path / "killed", steps * 2)
    resumed, whole = run(tmp_path / "killed", None), run(tmp_path / "whole", None)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
