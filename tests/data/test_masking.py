"""What is masked: the rates over a hundred thousand tokens, whole words, lengths of spans, and who decides."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from halfpint.data.build_corpus import build_corpus
from halfpint.data.draws import Draws
from halfpint.data.masking import Masking, masking_for
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

CLS, SEP, MASK, VOCABULARY = 0, 1, 2, 1000
MASKING = Masking(MASK, VOCABULARY, (CLS, SEP, MASK))


def draw_batch(num_sequences: int = 1000, seed: int = 0, longest: int = 200) -> tuple[Any, ...]:
    """[CLS] … [SEP] … [SEP], with words of one to four tokens: some hundred thousand tokens."""
    rng = np.random.default_rng(seed)
    ids, begins, lengths = [], [], []
    for _ in range(num_sequences):
        length = int(rng.integers(longest // 10, longest))
        middle = int(rng.integers(5, length - 5))
        sequence = rng.integers(3, VOCABULARY, length)
        sequence[[0, middle, -1]] = CLS, SEP, SEP
        word = rng.random(length) < 0.6
        word[[0, 1, middle, middle + 1, -1]] = True
        ids.append(sequence)
        begins.append(word)
        lengths.append(length)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return np.concatenate(ids), starts, np.concatenate(begins), np.arange(num_sequences)


BATCH = draw_batch()
ORDINARY = ~np.isin(BATCH[0], [CLS, SEP, MASK])


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_rates_are_met_within_half_a_point(unit: Any, rate: float) -> None:
    assert ORDINARY.sum() > 100_000
    seen, targets = dataclasses.replace(MASKING, unit=unit, rate=rate).apply(*BATCH, Draws(0))
    assert len(targets) / ORDINARY.sum() == pytest.approx(rate, abs=0.005)
    ids = BATCH[0]
    masked = (seen[targets] == MASK).mean()
    stays = (seen[targets] == ids[targets]).mean()
    # One in a thousand of those that are replaced becomes what it was.
    assert masked == pytest.approx(0.8, abs=0.005)
    assert stays == pytest.approx(0.1, abs=0.005)
    assert np.array_equal(np.delete(seen, targets), np.delete(ids, targets))


def test_other_shares_are_met_as_well() -> None:
    seen, targets = dataclasses.replace(MASKING, masked=0.5, random=0.5).apply(*BATCH, Draws(0))
    assert (seen[targets] == MASK).mean() == pytest.approx(0.5, abs=0.01)
    assert (seen[targets] == BATCH[0][targets]).mean() < 0.01


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_special_tokens_are_never_chosen_and_never_put_in(unit: Any) -> None:
    for epoch in range(5):
        seen, targets = dataclasses.replace(MASKING, unit=unit).apply(*BATCH, Draws(1, epoch))
        assert ORDINARY[targets].all()
        assert not np.isin(seen[targets], [CLS, SEP]).any()


def words_of(begins: Any) -> Any:
    return np.cumsum(begins)


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_chosen_whole(unit: Any) -> None:
    chosen = dataclasses.replace(MASKING, unit=unit).choose(*BATCH, Draws(0))
    word = words_of(BATCH[2])[ORDINARY]
    shares = np.bincount(word, weights=chosen[ORDINARY]) / np.maximum(np.bincount(word), 1)
    assert set(shares.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_the_tokenizer_s_for_all_three_kinds(tmp_path: Path, kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    texts = [f"{one} {other}" for one in SENTENCES for other in SENTENCES]
    corpus = build_corpus(texts, tokenizer, tmp_path / "c", processes=1)
    documents = [corpus.document(index) for index in range(corpus.num_documents)]
    ids = np.concatenate([each.tokens for each in documents]).astype(np.int64)
    begins = np.concatenate([each.begins_word for each in documents])
    starts = np.concatenate([[0], np.cumsum([len(each.tokens) for each in documents])])
    masking = Masking(0, tokenizer.size, (), unit="word", rate=0.3)
    chosen = masking.choose(ids, starts, begins, np.arange(len(documents)), Draws(3))
    place = 0
    for document in documents:
        for number in range(document.num_sentences):
            tokens = document.tokens[slice(*document.starts[number : number + 2])]
            text = tokenizer.backend.decode(tokens.tolist())
            assert text
            mine = chosen[place : place + len(tokens)]
            word = words_of(document.begins_word[slice(*document.starts[number : number + 2])])
            assert all(len(set(mine[word == each].tolist())) == 1 for each in set(word.tolist()))
            place += len(tokens)
    assert chosen.any()


def test_spans_have_lengths_by_albert_s_law() -> None:
    masking = dataclasses.replace(MASKING, unit="span")
    ids, starts, begins, rows = draw_batch(500, seed=1, longest=2000)
    chosen = masking.choose(ids, starts, begins, rows, Draws(0))
    ordinary = ~np.isin(ids, [CLS, SEP, MASK])
    owner = np.repeat(rows, np.diff(starts))
    spans = masking._span_begins(ordinary, owner, starts, begins, rows, Draws(0))
    places = np.flatnonzero(ordinary)
    span = np.cumsum(spans)[places] - 1
    words = np.bincount(span, weights=(begins | spans)[places]).astype(int)
    taken = np.bincount(span, weights=chosen[places]) > 0
    shares = np.bincount(words[taken], minlength=4)[1:4] / taken.sum()
    # 1 : 1/2 : 1/3. A span that meets the end of its text is shorter; of long texts few do.
    assert shares == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.02)


def test_epochs_differ_and_seeds_repeat() -> None:
    first, second = (MASKING.apply(*BATCH, Draws(0, epoch)) for epoch in (0, 1))
    assert not np.array_equal(first[1], second[1])
    again = MASKING.apply(*BATCH, Draws(0, 0))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_static_masks_are_the_same_in_every_epoch() -> None:
    static = dataclasses.replace(MASKING, dynamic=False)
    first, second = (static.apply(*BATCH, Draws(0, epoch)) for epoch in (0, 7))
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_a_sequence_is_masked_the_same_in_any_company(unit: Any) -> None:
    masking = dataclasses.replace(MASKING, unit=unit)
    ids, starts, begins, rows = BATCH
    whole, _ = masking.apply(ids, starts, begins, rows, Draws(4, 2))
    for row in (0, 17, 999):
        place = slice(starts[row], starts[row + 1])
        alone, _ = masking.apply(
            ids[place], np.array([0, place.stop - place.start]), begins[place], np.array([row]), Draws(4, 2)
        )
        assert np.array_equal(alone, whole[place])


def test_a_text_of_one_word_is_masked_at_the_rate() -> None:
    ids = np.tile([CLS, 7, SEP], 20_000)
    starts = np.arange(20_001) * 3
    chosen = MASKING.choose(ids, starts, np.ones(len(ids), bool), np.arange(20_000), Draws(0))
    assert chosen.sum() / 20_000 == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0.0}, "the masking rate is 0.0; it must be above 0 and below 1"),
        ({"rate": 1.0}, "the masking rate is 1.0"),
        ({"masked": 0.9, "random": 0.2}, "together at most 1"),
        ({"longest_span": 0}, "a span has at least one word"),
        ({"mask_id": 1000}, "outside the vocabulary of 1000"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(MASKING, **changes)


def test_the_mask_is_the_tokenizer_s() -> None:
    with pytest.raises(DataError, match="the tokenizer has no mask token"):
        masking_for(small_tokenizer("bert"))
    made = tokenizers.Tokenizer.from_str(small_tokenizer("bert").to_json())
    made.add_special_tokens(["[MASK]", "[CLS]", "[SEP]", "[UNK]"])
    masking = masking_for(Tokenizer(made), rate=0.3)
    assert masking.mask_id == made.token_to_id("[MASK]")
    assert {made.token_to_id(name) for name in ("[MASK]", "[CLS]", "[SEP]", "[UNK]")} == set(masking.special_ids)
    assert (masking.rate, masking.vocab_size) == (0.3, made.get_vocab_size())
