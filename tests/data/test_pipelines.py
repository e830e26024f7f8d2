"""Pipelines with published vocabularies give the ids of transformers' own tokenizers, and their folders open there."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from halfpint.data.pipelines import bpe_pipeline, unigram_pipeline, wordpiece_pipeline, write_companions
from halfpint.data.tokenizer import COMPANIONS, Tokenizer
from halfpint.data.train_tokenizer import train_tokenizer

TRICKY = [
    "",
    " ",
    "Plain words, and 3.14 of them!",
    "Crème brûlée, Ångström, naïve façade, İstanbul, Straße, ﬁne",
    "Cre\u0300me bru\u0302le\u0301e",
    "北京大学 と 東京 は 서울 with ไทย and עברית",
    "🤗🤗 and 👩\u200d👩\u200d👧 and 🇫🇷",
    "tab\there\nline\r\nbell\x07null\x00delete\x7f\u200bzero\u200e\ufeffmark",
    "``quoted'' \"plain\" “curly” ‘single’ don't",
    "many     spaces \u00a0\u3000 of\u2003all kinds   ",
    "Ｆｕｌｌ　ｗｉｄｔｈ ½ ² ™",
    "x" * 101,
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "the [MASK] and <mask> of a [SEP] or </s> , [mask]  [MASK]",
    "10,000, 1,2,3 9,",
    "▁under__score ▁ ##hash",
    "\u0301 alone",
]


def read_spiece(path: Path) -> list[tuple[str, float]]:
    """The pieces of a SentencePiece model, which is a protobuf message."""

    def fields(data: bytes) -> Iterator[tuple[int, Any]]:
        place = 0

        def varint() -> int:
            nonlocal place
            number = shift = 0
            while True:
                byte, place = data[place], place + 1
                number |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return number

        while place < len(data):
            key = varint()
            size = {0: 0, 1: 8, 5: 4}.get(key & 7)
            if size == 0:
                yield key >> 3, varint()
                continue
            size = varint() if size is None else size
            yield key >> 3, data[place : place + size]
            place += size

    pieces = [dict(fields(value)) for number, value in fields(path.read_bytes()) if number == 1]
    return [(piece[1].decode(), struct.unpack("<f", piece[2])[0]) for piece in pieces]


def read_lines(path: Path) -> dict[str, int]:
    return {line: number for number, line in enumerate(path.read_text(encoding="utf-8").splitlines())}


def mask(token: str) -> AddedToken:
    """As the published tokenizers of ALBERT and RoBERTa have it."""
    return AddedToken(token, lstrip=True, normalized=False, special=True)


def bert(folder: Path, lowercase: bool) -> tuple[Tokenizer, Any]:
    from transformers import BertTokenizer

    vocabulary = read_lines(folder / f"bert-base-{'un' if lowercase else ''}cased.txt")
    return wordpiece_pipeline(vocabulary, lowercase=lowercase), BertTokenizer(vocabulary, do_lower_case=lowercase)


def albert(folder: Path) -> tuple[Tokenizer, Any]:
    from transformers import AlbertTokenizer

    pieces = read_spiece(folder / "albert.spiece.model")
    assert len(pieces) == 30_000
    return unigram_pipeline(pieces), AlbertTokenizer(pieces, mask_token=mask("[MASK]"))


def roberta(folder: Path) -> tuple[Tokenizer, Any]:
    from transformers import RobertaTokenizer

    vocabulary = json.loads((folder / "roberta.vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "roberta.merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    merges = [(first, second) for first, second in map(str.split, lines)]
    return bpe_pipeline(vocabulary, merges), RobertaTokenizer(vocabulary, merges, mask_token=mask("<mask>"))


PUBLISHED: dict[str, Callable[[Path], tuple[Tokenizer, Any]]] = {
    "bert uncased": lambda folder: bert(folder, True),
    "bert cased": lambda folder: bert(folder, False),
    "albert": albert,
    "roberta": roberta,
}


@pytest.fixture(scope="module", params=PUBLISHED)
def pair(request: pytest.FixtureRequest, reference_data: Path) -> tuple[Tokenizer, Any]:
    return PUBLISHED[request.param](reference_data / "vocab")


def require_same(ours: Tokenizer, theirs: Any, text: str, second: str) -> None:
    found = ours([text, "x"], 512)
    assert found.ids[0] == theirs(text)["input_ids"]
    assert set(found.segments[0]) == {0}
    # In lists, since alone an empty second text is none to transformers.
    expected = theirs([text], [second], return_token_type_ids=True)
    found = ours([(text, second)], 512)
    assert found.ids == expected["input_ids"]
    assert found.segments == expected["token_type_ids"]


@pytest.mark.parametrize("text", TRICKY)
def test_published_vocabularies_give_the_ids_of_transformers(pair: tuple[Tokenizer, Any], text: str) -> None:
    require_same(*pair, text, "a second text")
    require_same(*pair, "a first text", text)


@given(st.text(max_size=40), st.text(max_size=10))
def test_any_text_gives_the_ids_of_transformers(pair: tuple[Tokenizer, Any], text: str, second: str) -> None:
    require_same(*pair, text, second)


def test_decoding_is_that_of_transformers(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    ids = theirs("Plain words, and 3 of them!")["input_ids"]
    assert ours.backend.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


CORPUS = [*TRICKY, "the cat sat on the mat", "The dog sat on the Log", "ÉCOLE école"] * 3
MODELS = {"wordpiece": "bert", "unigram": "albert", "bpe": "roberta"}


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_transformers_opens_the_folder(kind: Any, lowercase: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = train_tokenizer(CORPUS, kind, vocab_size=500, lowercase=lowercase)
    ours.save(tmp_path / "tokenizer.json")
    write_companions(tmp_path, ours, max_length=77)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": MODELS[kind]}))
    assert {path.name for path in tmp_path.iterdir()} <= {"config.json", "tokenizer.json", *COMPANIONS}
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TRICKY:
        require_same(ours, theirs, text, "The second text")
    assert len(theirs) == ours.size
    assert theirs.model_max_length == 77
    for role in ("pad", "unk", "cls", "sep", "mask"):
        number = getattr(theirs, f"{role}_token_id")
        assert number is not None
        assert number in theirs.all_special_ids
    assert theirs.pad_token_id == (1 if kind == "bpe" else 0)
    assert theirs.mask_token_id == ours.backend.token_to_id(str(theirs.mask_token))
    assert set(theirs("one", "two")) == {"input_ids", "attention_mask"} | (
        {"token_type_ids"} if kind != "bpe" else set()
    )


def test_a_tokenizer_of_another_form_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel

    with pytest.raises(ValueError, match="WordLevel tokenizer without the special tokens"):
        write_companions(tmp_path, Tokenizer(Backend(WordLevel({"a": 0}, unk_token="a"))))
