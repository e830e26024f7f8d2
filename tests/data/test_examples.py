"""Examples of pretraining: what each class is, how often, and that everything comes from where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfpint.data.build_corpus import build_corpus
from halfpint.data.corpus import Corpus
from halfpint.data.draws import Draws
from halfpint.data.examples import KINDS, Examples, Made, plan_chunks
from halfpint.data.sources import DataError
from tests.data.small_tokenizers import KINDS as TOKENIZERS
from tests.data.small_tokenizers import SENTENCES, small_tokenizer

LONGEST = 48


def documents(count: int) -> list[str]:
    """Every sentence says of which document it is, and the how many-th."""
    return [
        "\n".join(f"{number} sentence {index} of tar and sun" for index in range(2 + number % 9))
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpora") / "c"
    return build_corpus(documents(400), small_tokenizer("bert"), folder, processes=1)


def texts_of(made: Made, corpus: Corpus) -> list[tuple[str, str]]:
    """Both segments of every row, as the tokenizer reads them back."""
    found = []
    for begin, end in zip(made.starts[:-1], made.starts[1:], strict=True):
        ids, segments = made.ids[begin:end], made.segments[begin:end]
        parts = [ids[segments == segment].tolist() for segment in (0, 1)]
        assert parts[0][0] == 1 and parts[0][-1] == parts[1][-1] == 2, "[CLS] … [SEP] … [SEP]"
        found.append(tuple(corpus.tokenizer.backend.decode(part) for part in (parts[0][1:-1], parts[1][:-1])))
    return found


def all_rows(examples: Examples, epochs: int) -> list[tuple[int, str, str]]:
    rows = np.arange(len(examples))
    found = []
    for epoch in range(epochs):
        made = examples.make(rows, Draws(0, epoch))
        found += [(int(kind), *pair) for kind, pair in zip(made.order, texts_of(made, examples.corpus), strict=True)]
    return found


def origin(text: str) -> tuple[int, list[int]]:
    """The document of a segment, and its sentences."""
    joined = text.replace(" ", "")
    pieces = [piece for piece in joined.split("oftarandsun") if "sentence" in piece]
    numbers = [tuple(map(int, piece.split("sentence"))) for piece in pieces]
    assert len({document for document, _ in numbers}) == 1
    return numbers[0][0], [sentence for _, sentence in numbers]


@pytest.mark.parametrize("order", ["nsp", "sop", "structbert"])
def test_classes_are_what_they_are_called_and_balanced(corpus: Corpus, order: Any) -> None:
    examples = Examples(corpus, LONGEST, order)
    rows = all_rows(examples, 25)
    shares = np.bincount([kind for kind, _, _ in rows]) / len(rows)
    assert len(rows) > 10_000
    assert shares == pytest.approx(np.full(len(KINDS[order]), 1 / len(KINDS[order])), abs=0.01)
    for kind, ahead, behind in rows[:3000]:
        if not ahead.rstrip().endswith("sun") or not behind.rstrip().endswith("sun"):
            continue  # cut to fit
        (first, before), (second, after) = origin(ahead), origin(behind)
        match KINDS[order][kind]:
            case "next":
                assert first == second and before[-1] + 1 == after[0]
            case "swapped":
                assert first == second and after[-1] + 1 == before[0]
            case "other":
                assert first != second


def test_nothing_is_longer_than_asked_and_whole_chunks_are_used(corpus: Corpus) -> None:
    for order in (None, "nsp", "structbert"):
        examples = Examples(corpus, LONGEST, order)
        made = examples.make(np.arange(len(examples)), Draws(0))
        assert np.diff(made.starts).max() <= LONGEST
    sop = Examples(corpus, LONGEST, "sop")
    made = sop.make(np.arange(len(sop)), Draws(0))
    tokens = sum(
        corpus.shards[shard].arrays["sentences"][last] - corpus.shards[shard].arrays["sentences"][first]
        for shard, first, last in zip(sop.chunks.shard, sop.chunks.first, sop.chunks.last, strict=True)
    )
    # All tokens of all chunks, but for what two long sentences have too many.
    assert len(made.ids) - 3 * len(sop) == pytest.approx(int(tokens), rel=0.02)


def test_without_an_order_all_sentences_are_there_in_their_order(corpus: Corpus) -> None:
    examples = Examples(corpus, LONGEST)
    made = examples.make(np.arange(len(examples)), Draws(0))
    inner = ~np.isin(made.ids, [1, 2])
    whole = np.concatenate([corpus.document(index).tokens for index in range(corpus.num_documents)])
    assert np.array_equal(made.ids[inner], whole)
    assert not made.segments.any()


def test_epochs_differ_rows_repeat_and_company_changes_nothing(corpus: Corpus) -> None:
    examples = Examples(corpus, LONGEST, "structbert")
    rows = np.arange(60)
    first, again, other = (examples.make(rows, Draws(0, epoch)) for epoch in (0, 0, 1))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)
    alone = examples.make(rows[17:18], Draws(0, 0))
    assert np.array_equal(alone.ids, first.ids[first.starts[17] : first.starts[18]])
    assert alone.order[0] == first.order[17]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_special_tokens_are_the_tokenizer_s(tmp_path: Path, kind: str) -> None:
    corpus = build_corpus(["\n".join(SENTENCES)], small_tokenizer(kind), tmp_path / "c", processes=1)
    backend = corpus.tokenizer.backend
    made = Examples(corpus, 512).make(np.array([0]), Draws(0))
    ends = backend.encode("a")
    assert (made.ids[0], made.ids[-1]) == (ends.ids[0], ends.ids[-1])
    assert len(made.ids) == corpus.num_tokens + len(ends.ids) - len(backend.encode("a", add_special_tokens=False).ids)
    pair = Examples(corpus, 512, "sop").make(np.array([0]), Draws(0))
    both = backend.encode("a", "a")
    special = len(both.ids) - 2 * len(backend.encode("a", add_special_tokens=False).ids)
    assert len(pair.ids) == corpus.num_tokens + special
    assert set(pair.segments.tolist()) == set(both.type_ids)


def test_a_sentence_longer_than_the_room_is_cut(tmp_path: Path) -> None:
    long = " ".join(["tar"] * 200)
    corpus = build_corpus([f"{long}\nsun\n{long}"], small_tokenizer("bert"), tmp_path / "c", processes=1)
    for order in (None, "sop"):
        examples = Examples(corpus, 32, order)
        assert np.diff(examples.make(np.arange(len(examples)), Draws(0)).starts).max() <= 32


def test_documents_without_two_sentences_are_left_out_or_refused(tmp_path: Path) -> None:
    mixed = build_corpus(["one sun", "two sun\nthree sun"], small_tokenizer("bert"), tmp_path / "c", processes=1)
    chunks = plan_chunks(mixed, 20, 2)
    assert (len(chunks), chunks.num_left_out) == (1, 1)
    alone = build_corpus(["one sun", "two sun"], small_tokenizer("bert"), tmp_path / "d", processes=1)
    with pytest.raises(DataError, match=r"no document of .* has two sentences"):
        Examples(alone, 20, "sop")
    assert len(Examples(alone, 20)) == 2


@pytest.mark.parametrize("order", ["nsp", "structbert"])
def test_a_single_document_has_no_others(tmp_path: Path, order: Any) -> None:
    corpus = build_corpus(["one sun\ntwo sun\nthree sun"], small_tokenizer("bert"), tmp_path / "c", processes=1)
    with pytest.raises(DataError, match="has a single document, and"):
        Examples(corpus, 20, order)
    assert len(Examples(corpus, 20, "sop")) == 1


def test_two_documents_are_enough_for_strangers(tmp_path: Path) -> None:
    texts = ["one sun\ntwo sun\nthree sun\nfour sun", "five tar\nsix tar\nseven tar"]
    corpus = build_corpus(texts, small_tokenizer("bert"), tmp_path / "c", processes=1)
    for kind, ahead, behind in all_rows(Examples(corpus, 60, "nsp"), 50):
        assert (("tar" in ahead) == ("tar" in behind)) == (kind == 0)
