"""Vocabularies of one's own texts: WordPiece as BERT's, Unigram as ALBERT's, byte-level BPE as RoBERTa's.

What is notable:
- Words are counted first, and the counts are all that training needs: texts are read once, and memory grows with the
  number of different words alone.
- The same texts give the same file. The library's own training does not: it goes through hash maps, whose order is
  another one every time. So the characters of WordPiece are numbered beforehand (what is learnt from them then follows
  from the counts), and Unigram's scores, whose last digits depend on the order of sums, are rounded and sorted. Only
  where texts are noise may Unigram keep one or the other of two pieces that are worth exactly the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from halfpint.data.pipelines import (
    FAMILIES,
    LONGEST_WORD,
    PREFIX,
    Kind,
    bpe_pipeline,
    unigram_pipeline,
    word_splitter,
    wordpiece_pipeline,
)
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer

VOCAB_SIZE = 30_000
FEWEST = 2
"""A pair of pieces that is seen less often is not made one, or a few texts would be learnt by heart."""
COVERAGE = 0.9995
"""Where all characters would fill more than half of the vocabulary, only the commonest are kept that make up so much
of the texts, as SentencePiece does it."""
DIGITS = 4
"""Of Unigram's scores. They differ from run to run in the 13th."""
PENALTY = 1e-4
"""By so much each differ the scores of characters that Unigram dropped and put back, in whatever order."""
COPIES = 1 << 14
"""Of a word in one text, at most."""


def train_tokenizer(
    texts: Iterable[str], kind: Kind, *, vocab_size: int = VOCAB_SIZE, lowercase: bool | None = None
) -> Tokenizer:
    """A tokenizer with a vocabulary of `vocab_size` or, where the texts do not give as many pieces, a smaller one.

    It lower-cases as the published ones of its kind do (bytes alone are cased), unless told. The least that a
    vocabulary holds are the special tokens and the characters of the texts (in WordPiece twice, if they also stand
    within words), or all 256 bytes.
    """
    if kind not in FAMILIES:
        raise ValueError(f"there is no tokenizer of kind {kind!r}; known are {', '.join(get_args(Kind))}")
    lowercase = FAMILIES[kind].lowercase if lowercase is None else lowercase
    words = _count_words(texts, kind, lowercase)
    if not words:
        raise DataError("there is no word in these texts to train a tokenizer on; give some with words in them")
    if kind == "wordpiece":
        return wordpiece_pipeline(_train_wordpiece(words, vocab_size), lowercase=lowercase)
    if kind == "unigram":
        return unigram_pipeline(_train_unigram(words, vocab_size), lowercase=lowercase)
    return bpe_pipeline(*_train_bpe(words, vocab_size), lowercase=lowercase)


def _count_words(texts: Iterable[str], kind: Kind, lowercase: bool) -> dict[str, int]:
    """How often each word occurs, in the order of the words."""
    trainer = trainers.WordLevelTrainer(vocab_size=1, show_progress=False)
    word_splitter(kind, models.WordLevel(), lowercase).train_from_iterator(_checked(texts), trainer)
    # The library counts in parallel, and tells the counts to nobody but pickle.
    (state,) = json.loads(trainer.__getstate__()).values()
    return dict(sorted(state["words"].items()))


def _checked(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise DataError(f"text {number} is {text!r}, expected a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"text {number} has half a surrogate pair (\\ud800 to \\udfff), which is no text; mend it"
            ) from error
        if not text.isspace():
            yield text


def _train_wordpiece(words: Mapping[str, int], vocab_size: int) -> dict[str, int]:
    short = {word: count for word, count in words.items() if len(word) <= LONGEST_WORD}
    special = list(FAMILIES["wordpiece"].special.values())
    # What always stands alone, as punctuation does, continues no word.
    inner = {character for word in short if len(word) > 1 for character in word}
    known = _common_characters(short, vocab_size, len(special), twice=inner)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=FEWEST,
        special_tokens=[*special, *sorted(known), *(PREFIX + character for character in sorted(known & inner))],
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    # A word with an unknown character is unknown.
    kept = {word: count for word, count in short.items() if known.issuperset(word)}
    vocabulary: dict[str, int] = _train(models.WordPiece(), trainer, kept)["vocab"]
    return vocabulary


def _train_unigram(words: Mapping[str, int], vocab_size: int) -> list[tuple[str, float]]:
    special = FAMILIES["unigram"].special
    known = _common_characters(words, vocab_size, len(special), twice=set())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(special.values()), unk_token=special["unk"], show_progress=False
    )
    found = _train(models.Unigram(), trainer, _cut_at_unknown(words, known))["vocab"]
    scores = {piece: score for piece, score in found if piece not in special.values()}
    lowest = min(scores.values())
    for piece, score in scores.items():
        was_put_back = len(piece) == 1 and score < lowest + PENALTY * (len(known) + 1)
        scores[piece] = round(lowest if was_put_back else score, DIGITS)
    ordered = sorted(scores, key=lambda piece: (-scores[piece], piece))
    # Where characters alone fill the vocabulary, the library goes on all the same.
    longer = [piece for piece in ordered if len(piece) > 1][: vocab_size - len(special) - len(known)]
    kept = known.union(longer)
    return [(token, 0.0) for token in special.values()] + [(piece, scores[piece]) for piece in ordered if piece in kept]


def _train_bpe(words: Mapping[str, int], vocab_size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    special, alphabet = list(FAMILIES["bpe"].special.values()), sorted(pre_tokenizers.ByteLevel.alphabet())
    _require_room(vocab_size, len(special), len(alphabet), "256 bytes")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=FEWEST,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    model = _train(models.BPE(), trainer, words)
    return model["vocab"], [(first, second) for first, second in model["merges"]]


def _common_characters(words: Mapping[str, int], vocab_size: int, num_special: int, twice: set[str]) -> set[str]:
    """All characters, or those worth their place in the vocabulary, of which some take two."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    known = set(counts)
    if len(known) + len(known & twice) > (vocab_size - num_special) // 2:
        needed, known = COVERAGE * counts.total(), set()
        for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if needed <= 0:
                break
            known.add(character)
            needed -= count
    _require_room(vocab_size, num_special, len(known) + len(known & twice), f"{len(known):,} characters of these texts")
    return known


def _require_room(vocab_size: int, num_special: int, num_pieces: int, what: str) -> None:
    if vocab_size < num_special + num_pieces:
        raise DataError(
            f"a vocabulary of {vocab_size:,} has no room for {num_special} special tokens and the {what}; "
            f"give a vocab_size of at least {num_special + num_pieces:,}"
        )


def _cut_at_unknown(words: Mapping[str, int], known: set[str]) -> dict[str, int]:
    """What is left of the words without other characters. Without spaces (in Chinese, say) a word is a whole clause."""
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in "".join(each if each in known else " " for each in word).split(" "):
            parts[part] += count
    del parts[""]
    return dict(sorted(parts.items()))


def _train(model: models.Model, trainer: trainers.Trainer, words: Mapping[str, int]) -> dict[str, Any]:
    """The model that these words make, as a tokenizer.json has it."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_copies(words), trainer)
    found: dict[str, Any] = json.loads(backend.to_str())["model"]
    return found


def _copies(words: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it was counted: a trainer takes texts, no counts."""
    for word, count in words.items():
        for start in range(0, count, COPIES):
            yield f"{word} " * min(COPIES, count - start)
