"""A small made-up language: documents have topics, words have companions, and sentences know where they stand."""

from __future__ import annotations

import random
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, processors

from halfpint.data.build_corpus import build_corpus
from halfpint.data.corpus import Corpus
from halfpint.data.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_TOPICS, WORDS_OF_TOPIC, NUM_STAGES = 6, 8, 6


def make_tokenizer() -> Tokenizer:
    topics = [f"t{topic}w{word}" for topic in range(NUM_TOPICS) for word in range(WORDS_OF_TOPIC)]
    words = [*SPECIAL, *topics, *(f"stage{stage}" for stage in range(NUM_STAGES))]
    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(SPECIAL)
    return Tokenizer(made)


def make_documents(count: int, *, stages: bool, seed: int = 0) -> list[str]:
    """A word with an even number is always followed by the next one, its companion."""
    rng = random.Random(seed)
    documents = []
    for _ in range(count):
        topic = rng.randrange(NUM_TOPICS)
        sentences = []
        for stage in range(NUM_STAGES):
            firsts = [2 * rng.randrange(WORDS_OF_TOPIC // 2) for _ in range(2)]
            words = [f"t{topic}w{word + more}" for word in firsts for more in (0, 1)]
            sentences.append(" ".join([f"stage{stage}", *words] if stages else words))
        documents.append("\n".join(sentences))
    return documents


def make_corpus(folder: Path, count: int = 600, *, stages: bool = True) -> Corpus:
    return build_corpus(make_documents(count, stages=stages), make_tokenizer(), folder, processes=1)
