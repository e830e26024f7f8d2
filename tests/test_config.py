"""Configs: what cannot be built is refused in words, and what can survives a round trip through JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.config import (
    ChoiceHead,
    ConfigError,
    EmbeddingHead,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    Sharing,
    SpanHead,
    TokenHead,
    from_dict,
    reads_pooler,
    to_dict,
)
from halfpint.presets import ALIASES, PRESETS, find_preset, preset
from tests.strategies import HEADS, encoder_configs, model_configs

SIZES: dict[str, Any] = {"vocab_size": 40, "num_layers": 3, "hidden_size": 24, "num_heads": 3, "ffn_size": 20}
CONFIG = EncoderConfig.uniform(**SIZES)


@pytest.mark.parametrize(
    ("name", "attention", "ffn"),
    [
        ("none", (0, 1, 2), (0, 1, 2)),
        ("attention", (0, 0, 0), (0, 1, 2)),
        ("ffn", (0, 1, 2), (0, 0, 0)),
        ("all", (0, 0, 0), (0, 0, 0)),
    ],
)
def test_named_sharing_names_what_is_shared(name: str, attention: tuple, ffn: tuple) -> None:
    assert Sharing.named(name, 3) == Sharing(attention, ffn)


@given(st.integers(1, 48), st.data())
def test_groups_are_consecutive_layers_of_nearly_equal_number(num_layers: int, data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, num_layers))
    sharing = Sharing.groups(num_layers, num_groups)
    assert sharing.attention == sharing.ffn == tuple(sorted(sharing.attention))
    sizes = Counter(sharing.attention).values()
    assert (sum(sizes), len(sizes)) == (num_layers, num_groups)
    assert max(sizes) - min(sizes) <= 1


def test_one_group_shares_all_and_a_group_a_layer_shares_none() -> None:
    assert Sharing.groups(5, 1) == Sharing.named("all", 5)
    assert Sharing.groups(5, 5) == Sharing.named("none", 5)


def test_a_map_counts_its_layers_and_blocks() -> None:
    sharing = Sharing(attention=(1, 0, 1), ffn=(0, 2, 1))
    assert (sharing.num_layers, sharing.num_attention_blocks, sharing.num_ffn_blocks) == (3, 2, 3)


def test_lists_are_tuples_too() -> None:
    config = dataclasses.replace(CONFIG, sharing=Sharing([0, 0, 0], [0, 0, 0]), num_heads=[3], ffn_size=[20])
    assert config == EncoderConfig.uniform(**SIZES, sharing="all")
    assert hash(config) == hash(EncoderConfig.uniform(**SIZES, sharing="all"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sharing((), ()), "at least one layer"),
        (lambda: Sharing((0, 1), (0,)), "2 layers to attention blocks and 1 to FFN"),
        (lambda: Sharing((0, 2), (0, 1)), r"sharing.attention is \(0, 2\).*without a gap"),
        (lambda: Sharing((0, 1), (1, 1)), r"sharing.ffn is \(1, 1\).*without a gap"),
        (lambda: Sharing((0, -1), (0, 1)), r"sharing.attention is \(0, -1\)"),
        (lambda: Sharing.named("some", 3), "unknown sharing 'some'; it is one of none, attention, ffn, all"),
        (lambda: Sharing.named("all", 0), "num_layers is 0"),
        (lambda: Sharing.groups(4, 5), "4 layers cannot form 5 groups"),
        (lambda: Sharing.groups(4, 0), "4 layers cannot form 0 groups"),
        (lambda: Sharing((0, 10**10), (0, 1)), r"sharing.attention is \(0, 10000000000\).*without a gap"),
        (lambda: Sharing("01", (0, 1)), "sharing.attention is '01'; it must be a list, each of it a whole number"),
        (lambda: Sharing((0, 1.0), (0, 1)), r"sharing.attention is \(0, 1.0\); it must be a list"),
        (lambda: Sharing((0, True), (0, 1)), r"sharing.attention is \(0, True\); it must be a list"),
        (lambda: Sharing.named("all", 2.0), "num_layers is 2.0; it must be a whole number"),
        (lambda: Sharing.groups(4, "2"), "num_groups is '2'; it must be a whole number"),
    ],
)
def test_an_impossible_sharing_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(
            ({name: 0}, f"{name} is 0; it must be positive")
            for name in ("vocab_size", "hidden_size", "head_size", "embedding_size", "num_positions", "num_ffns")
        ),
        *(
            ({name: -1}, f"{name} is -1; it cannot be negative")
            for name in ("position_offset", "num_token_types", "pad_id")
        ),
        ({"pad_id": 40}, "pad_id is 40, outside the vocabulary of 40"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0; it must be positive"),
        ({"outer_norm_eps": -1e-3}, "norm_eps is -0.001; it must be positive"),
        ({"outer_norm_eps": 0}, "^outer_norm_eps is 0; it must be positive"),
        *(
            ({name: value}, f"{name} is {value!r}; it must be a whole number")
            for name in ("vocab_size", "hidden_size", "head_size", "num_positions", "num_token_types", "num_ffns")
            for value in (24.0, "24", None, True)
        ),
        *(
            ({name: value}, f"{name} is {value!r}; it must be a finite number")
            for name in ("norm_eps", "outer_norm_eps", "dropout", "attention_dropout", "initializer_range")
            for value in (float("inf"), float("nan"), "0.1", True)
        ),
        ({"num_heads": 2.0}, "num_heads is 2.0; it must be a list, each of it a whole number"),
        ({"num_heads": (3.0, 3, 3)}, "num_heads is .3.0, 3, 3.; it must be a list, each of it a whole number"),
        ({"bottleneck_size": 12.0}, "bottleneck_size is 12.0; it must be a whole number, or None"),
        ({"trigram": 1}, "trigram is 1; it must be True or False"),
        ({"sharing": "all"}, r"sharing is 'all'; it must be Sharing\("),
        ({"activation": ["gelu"]}, r"activation is \['gelu'\]; it is one of gelu"),
        ({"depth": 3}, "EncoderConfig has no field depth; its fields are vocab_size"),
        ({"initializer_range": 0.0}, "initializer_range is 0.0; it must be positive"),
        ({"dropout": 1.0}, r"dropout is 1.0; it must be in \[0, 1\)"),
        ({"dropout": -0.1}, r"dropout is -0.1; it must be in \[0, 1\)"),
        ({"attention_dropout": 1.5}, r"attention_dropout is 1.5; it must be in \[0, 1\)"),
        ({"num_heads": (3, 3)}, "num_heads has 2 entries, but sharing names 3 physical blocks"),
        ({"ffn_size": (20,) * 4}, "ffn_size has 4 entries, but sharing names 3 physical blocks"),
        ({"num_heads": (3, 0, 3)}, r"num_heads is \(3, 0, 3\); every block needs at least one"),
        ({"ffn_size": (20, -1, 20)}, r"ffn_size is \(20, -1, 20\)"),
        ({"bottleneck_size": 0}, "bottleneck_size is 0; it must be positive"),
        ({"shared_query_key": True}, "shared_query_key needs a bottleneck_size"),
        ({"activation": "swish"}, "activation is 'swish'; it is one of gelu, gelu_tanh, relu"),
        ({"norm": "rms"}, "norm is 'rms'; it is one of layer_norm, no_norm"),
        ({"embedding_projection": "both"}, "embedding_projection is 'both'; it is one of none, words, sum"),
        ({"pooler": "mean"}, "pooler is 'mean'; it is one of none, tanh, first"),
        ({"embedding_size": 8}, "embedding_size 8 and hidden_size 24 need an embedding_projection"),
        ({"trigram": True}, "with trigrams.*need an embedding_projection"),
        ({"trigram": True, "embedding_projection": "sum"}, "trigram.*embedding_projection='words'"),
    ],
    ids=str,
)
def test_an_impossible_encoder_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CONFIG.replace(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 5}, "width of 24 does not divide into 5 heads; give head_size"),
        ({"num_heads": 0}, "width of 24 does not divide into 0 heads"),
        ({"bottleneck_size": 10}, "width of 10 does not divide into 3 heads"),
        ({"sharing": Sharing.named("all", 4)}, "sharing maps 4 layers, but num_layers is 3"),
        ({"sharing": "most"}, "unknown sharing 'most'"),
        ({"sharing": [0, 0]}, r"sharing is \[0, 0\]; it must be Sharing\("),
        ({"embedding_size": 0}, "embedding_size is 0; it must be positive"),
        ({"bottleneck_size": 0}, "bottleneck_size is 0; it must be positive"),
        ({"bottleneck_size": "12"}, "bottleneck_size is '12'; it must be a whole number, or None"),
        ({"head_size": 0}, "head_size is 0; it must be positive"),
        *(
            ({name: value}, f"{name} is {value!r}; it must be a whole number")
            for name in SIZES
            for value in (24.0, "24", None)
        ),
        ({"depth": 3}, "EncoderConfig has no field depth; its fields are vocab_size"),
    ],
    ids=str,
)
def test_an_impossible_uniform_encoder_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EncoderConfig.uniform(**{**SIZES, **changes})


def test_uniform_blocks_divide_the_width_unless_told() -> None:
    assert CONFIG.head_size == 8
    assert EncoderConfig.uniform(**SIZES, bottleneck_size=12).head_size == 4
    assert EncoderConfig.uniform(**SIZES, head_size=5).head_size == 5
    assert EncoderConfig.uniform(**{**SIZES, "num_heads": 7}, head_size=5).num_heads == (7, 7, 7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MaskedLMHead("swish"), "activation is 'swish'; it is one of gelu, gelu_tanh, relu"),
        (lambda: OrderHead(4), "order head has 2 or 3 classes, not 4"),
        (lambda: OrderHead(dropout=1.0), "dropout is 1.0"),
        (lambda: SequenceHead(()), "sequence head needs at least one label"),
        (lambda: SequenceHead(("a",), problem="ranking"), "problem is 'ranking'; it is one of single_label"),
        (lambda: SequenceHead(("a",), dense="gelu"), "dense is 'gelu'; it is one of tanh, relu"),
        (lambda: SequenceHead(("a",), dropout=-0.1), "dropout is -0.1"),
        (lambda: TokenHead(()), "token head needs at least one label"),
        (lambda: TokenHead(("a",), dropout=1.0), "dropout is 1.0"),
        (lambda: SpanHead(dropout=1.0), "dropout is 1.0"),
        (lambda: ChoiceHead(dense="gelu"), "dense is 'gelu'; it is one of tanh, relu"),
        (lambda: ChoiceHead(dropout=2.0), "dropout is 2.0"),
        (lambda: OrderHead(2.0), "num_classes is 2.0; it must be a whole number"),
        (lambda: SequenceHead("yes"), "labels is 'yes'; it must be a list, each of it a text"),
        (lambda: TokenHead({"a": 1}), "labels is {'a': 1}; it must be a list, each of it a text"),
        (lambda: TokenHead(["a", 1]), "labels is .'a', 1.; it must be a list, each of it a text"),
        (lambda: SpanHead(no_answer="no"), "no_answer is 'no'; it must be True or False"),
        (lambda: ChoiceHead(dropout="0.1"), "dropout is '0.1'; it must be a finite number"),
        (lambda: EmbeddingHead(normalize=1), "normalize is 1; it must be True or False"),
        (lambda: ModelConfig({"hidden_size": 24}), r"encoder is {'hidden_size': 24}; it must be EncoderConfig\("),
        (lambda: ModelConfig(CONFIG, SpanHead()), r"heads is SpanHead\(.*; it must be a list"),
        (lambda: ModelConfig(CONFIG, ("span",)), r"heads is \('span',\); it must be a list"),
        (lambda: EmbeddingHead("max"), "pooling is 'max'; it is one of mean, cls"),
    ],
)
def test_an_impossible_head_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


WIDE_WORDS = CONFIG.replace(embedding_size=30, embedding_projection="words")


@pytest.mark.parametrize(
    ("encoder", "heads", "words"),
    [
        (CONFIG, (TokenHead(("a",)), SpanHead(), TokenHead(("b",))), "at most one head of a kind, not token, span"),
        (WIDE_WORDS, (MaskedLMHead(),), "masked-LM head cannot decode from width 24 with word embeddings of 30"),
        (CONFIG.replace(pooler="none"), (OrderHead(),), "order head reads the pooler, and this encoder has none"),
        (CONFIG.replace(pooler="none"), (SequenceHead(("a",)),), "sequence head reads the pooler.*dense layer"),
        (CONFIG.replace(pooler="none"), (ChoiceHead(),), "choice head reads the pooler"),
    ],
)
def test_heads_that_do_not_fit_the_encoder_are_refused(encoder: EncoderConfig, heads: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig(encoder, heads)


@pytest.mark.parametrize(
    "head",
    [
        SequenceHead(("a",), dense="tanh"),
        ChoiceHead(dense="relu"),
        MaskedLMHead(),
        TokenHead(("a",)),
        SpanHead(),
        EmbeddingHead("cls"),
    ],
    ids=str,
)
def test_a_head_that_reads_no_pooler_needs_none(head: Any) -> None:
    assert not reads_pooler(head)
    assert ModelConfig(CONFIG.replace(pooler="none"), (head,)).head(head.kind) is head


def test_a_head_that_is_not_there_is_none() -> None:
    assert ModelConfig(CONFIG, (SpanHead(),)).head("token") is None


@given(model_configs())
def test_a_config_survives_json(config: ModelConfig) -> None:
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@given(encoder_configs(), st.data())
def test_every_head_survives_json(encoder: EncoderConfig, data: st.DataObject) -> None:
    config = ModelConfig(encoder.replace(pooler="tanh", embedding_projection="words", embedding_size=4))
    config = ModelConfig(config.encoder, tuple(data.draw(strategy) for strategy in HEADS.values()))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


STORED = json.dumps(to_dict(ModelConfig(CONFIG, (TokenHead(("a",)),))))


def stored_with(**changes: Any) -> dict:
    """A stored config whose encoder has other values; ... takes one out."""
    values = json.loads(STORED)
    values["encoder"].update(changes)
    values["encoder"] = {name: value for name, value in values["encoder"].items() if value is not ...}
    return values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "not a Halfpint config: .*encoder"),
        ({"encoder": None}, "not a Halfpint config"),
        ({"encoder": [1]}, "not a Halfpint config"),
        (stored_with(sharing=...), "not a Halfpint config: .*sharing"),
        (stored_with(sharing=None), "not a Halfpint config"),
        (stored_with(sharing={"attention": [0, 1, 2]}), "Sharing needs ffn"),
        (stored_with(sharing={"attention": [0], "ffn": [0], "norm": [0]}), "Sharing has no field norm; .*attention"),
        (
            stored_with(sharing={"attention": 3, "ffn": [0]}),
            "sharing.attention is 3; it must be a list, each of it a whole number",
        ),
        (stored_with(depth=3, width=4), "EncoderConfig has no field depth, width; its fields are vocab_size"),
        (stored_with(hidden_size=..., vocab_size=...), "EncoderConfig needs vocab_size, hidden_size"),
        (stored_with(hidden_size=None), "hidden_size is None; it must be a whole number"),
        (stored_with(num_heads=3), "num_heads is 3; it must be a list, each of it a whole number"),
        (stored_with(hidden_size=0), "hidden_size is 0"),
        (stored_with(hidden_size=24.0), "hidden_size is 24.0; it must be a whole number"),
        (stored_with(sharing={"attention": [0, 1, 2], "ffn": [0, 10**10, 1]}), "sharing.ffn is .*without a gap"),
        ({**stored_with(), "heads": [{"kind": "token", "labels": "yes"}]}, "labels is 'yes'; it must be a list"),
        ({**stored_with(), "heads": 3}, "not a Halfpint config"),
        ({**stored_with(), "heads": [{"labels": ["a"]}]}, "unknown head None; it is one of masked_lm, order"),
        ({**stored_with(), "heads": [{"kind": "tree"}]}, "unknown head 'tree'"),
        ({**stored_with(), "heads": [{"kind": ["token"]}]}, "unknown head"),
        ({**stored_with(), "heads": [{"kind": "token"}]}, "TokenHead needs labels"),
        ({**stored_with(), "heads": [{"kind": "span", "labels": ["a"]}]}, "SpanHead has no field labels"),
    ],
)
def test_a_stored_config_that_is_none_says_what_is_wrong(values: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_dict(values)


def test_defaults_may_be_left_out_of_a_stored_config() -> None:
    assert from_dict(stored_with(dropout=..., norm=...)).encoder == CONFIG


def test_a_stored_config_without_heads_has_none() -> None:
    assert from_dict({"encoder": json.loads(STORED)["encoder"]}) == ModelConfig(CONFIG)


def test_every_published_shape_has_a_preset() -> None:
    assert set(PRESETS) == {
        *("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"),
        *("roberta-base", "distilbert", "distilroberta"),
        *("albert-base", "albert-large", "albert-xlarge", "albert-xxlarge"),
        *("tinybert-4", "tinybert-6", "mobilebert", "minilm-6-384", "minilm-12-384"),
    }


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_its_preset(alias: str) -> None:
    assert preset(alias) is PRESETS[ALIASES[alias]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bert-bse", "there is no preset 'bert-bse'; did you mean .*bert-base"),
        ("albert", "did you mean .*albert-"),
        ("minilm6", "did you mean .*minilm-6"),
        ("qwzx", "the presets are bert-tiny, .*minilm-12-384"),
    ],
)
def test_an_unknown_preset_is_answered_with_the_nearest(name: str, words: str) -> None:
    assert find_preset(name) is None
    with pytest.raises(ConfigError, match=words):
        preset(name)
