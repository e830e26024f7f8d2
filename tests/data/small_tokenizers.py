"""Small tokenizers of the three kinds: WordPiece as BERT, byte-level BPE as RoBERTa, SentencePiece as ALBERT."""

from __future__ import annotations

from functools import cache

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from halfpint.data.tokenizer import Tokenizer

KINDS = ("bert", "roberta", "albert")
SENTENCES = [
    "The red fox jumps over a lazy dog, and naïve cafés sleep in the sun.",
    "Seven ships left the harbour at noon; one carried 1,250 barrels of tar (and little else).",
    "Who carried the barrels? What left the harbour? When do cafés sleep?",
    "Anna Marsh of Northwick met the Grey Company near Lake Tarn on Monday.",
]
PAIR = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
SINGLE = "[CLS]:0 $A:0 [SEP]:0"


@cache
def small_tokenizer(kind: str) -> Tokenizer:
    return Tokenizer({"bert": _wordpiece, "roberta": _bytes, "albert": _unigram}[kind]())


def _wordpiece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        SENTENCES, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(SINGLE, PAIR, [("[CLS]", 1), ("[SEP]", 2)])
    return made


def _bytes() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    return made


def _unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Replace("  ", " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "[CLS]", "[SEP]"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = processors.TemplateProcessing(SINGLE, PAIR, [("[CLS]", 1), ("[SEP]", 2)])
    return made
