"""Shapes with a name: data only. A preset is a config and the name of the Hub weights that have it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from halfpint.config import ConfigError, EncoderConfig


@dataclass(frozen=True)
class Preset:
    """A published shape; as a model it means the weights of `hub`."""

    name: str
    hub: str
    family: str
    config: EncoderConfig
    license: str = "apache-2.0"


BERT: dict[str, Any] = {"vocab_size": 30522}
ROBERTA: dict[str, Any] = {
    "vocab_size": 50265,
    "position_offset": 2,
    "num_token_types": 1,
    "pad_id": 1,
    "norm_eps": 1e-5,
}
DISTILBERT: dict[str, Any] = {"vocab_size": 30522, "num_token_types": 0, "pooler": "none"}
ALBERT: dict[str, Any] = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "embedding_projection": "sum",
    "sharing": "all",
    "activation": "gelu_tanh",
    "dropout": 0.0,
}
MOBILEBERT: dict[str, Any] = {
    "vocab_size": 30522,
    "embedding_size": 128,
    "embedding_projection": "words",
    "trigram": True,
    "activation": "relu",
    "norm": "no_norm",
    "bottleneck_size": 128,
    "shared_query_key": True,
    "num_ffns": 4,
    "dropout": 0.0,
}

# name: (Hub weights, family, layers, hidden size, heads, FFN width, what the family shares)
_SHAPES: dict[str, tuple[str, str, int, int, int, int, dict[str, Any]]] = {
    "bert-tiny": ("google/bert_uncased_L-2_H-128_A-2", "bert", 2, 128, 2, 512, BERT),
    "bert-mini": ("google/bert_uncased_L-4_H-256_A-4", "bert", 4, 256, 4, 1024, BERT),
    "bert-small": ("google/bert_uncased_L-4_H-512_A-8", "bert", 4, 512, 8, 2048, BERT),
    "bert-medium": ("google/bert_uncased_L-8_H-512_A-8", "bert", 8, 512, 8, 2048, BERT),
    "bert-base": ("google-bert/bert-base-uncased", "bert", 12, 768, 12, 3072, BERT),
    "bert-large": ("google-bert/bert-large-uncased", "bert", 24, 1024, 16, 4096, BERT),
    "roberta-base": ("FacebookAI/roberta-base", "roberta", 12, 768, 12, 3072, ROBERTA),
    "distilbert": ("distilbert/distilbert-base-uncased", "distilbert", 6, 768, 12, 3072, DISTILBERT),
    "distilroberta": ("distilbert/distilroberta-base", "roberta", 6, 768, 12, 3072, ROBERTA),
    "albert-base": ("albert/albert-base-v2", "albert", 12, 768, 12, 3072, ALBERT),
    "albert-large": ("albert/albert-large-v2", "albert", 24, 1024, 16, 4096, ALBERT),
    "albert-xlarge": ("albert/albert-xlarge-v2", "albert", 24, 2048, 16, 8192, ALBERT),
    "albert-xxlarge": ("albert/albert-xxlarge-v2", "albert", 12, 4096, 64, 16384, ALBERT),
    "tinybert-4": ("huawei-noah/TinyBERT_General_4L_312D", "bert", 4, 312, 12, 1200, BERT),
    "tinybert-6": ("huawei-noah/TinyBERT_General_6L_768D", "bert", 6, 768, 12, 3072, BERT),
    "mobilebert": ("google/mobilebert-uncased", "mobilebert", 24, 512, 4, 512, MOBILEBERT),
    "minilm-6-384": ("nreimers/MiniLM-L6-H384-uncased", "bert", 6, 384, 12, 1536, BERT),
    "minilm-12-384": ("microsoft/MiniLM-L12-H384-uncased", "bert", 12, 384, 12, 1536, BERT),
}

_MIT = ("roberta-base", "minilm-6-384", "minilm-12-384")

PRESETS: dict[str, Preset] = {
    name: Preset(
        name=name,
        hub=hub,
        family=family,
        config=EncoderConfig.uniform(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=ffn, **fields),
        license="mit" if name in _MIT else "apache-2.0",
    )
    for name, (hub, family, layers, hidden, heads, ffn, fields) in _SHAPES.items()
}

ALIASES = {"minilm-6": "minilm-6-384", "minilm-12": "minilm-12-384", "albert-base-v2": "albert-base"}


def find_preset(name: str) -> Preset | None:
    return PRESETS.get(ALIASES.get(name, name))


def preset(name: str) -> Preset:
    """The preset of that name; an unknown one is answered with the nearest names."""
    found = find_preset(name)
    if found is None:
        near = difflib.get_close_matches(name, [*PRESETS, *ALIASES], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the presets are {', '.join(PRESETS)}"
        raise ConfigError(f"there is no preset {name!r}; {hint}")
    return found
