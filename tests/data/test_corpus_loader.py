"""Batches of a corpus: every row once, the same for any number of processes, and what is guessed is what was there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from halfpint.data.corpus import Corpus
from halfpint.data.corpus_loader import CorpusLoader
from halfpint.data.examples import Examples
from halfpint.data.masking import masking_for
from halfpint.data.sources import DataError
from halfpint.model.batch import FILLER, Batch
from tests.train.languages import make_corpus

MASK, CLS, SEP = 4, 2, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpora") / "c", 300)


@pytest.fixture(scope="module")
def loader(corpus: Corpus) -> CorpusLoader:
    return CorpusLoader(Examples(corpus, 32, "sop"), 32, seed=3, masking=masking_for(corpus.tokenizer, rate=0.3))


def sequences(batch: Batch) -> list[tuple[list[int], int]]:
    """What a model sees of every real row, and the class of its order."""
    pieces = [piece.tolist() for piece in batch.split(batch.ids)]
    real = batch.row != FILLER
    return list(zip(pieces, batch.per_slot["order"][real].tolist(), strict=True))


def test_every_row_comes_once_an_epoch(loader: CorpusLoader) -> None:
    order = loader.order(0)
    assert sorted(order.tolist()) == list(range(len(loader.examples)))
    assert not np.array_equal(order, loader.order(1))
    steps = list(loader.steps(0))
    assert len(steps) == loader.num_steps == len(loader.examples) // 32
    assert all(sum(batch.num_slots for batch in step) == 32 for step in steps)


def test_what_is_guessed_is_what_was_there(loader: CorpusLoader) -> None:
    for (batch,) in loader.steps(0):
        words, seen, targets = batch.per_token["word"], batch.ids, batch.targets
        assert targets is not None and len(targets)
        untouched = torch.ones(len(seen), dtype=torch.bool)
        untouched[targets] = False
        assert torch.equal(seen[untouched], words[untouched])
        assert not torch.isin(words[targets], torch.tensor([CLS, SEP])).any()
        assert (seen[targets] == MASK).float().mean() > 0.5


def test_a_later_start_and_another_rank_see_the_same(loader: CorpusLoader) -> None:
    whole = [sequences(batch) for (batch,) in loader.steps(2)]
    assert [sequences(batch) for (batch,) in loader.steps(2, 3)] == whole[3:]
    halves = [list(replace(loader, rank=rank, world=2).steps(2)) for rank in (0, 1)]
    for step, rows in enumerate(whole):
        shared = [[pair for batch in half[step] for pair in sequences(batch)] for half in halves]
        assert [shared[number % 2][number // 2] for number in range(32)] == rows


def test_a_shape_holds_nearly_every_step_and_changes_no_row(loader: CorpusLoader) -> None:
    fitted = loader.fit()
    shape = fitted.shape
    assert shape is not None
    plain = [sorted(sequences(batch)) for (batch,) in loader.steps(1)]
    steps = list(fitted.steps(1))
    assert [sorted(pair for batch in step for pair in sequences(batch)) for step in steps] == plain
    assert sum(map(len, steps)) <= 1.05 * len(steps)
    for step in steps:
        for batch in step:
            assert (batch.num_tokens, batch.num_slots, batch.targets.shape) == (
                shape.tokens, shape.sequences, (shape.targets,),
            )  # fmt: skip
    filler = np.mean([batch.filler_share for step in steps for batch in step])
    assert filler < 0.25


def test_too_many_targets_are_hidden_and_not_asked_for(loader: CorpusLoader) -> None:
    fitted = loader.fit()
    few = replace(fitted, shape=replace(fitted.shape, targets=5))
    (batch,) = next(few.steps(0))
    assert batch.targets.shape == (5,) and (batch.targets != FILLER).all()


def test_a_step_that_does_not_fit_is_several_batches(loader: CorpusLoader) -> None:
    small = replace(loader, max_tokens=200)
    assert all(len(step) > 2 for step in small.steps(0))
    assert [sum(batch.num_slots for batch in step) for step in small.steps(0)] == [32] * small.num_steps


def test_a_corpus_smaller_than_a_batch_is_refused(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "c", 5)
    with pytest.raises(DataError, match=r"makes \d+ rows, fewer than a batch of 32; give a smaller --batch"):
        CorpusLoader(Examples(corpus, 32, "sop"), 32)
    with pytest.raises(ValueError, match="give at least one"):
        CorpusLoader(Examples(corpus, 32, "sop"), 0)
