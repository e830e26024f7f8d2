"""BERT's, ALBERT's and RoBERTa's tokenizers without a vocabulary: how texts become words, and what goes around them.

What is notable:
- A pipeline is completed by a vocabulary, be it trained or published.
- What comes out of one also opens in `transformers`: `write_companions` writes the files by which it knows the class.
- Where that class could not rebuild a pipeline (a lower-cased RoBERTa, a cased ALBERT with one form for each
  character), the folder names the class that takes tokenizer.json as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from halfpint.data.tokenizer import Tokenizer

Kind = Literal["wordpiece", "unigram", "bpe"]

PREFIX = "##"
"""Of a piece that continues a word."""
LONGEST_WORD = 100
"""WordPiece takes a longer one for unknown, as in BERT."""


@dataclass(frozen=True)
class Family:
    """What the tokenizers of a kind have in common."""

    special: Mapping[str, str]
    """Special tokens by role, in the order of the ids that they get in a new vocabulary."""
    mask_takes_space: bool
    """Whether the space before a mask belongs to it."""
    lowercase: bool
    """Whether the published ones of this kind lower-case."""
    num_token_types: int
    transformers_class: str


FAMILIES: dict[Kind, Family] = {
    "wordpiece": Family(
        {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        mask_takes_space=False,
        lowercase=True,
        num_token_types=2,
        transformers_class="BertTokenizer",
    ),
    "unigram": Family(
        {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        mask_takes_space=True,
        lowercase=True,
        num_token_types=2,
        transformers_class="AlbertTokenizer",
    ),
    "bpe": Family(
        {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
        mask_takes_space=True,
        lowercase=False,
        num_token_types=0,
        transformers_class="RobertaTokenizer",
    ),
}


def wordpiece_pipeline(vocabulary: Mapping[str, int], *, lowercase: bool = True) -> Tokenizer:
    """BERT's: controls dropped, Chinese characters and punctuation apart, accents stripped where lower-cased."""
    unknown = FAMILIES["wordpiece"].special["unk"]
    model = models.WordPiece(dict(vocabulary), unk_token=unknown, max_input_chars_per_word=LONGEST_WORD)
    return _complete("wordpiece", model, lowercase)


def unigram_pipeline(pieces: Sequence[tuple[str, float]], *, lowercase: bool = True) -> Tokenizer:
    """ALBERT's: quotes made one, accents stripped where lower-cased, words with a ▁ before them."""
    unknown = [piece for piece, _ in pieces].index(FAMILIES["unigram"].special["unk"])
    return _complete("unigram", models.Unigram(list(pieces), unk_id=unknown, byte_fallback=False), lowercase)


def bpe_pipeline(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], *, lowercase: bool = False
) -> Tokenizer:
    """RoBERTa's: bytes, with the space before a word part of it."""
    model = models.BPE(dict(vocabulary), list(merges), continuing_subword_prefix="", end_of_word_suffix="")
    return _complete("bpe", model, lowercase)


def word_splitter(kind: Kind, model: models.Model, lowercase: bool) -> tokenizers.Tokenizer:
    """From texts to words: all that comes before the vocabulary."""
    backend = tokenizers.Tokenizer(model)
    if kind == "wordpiece":
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "unigram":
        steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += [normalizers.NFKD(), normalizers.StripAccents()] if lowercase else [normalizers.NFKC()]
        backend.normalizer = normalizers.Sequence(steps + [normalizers.Lowercase()] * lowercase)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    else:
        if lowercase:
            backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def _complete(kind: Kind, model: models.Model, lowercase: bool) -> Tokenizer:
    backend = word_splitter(kind, model, lowercase)
    backend.add_special_tokens(_added_tokens(kind))
    special, ids = FAMILIES[kind].special, backend.get_vocab()
    begin, end = ((token, ids[token]) for token in (special["cls"], special["sep"]))
    if kind == "bpe":
        backend.post_processor = processors.RobertaProcessing(end, begin, trim_offsets=True, add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[begin, end]
        )
        backend.decoder = decoders.WordPiece(PREFIX) if kind == "wordpiece" else decoders.Metaspace()
    return Tokenizer(backend)


def _added_tokens(kind: Kind) -> list[AddedToken]:
    family = FAMILIES[kind]
    return [
        AddedToken(token, lstrip=role == "mask" and family.mask_takes_space, normalized=False, special=True)
        for role, token in family.special.items()
    ]


def write_companions(folder: Path, tokenizer: Tokenizer, *, max_length: int | None = None) -> None:
    """Beside the tokenizer.json of one of these pipelines, what `transformers` reads; see `COMPANIONS`."""
    kind, lowercase = _recognize(tokenizer)
    family = FAMILIES[kind]
    tokens = [
        (tokenizer.backend.token_to_id(token.content), _described(token) | {"special": True})
        for token in _added_tokens(kind)
    ]
    roles = {f"{role}_token": token for role, token in family.special.items()}
    if kind != "wordpiece":
        roles |= {"bos_token": family.special["cls"], "eos_token": family.special["sep"]}
    rebuilds = kind == "wordpiece" or lowercase == family.lowercase
    settings: dict[str, Any] = {
        "tokenizer_class": family.transformers_class if rebuilds else "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *["token_type_ids"] * (family.num_token_types > 0), "attention_mask"],
        "clean_up_tokenization_spaces": kind == "wordpiece",
        "added_tokens_decoder": {str(number): token for number, token in tokens},
        **roles,
    }
    if kind == "wordpiece":
        settings |= {"do_lower_case": lowercase, "strip_accents": None, "tokenize_chinese_chars": True}
    elif rebuilds:
        settings |= {"do_lower_case": True, "keep_accents": False} if lowercase else {"add_prefix_space": False}
    if max_length is not None:
        settings["model_max_length"] = max_length
    described = {token.content: _described(token) for token in _added_tokens(kind)}
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "special_tokens_map.json", {role: described[token] for role, token in roles.items()})


def is_own(tokenizer: Tokenizer) -> bool:
    """Whether it is one of these pipelines, so that `write_companions` knows what to write."""
    try:
        _recognize(tokenizer)
    except ValueError:
        return False
    return True


def _recognize(tokenizer: Tokenizer) -> tuple[Kind, bool]:
    """Which pipeline it is, and whether it lower-cases."""
    told = json.loads(tokenizer.to_json())
    model = str(told["model"].get("type"))
    for kind, family in FAMILIES.items():
        known = all(tokenizer.backend.token_to_id(token) is not None for token in family.special.values())
        if model.lower() == kind and known:
            whole = told["normalizer"] or {}
            steps = whole.get("normalizers", [whole])
            return kind, any(step.get("lowercase", step.get("type") == "Lowercase") for step in steps)
    raise ValueError(
        f"a {model} tokenizer without the special tokens of BERT, ALBERT or RoBERTa; save it with transformers, "
        "which knows what it is"
    )


def _described(token: AddedToken) -> dict[str, Any]:
    return {name: getattr(token, name) for name in ("content", "lstrip", "normalized", "rstrip", "single_word")}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
