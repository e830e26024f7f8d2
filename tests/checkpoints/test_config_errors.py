"""A foreign config.json with a value that cannot be: the file, the field and the value are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import halfpint as hp
from halfpint.checkpoints.registry import FAMILIES
from halfpint.checkpoints.write import write_network
from halfpint.config import ConfigError, EncoderConfig, ModelConfig
from halfpint.model.network import Network
from tests.checkpoints.folders import OTHERS, SIZES, edit_config
from tests.checkpoints.foreign import CLASSES, make_foreign, save_foreign
from tests.checkpoints.test_config_fields import FIELDS

# By the type that a field has: what it cannot be.
WRONG: dict[type, list[Any]] = {
    int: [None, "abc", -1, [], {}, True, 1.5],
    float: [None, "abc", -1, [], {}, True],
    bool: [None, "abc", -1, [], {}, 1.5],
    str: [None, -1, [], {}, True, 1.5],
}
NULLABLE = ("pad_token_id", "classifier_dropout", "classifier_dropout_prob")
UNREAD = ("qa_dropout",)
"""What a sequence classifier does not read."""
CLASSIFIERS = {family: name for family, name in CLASSES if FAMILIES[family].classes[name] == ("sequence",)}

FIELD_VALUES = [
    (family, field, [value for value in WRONG[type(usual)] if value is not None or field not in NULLABLE])
    for family, fields in FIELDS.items()
    for field, usual in fields.items()
    if field not in UNREAD
]
FIELD_VALUES += [
    ("mobilebert", "normalization_type", ["batch_norm"]),
    *(("bert", "id2label", [value]) for value in ("abc", -1, [1], True, {"one": "a"})),
    *(("bert", "problem_type", [value]) for value in ("abc", -1, [], {}, True)),
    *(("bert", "architectures", [value]) for value in ("BertModel", -1, [1], {"a": 1}, True)),
    ("bert", "tie_word_embeddings", WRONG[bool]),
]


@pytest.mark.parametrize(("family", "field", "values"), FIELD_VALUES, ids=str)
def test_a_value_that_cannot_be_is_named_with_its_field_and_file(
    family: str, field: str, values: list[Any], tmp_path: Path
) -> None:
    save_foreign(make_foreign(family, CLASSIFIERS[family]), tmp_path)
    for value in values:
        edit_config(tmp_path, **{field: value})
        with pytest.raises(ConfigError) as caught:
            hp.load(tmp_path)
        assert str(caught.value).startswith(f"{tmp_path}/config.json: {field} is {value!r}; expected ")


COMBINED = [
    ("bert", {"num_attention_heads": 7}, "hidden_size is 24 and num_attention_heads is 7; the width must divide into"),
    ("distilbert", {"n_heads": 7}, "dim is 24 and n_heads is 7; the width must divide into the heads"),
    ("mobilebert", {"num_attention_heads": 8}, "intra_bottleneck_size is 12 and num_attention_heads is 8; the width"),
    ("bert", {"pad_token_id": 40}, "pad_token_id is 40; expected less than vocab_size, 40"),
    ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings is 2; expected more than pad_token_id + 1, 2"),
    ("albert", {"num_hidden_groups": 5}, "num_hidden_groups is 5; expected no more than num_hidden_layers, 4"),
    ("bert", {"hidden_dropout_prob": 1}, r"hidden_dropout_prob is 1; expected a number in [0, 1)"),
    ("bert", {"layer_norm_eps": 0}, "layer_norm_eps is 0; expected a positive number"),
    ("bert", {"problem_type": "foo"}, "problem_type is 'foo'; expected one of single_label_classification, multi_"),
    ("bert", {"hidden_size": "abc"}, "hidden_size is 'abc'; expected a whole number, 1 or more"),
    ("bert", {"id2label": {"one": "a"}}, "id2label is {'one': 'a'}; expected labels by their number"),
    ("bert", {"architectures": "BertModel"}, "architectures is 'BertModel'; expected a list of class names"),
    ("mobilebert", {"key_query_shared_bottleneck": False}, "key_query_shared_bottleneck is False; expected true, or"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), COMBINED, ids=str)
def test_values_that_do_not_go_together_are_named(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_foreign(make_foreign(family, CLASSIFIERS[family]), tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        hp.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: {message}")


def test_an_embedding_that_the_decoder_cannot_use_is_told_with_the_file(tmp_path: Path) -> None:
    save_foreign(make_foreign("mobilebert", "MobileBertForMaskedLM"), tmp_path)
    edit_config(tmp_path, embedding_size=30)
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/config\.json: a masked-LM head cannot decode from width 24"):
        hp.load(tmp_path)


def test_a_field_of_our_own_format_is_told_with_the_file(tmp_path: Path) -> None:
    encoder = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20)
    write_network(Network(ModelConfig(encoder.replace(num_heads=(2, 1)))), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())["encoder"]
    edit_config(tmp_path, encoder={**values, "dropout": 2})
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/config\.json: dropout is 2; it must be in"):
        hp.load(tmp_path)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query", None])
def test_relative_positions_are_refused_since_transformers_runs_them_as_absolute(
    family: str, kind: str | None, tmp_path: Path
) -> None:
    save_foreign(make_foreign(family, next(iter(FAMILIES[family].classes))), tmp_path)
    edit_config(tmp_path, position_embedding_type=kind)
    words = f"position_embedding_type is {kind!r}, which neither Halfpint nor transformers 5 computes"
    for ask in (hp.load, hp.profile):
        with pytest.raises(ConfigError) as caught:
            ask(tmp_path)
        assert str(caught.value).startswith(f"{tmp_path}/config.json: {words}")


def test_relative_positions_of_another_architecture_are_refused_too(tmp_path: Path) -> None:
    transformers.ElectraModel(OTHERS["electra"]).save_pretrained(tmp_path)
    edit_config(tmp_path, position_embedding_type="relative_key")
    with pytest.raises(ConfigError, match=r"config\.json: position_embedding_type is 'relative_key'"):
        hp.load(tmp_path)


def test_positions_that_transformers_does_compute_are_left_to_it(tmp_path: Path) -> None:
    config = transformers.EsmConfig(
        **SIZES, num_hidden_layers=1, max_position_embeddings=18, position_embedding_type="rotary",
        pad_token_id=0, mask_token_id=4,
    )  # fmt: skip
    transformers.EsmModel(config).save_pretrained(tmp_path)
    assert hp.load(tmp_path).encode([[5, 6]])[0].shape == (2, 24)
