"""Trained tokenizers: the same for the same texts, no larger than asked, and they know what they were trained on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from halfpint.data.pipelines import FAMILIES, Kind, word_splitter
from halfpint.data.train_tokenizer import train_tokenizer

KINDS: list[Kind] = ["wordpiece", "unigram", "bpe"]
LEAST_BYTES = 256 + 5

# Syllables of a made-up language, so that there is something to learn.
words = st.lists(st.sampled_from(["ka", "lo", "mi", "Ter", "su", "é", "n", "京", "1", "-"]), min_size=1, max_size=5)
corpora = st.lists(st.lists(words.map("".join), min_size=1, max_size=12).map(" ".join), min_size=1, max_size=8)


def size_of(kind: Kind, small: int) -> int:
    return small + (LEAST_BYTES if kind == "bpe" else 0)


def unknown(kind: Kind) -> int:
    return list(FAMILIES[kind].special).index("unk")


# Not other corpora every time: Unigram may choose between pieces that are worth exactly the same.
@settings(derandomize=True)
@pytest.mark.parametrize("kind", KINDS)
@given(corpora, st.randoms(use_true_random=False), st.integers(40, 120))
def test_the_same_texts_in_any_order_give_the_same_file(kind: Kind, texts: list[str], random: Any, size: int) -> None:
    once = train_tokenizer(texts, kind, vocab_size=size_of(kind, size)).to_json()
    random.shuffle(texts)
    # Maps have another order in every instance, not only in every process.
    again = {train_tokenizer(texts, kind, vocab_size=size_of(kind, size)).to_json() for _ in range(4)}
    assert again == {once}


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_gives_the_same_file(kind: Kind) -> None:
    texts = [" ".join("kalomiter"[i % 7 : i % 7 + i % 5 + 1] for i in range(n, n + 9)) for n in range(40)]
    size = size_of(kind, 60)
    code = (
        "import json, sys; from halfpint.data.train_tokenizer import train_tokenizer; "
        "texts, kind, size = json.loads(sys.argv[1]); print(train_tokenizer(texts, kind, vocab_size=size).to_json())"
    )
    command = [sys.executable, "-c", code, json.dumps([texts, kind, size])]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert there == train_tokenizer(texts, kind, vocab_size=size).to_json() + "\n"


@pytest.mark.parametrize("kind", KINDS)
@given(corpora, st.integers(40, 400))
def test_a_vocabulary_is_dense_and_no_larger_than_asked(kind: Kind, texts: list[str], size: int) -> None:
    tokenizer = train_tokenizer(texts, kind, vocab_size=size_of(kind, size))
    ids = tokenizer.backend.get_vocab()
    assert sorted(ids.values()) == list(range(tokenizer.size))
    assert tokenizer.size <= size_of(kind, size)
    assert [ids[token] for token in FAMILIES[kind].special.values()] == list(range(5))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@given(corpora)
def test_nothing_that_was_seen_is_unknown(kind: Kind, lowercase: bool, texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, kind, vocab_size=1000, lowercase=lowercase)
    for ids in tokenizer(texts, 512).ids:
        assert unknown(kind) not in ids
    (decoded,) = tokenizer.backend.decode_batch(tokenizer(texts[:1], 512).ids)
    cleaned = tokenizer.backend.normalizer.normalize_str(texts[0]) if tokenizer.backend.normalizer else texts[0]
    assert "".join(decoded.split()) == "".join(cleaned.split())


@given(corpora)
def test_bytes_are_what_the_library_learns_by_itself(texts: list[str]) -> None:
    theirs = Backend(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        min_frequency=2,
        special_tokens=list(FAMILIES["bpe"].special.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    theirs.train_from_iterator(texts, trainer)
    ours = json.loads(train_tokenizer(texts, "bpe", vocab_size=300).to_json())["model"]
    expected = json.loads(theirs.to_str())["model"]
    assert (ours["vocab"], ours["merges"]) == (expected["vocab"], expected["merges"])


@given(corpora)
def test_unigram_pieces_are_those_that_the_library_learns_by_itself(texts: list[str]) -> None:
    theirs = word_splitter("unigram", models.Unigram(), lowercase=True)
    special = list(FAMILIES["unigram"].special.values())
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    theirs.train_from_iterator(texts, trainer)
    expected = dict(json.loads(theirs.to_str())["model"]["vocab"])
    found = dict(json.loads(train_tokenizer(texts, "unigram", vocab_size=60).to_json())["model"]["vocab"])
    assert found.keys() == expected.keys()
    for piece, score in found.items():
        # Of characters that were put back the library's scores are a ten-thousandth apart, in any order.
        assert score == pytest.approx(expected[piece], abs=1e-4 * (60 if len(piece) == 1 else 1))


def test_wordpiece_merges_the_commonest_first() -> None:
    ids = train_tokenizer(["low low low lower lowest newest newest"], "wordpiece", vocab_size=24).backend.get_vocab()
    pieces = sorted(ids, key=lambda piece: ids[piece])
    assert pieces[5:13] == list("elnorstw")
    assert pieces[13:21] == [f"##{letter}" for letter in "elnorstw"]
    # lo in five words, and low in the same; of the pairs that occur three times the one of the lowest ids.
    assert pieces[21:] == ["lo", "low", "##es"]


@pytest.mark.parametrize("kind", KINDS)
def test_case_is_the_familys_own_unless_told(kind: Kind) -> None:
    texts = ["Paris PARIS paris École"]
    lowercase = kind != "bpe"
    assert (
        train_tokenizer(texts, kind, vocab_size=300).to_json()
        == train_tokenizer(texts, kind, vocab_size=300, lowercase=lowercase).to_json()
    )
    lower = train_tokenizer(texts, kind, vocab_size=300, lowercase=True)
    one, two = lower(["paris", "PARIS"], 64).ids
    assert one == two
    cased = train_tokenizer(texts, kind, vocab_size=300, lowercase=False)
    one, two = cased(["paris", "PARIS"], 64).ids
    assert one != two
    assert "".join(cased.backend.decode(cased(["École"], 64).ids[0]).split()) == "École"


@pytest.mark.parametrize(("kind", "least"), [("wordpiece", 5 + 4 + 3), ("unigram", 5 + 5), ("bpe", LEAST_BYTES)])
def test_how_small_a_vocabulary_may_be(kind: Kind, least: int) -> None:
    # Four characters, of which the comma continues no word.
    texts = ["abc, cab ab"]
    assert train_tokenizer(texts, kind, vocab_size=least).size == least
    with pytest.raises(ValueError, match=rf"a vocabulary of {least - 1} has no room .* at least {least}$"):
        train_tokenizer(texts, kind, vocab_size=least - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], [" ", "\n\t"]])
def test_no_words_are_refused(kind: Kind, texts: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no word in these texts"):
        train_tokenizer(texts, kind)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "text 2 is None, expected a text"),
        (["a", "b \ud800"], "text 2 has half a surrogate pair"),
    ],
)
def test_what_is_no_text_is_refused(texts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, "wordpiece")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no tokenizer of kind 'words'; known are wordpiece, unigram, bpe"):
        train_tokenizer(["a"], "words")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_rare_characters_give_way_where_there_is_no_room(kind: Kind) -> None:
    rare = [chr(0x400 + number) for number in range(50)]
    texts = ["banana bandana cabana"] * 10_000 + [f"bana{letter}na" for letter in rare]
    small = train_tokenizer(texts, kind, vocab_size=40)
    assert not small.backend.get_vocab().keys() & set(rare)
    assert unknown(kind) in small([f"bana{rare[0]}na"], 64).ids[0]
    assert unknown(kind) not in small(["banana cabana"], 64).ids[0]
    large = train_tokenizer(texts, kind, vocab_size=400)
    assert unknown(kind) not in large([f"bana{rare[0]}na"], 64).ids[0]


def test_texts_are_read_once_and_not_kept() -> None:
    alive = most = 0

    class Text(str):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def texts() -> Iterator[str]:
        nonlocal alive, most
        for number in range(20_000):
            alive += 1
            most = max(most, alive)
            yield Text(f"ka lo {number % 7}")

    assert train_tokenizer(texts(), "wordpiece").size < 30
    assert most < 2_000
