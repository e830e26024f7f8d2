"""Sequences of two texts against those that the backend makes of the pair, whatever the kind of tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, processors

from halfpint.data.pieces import FIRST, SECOND, Frame, join, read_frame, read_pieces
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

WORD = st.sampled_from(" ".join(SENTENCES).split()) | st.sampled_from(["€", "日本", "x\u0301", "\u200d", "  ", "\n"])
TEXT = st.lists(WORD, min_size=1, max_size=25).map(" ".join)
KIND = st.sampled_from(KINDS)


@given(KIND, st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_whole_pairs_equal_the_backends(kind: str, pairs: list[tuple[str, str]]) -> None:
    tokenizer = small_tokenizer(kind)
    first, of_first = read_pieces(tokenizer, [pair[0] for pair in pairs])
    second, of_second = read_pieces(tokenizer, [pair[1] for pair in pairs])
    ours = join(read_frame(tokenizer), first.slices(of_first), second.slices(of_second), tokenizer.size)
    theirs = tokenizer(pairs, 10_000)
    assert [ours.ids[ours.tokens_of(each)].tolist() for each in range(len(pairs))] == theirs.ids
    assert [ours.segments[ours.tokens_of(each)].tolist() for each in range(len(pairs))] == theirs.segments


@given(KIND, TEXT, TEXT, st.integers(2, 12), st.data())
def test_windows_equal_the_backends(kind: str, question: str, context: str, extra: int, data: st.DataObject) -> None:
    tokenizer = small_tokenizer(kind)
    frame = read_frame(tokenizer)
    asked, of_asked = read_pieces(tokenizer, [question])
    read, of_read = read_pieces(tokenizer, [context], places=True)
    shared = data.draw(st.integers(0, extra - 1))
    length = frame.num_special + len(asked.ids) + extra
    row, windows = read.slices(of_read).windows(np.array([extra]), np.array([shared]))
    ours = join(frame, asked.slices(of_asked).take(row), windows, tokenizer.size)
    tokenizer.backend.enable_truncation(length, stride=shared, strategy="only_second")
    try:
        whole = tokenizer.backend.encode(question, context)
    finally:
        tokenizer.backend.no_truncation()
    theirs = [whole, *whole.overflowing]
    assert [ours.ids[ours.tokens_of(each)].tolist() for each in range(ours.num_sequences)] == [it.ids for it in theirs]
    before = frame.before_second(asked.slices(of_asked).take(row))
    for each, window in enumerate(theirs):
        place = ours.notes["place"][ours.tokens_of(each)]
        of_context = np.array([text == 1 for text in window.sequence_ids])
        assert ((place >= 0).all(axis=1) == of_context).all()
        assert not of_context.any() or np.flatnonzero(of_context)[0] == before[each]
        for (start, end), (low, high) in zip(place[of_context], np.array(window.offsets)[of_context], strict=True):
            # The same characters, without the spaces around them.
            assert context[start:end] == context[low:high].strip()


@given(KIND, TEXT)
def test_a_place_neither_begins_nor_ends_with_a_space(kind: str, text: str) -> None:
    pieces, _ = read_pieces(small_tokenizer(kind), [text], places=True)
    assert pieces.places is not None
    assert all(text[start:end] == text[start:end].strip() for start, end in pieces.places)


def test_a_text_is_tokenized_once() -> None:
    pieces, of_text = read_pieces(small_tokenizer("bert"), ["red fox", "dog", "red fox"])
    assert of_text.tolist() == [0, 1, 0]
    assert len(pieces.starts) == 3


@pytest.mark.parametrize(
    ("kind", "parts", "segments"),
    [
        ("bert", (1, FIRST, 2, SECOND, 2), (0, 0, 0, 1, 1)),
        ("roberta", (0, FIRST, 1, 1, SECOND, 1), (0,) * 6),
        ("albert", (1, FIRST, 2, SECOND, 2), (0, 0, 0, 1, 1)),
    ],
)
def test_special_tokens_are_where_the_post_processor_puts_them(kind: str, parts: tuple, segments: tuple) -> None:
    assert read_frame(small_tokenizer(kind)) == Frame(parts, segments)


def test_a_frame_may_end_with_its_special_tokens_or_have_none() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<sep>": 2, "<cls>": 3}, unk_token="b"))
    assert read_frame(Tokenizer(words)).parts == (FIRST, SECOND)
    words.post_processor = processors.TemplateProcessing(
        "$A:0 <sep>:0 <cls>:2", "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2", [("<sep>", 2), ("<cls>", 3)]
    )
    xlnet = read_frame(Tokenizer(words))
    assert (xlnet.parts, xlnet.segments) == ((FIRST, 2, SECOND, 2, 3), (0, 0, 1, 1, 2))


def test_a_length_without_room_is_refused() -> None:
    frame = read_frame(small_tokenizer("roberta"))
    assert frame.room(6, least=2) == 2
    with pytest.raises(DataError, match=r"a sequence of 5 tokens holds 4 special tokens .* max_length of at least 6"):
        frame.room(5, least=2)


def test_the_backend_keeps_no_truncation() -> None:
    tokenizer = small_tokenizer("bert")
    read_pieces(tokenizer, SENTENCES)
    assert tokenizer.backend.truncation is None
