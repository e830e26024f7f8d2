"""Model folders for tests: tiny random models of the family and of others, with a tokenizer of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.checkpoints.foreign import make_foreign, save_foreign

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 20}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
BART_SIZES = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 20}.items()
}
OTHERS: dict[str, Any] = {
    "xlnet": transformers.XLNetConfig(vocab_size=40, d_model=24, n_layer=2, n_head=2, d_inner=20),
    "bart": transformers.BartConfig(vocab_size=40, d_model=24, max_position_embeddings=18, **BART_SIZES),
    "mpnet": transformers.MPNetConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=20),
    "deberta-v2": transformers.DebertaV2Config(
        **SIZES, num_hidden_layers=2, max_position_embeddings=18, type_vocab_size=2,
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
    ),
    "electra": transformers.ElectraConfig(
        **SIZES, num_hidden_layers=2, max_position_embeddings=18, embedding_size=8
    ),
    "modernbert": transformers.ModernBertConfig(
        **SIZES, **ENDS, num_hidden_layers=4, max_position_embeddings=18, local_attention=4, pad_token_id=0
    ),
}  # fmt: skip
"""Architectures outside the family: positions relative, rotary and counted from the padding id, disentangled
attention, local attention, an encoder-decoder."""


def make_other(name: str) -> Any:
    return randomize(transformers.AutoModel.from_config(OTHERS[name]))


def randomize(model: Any) -> Any:
    """Biases and norms too, so that nothing hides behind a zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.tie_weights()
    return model.eval()


def write_bert(folder: Path, class_name: str = "BertModel", **changes: Any) -> Path:
    """A tiny BERT in the Hub's layout: 40 words, 18 positions."""
    save_foreign(make_foreign("bert", class_name, **changes), folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, num_words: int = 40) -> None:
    """`w4 w5 …` are words 4, 5 …; a text begins with 2 and ends with 3."""
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3} | {f"w{word}": word for word in range(4, num_words)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def edit_config(folder: Path, *gone: str, **changes: Any) -> None:
    """Change values of config.json, and take some out."""
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if name not in gone}))
