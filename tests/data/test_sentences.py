"""Sentences end where they end, and nothing of a text is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.sentences import split_sentences

CASES = [
    ("It rains. We stay.", ["It rains.", "We stay."]),
    ("Mr. Fox and Dr. J. Hare met at St. Ives. They left.", ["Mr. Fox and Dr. J. Hare met at St. Ives.", "They left."]),
    ('"Who?" she asked. "Me!" he said.', ['"Who?" she asked.', '"Me!" he said.']),
    ("“Go on.” “I will.”", ["“Go on.”", "“I will.”"]),
    ("Version 2.5 is out, e.g. for you. 3 of us have it.", ["Version 2.5 is out, e.g. for you.", "3 of us have it."]),
    ("Wait… What?! No way", ["Wait…", "What?!", "No way"]),
    ("a line\nanother line\n\n  a third ", ["a line", "another line", "a third"]),
    ("雨が降る。家にいる。", ["雨が降る。", "家にいる。"]),
    ("Élan. Über alles. Привет. Мир.", ["Élan.", "Über alles.", "Привет.", "Мир."]),
    ("he said etc. and went", ["he said etc. and went"]),
    (" \n\t\n", []),
]


@pytest.mark.parametrize(("text", "sentences"), CASES, ids=[text[:12] for text, _ in CASES])
def test_sentences_end_where_they_end(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(st.sampled_from('aB .!?…"”。\n\r\u2028Mr')))
def test_nothing_but_space_is_lost(text: str) -> None:
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)
