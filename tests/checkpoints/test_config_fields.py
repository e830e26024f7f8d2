"""Every field of a foreign config.json counts: it is read, and written back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from halfpint.artifact import read_artifact
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.registry import FAMILIES
from halfpint.checkpoints.write import write_network
from halfpint.config import (
    ChoiceHead,
    HeadConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from tests.checkpoints.folders import edit_config
from tests.checkpoints.foreign import CLASSES, make_foreign, save_foreign

COMMON: dict[str, Any] = {
    "vocab_size": 42, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22,
    "max_position_embeddings": 19, "type_vocab_size": 3, "pad_token_id": 3, "hidden_act": "relu",
    "layer_norm_eps": 1e-4, "initializer_range": 0.05, "hidden_dropout_prob": 0.22,
    "attention_probs_dropout_prob": 0.33, "classifier_dropout": 0.44,
}  # fmt: skip
LABELS = {"id2label": {0: "b", 1: "a", 2: "c"}, "label2id": {"b": 0, "a": 1, "c": 2}}
ANSWERS = {**LABELS, "num_labels": 3, "problem_type": "multi_label_classification"}

# family: every field that it reads, none at its default.
FIELDS: dict[str, dict[str, Any]] = {
    "bert": COMMON,
    "roberta": COMMON,
    "distilbert": {
        "vocab_size": 42, "dim": 12, "n_layers": 3, "n_heads": 3, "hidden_dim": 22, "max_position_embeddings": 19,
        "pad_token_id": 3, "activation": "relu", "initializer_range": 0.05, "dropout": 0.22,
        "attention_dropout": 0.33, "seq_classif_dropout": 0.44, "qa_dropout": 0.55,
    },
    "albert": {
        **{name: value for name, value in COMMON.items() if name != "classifier_dropout"},
        "classifier_dropout_prob": 0.44, "embedding_size": 7, "num_hidden_groups": 2, "inner_group_num": 2,
    },
    "mobilebert": {
        **COMMON, "hidden_act": "gelu", "hidden_size": 14, "embedding_size": 7, "intra_bottleneck_size": 6,
        "trigram_input": False, "normalization_type": "layer_norm", "use_bottleneck_attention": True,
        "key_query_shared_bottleneck": False, "num_feedforward_networks": 2, "classifier_activation": False,
    },
}  # fmt: skip

# The encoder that these are, under our names.
SAME = {
    "vocab_size": 42, "hidden_size": 12, "num_heads": (3, 3, 3), "head_size": 4, "ffn_size": (22, 22, 22),
    "embedding_size": 12, "num_positions": 19, "num_token_types": 3, "pad_id": 3, "position_offset": 0,
    "activation": "relu", "norm": "layer_norm", "norm_eps": 1e-4, "outer_norm_eps": None, "bottleneck_size": None,
    "shared_query_key": False, "num_ffns": 1, "embedding_projection": "none", "trigram": False,
    "dropout": 0.22, "attention_dropout": 0.33, "initializer_range": 0.05,
    "sharing": {"attention": (0, 1, 2), "ffn": (0, 1, 2)},
}  # fmt: skip
GROUPS = (0, 1, 0, 1, 2, 3)
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": SAME,
    "roberta": {**SAME, "num_positions": 15, "position_offset": 4},
    "distilbert": {**SAME, "num_token_types": 0, "norm_eps": 1e-12},
    "albert": {
        **SAME, "embedding_size": 7, "embedding_projection": "sum", "sharing": {"attention": GROUPS, "ffn": GROUPS},
        "num_heads": (3,) * 4, "ffn_size": (22,) * 4,
    },
    "mobilebert": {
        **SAME, "activation": "gelu", "hidden_size": 14, "embedding_size": 7, "embedding_projection": "words",
        "bottleneck_size": 6, "head_size": 2, "outer_norm_eps": 1e-5, "num_ffns": 2,
    },
}  # fmt: skip

NAMES = ("b", "a", "c")
HEADS: dict[str, dict[str, HeadConfig]] = {
    "bert": {
        "masked_lm": MaskedLMHead("relu"), "order": OrderHead(),
        "sequence": SequenceHead(NAMES, "multi_label", None, 0.44),
        "token": TokenHead(NAMES, 0.44), "span": SpanHead(), "choice": ChoiceHead(None, 0.44),
    },
    "distilbert": {
        "masked_lm": MaskedLMHead("relu"), "sequence": SequenceHead(NAMES, "multi_label", "relu", 0.44),
        "token": TokenHead(NAMES, 0.22), "span": SpanHead(dropout=0.55), "choice": ChoiceHead("relu", 0.44),
    },
}  # fmt: skip
HEADS["roberta"] = {
    **HEADS["bert"], "masked_lm": MaskedLMHead("gelu"), "sequence": SequenceHead(NAMES, "multi_label", "tanh", 0.44),
    "choice": ChoiceHead(None, 0.22),
}  # fmt: skip
HEADS["albert"] = {**HEADS["bert"], "order": OrderHead(dropout=0.44)}
HEADS["mobilebert"] = {**HEADS["bert"], "masked_lm": MaskedLMHead("gelu")}


def save(folder: Path, family: str, class_name: str, **fields: Any) -> Path:
    values = {**FIELDS[family], **fields}
    return save_foreign(make_foreign(family, class_name, **values), folder)


def read(folder: Path) -> ModelConfig:
    return read_network(read_artifact(folder)).config


@pytest.mark.parametrize("family", FAMILIES)
def test_no_field_is_at_its_default(family: str) -> None:
    """So that a field which is not read cannot look as if it were."""
    default = transformers.AutoConfig.for_model(family)
    assert [name for name, value in FIELDS[family].items() if getattr(default, name) == value] == []


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_every_field_is_read(family: str, class_name: str, tmp_path: Path) -> None:
    labelled = "SequenceClassification" in class_name or "TokenClassification" in class_name
    config = read(save(tmp_path, family, class_name, **(ANSWERS if labelled else {})))
    found = dataclasses.asdict(config.encoder)
    found.pop("pooler")  # by class, in other tests
    assert found == ENCODERS[family]
    kinds = FAMILIES[family].classes[class_name]
    assert set(config.heads) == {HEADS[family][kind] for kind in kinds}


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_every_field_is_written_back(family: str, class_name: str, tmp_path: Path) -> None:
    labelled = "SequenceClassification" in class_name or "TokenClassification" in class_name
    original = json.loads(
        (save(tmp_path, family, class_name, **(ANSWERS if labelled else {})) / "config.json").read_text()
    )
    network = read_network(read_artifact(tmp_path))
    (tmp_path / "ours").mkdir()
    write_network(network, tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    unsaid = unsaid_fields(family, class_name)
    expected = {name: original[name] for name in FIELDS[family] if name not in unsaid}
    assert {name: written.get(name) for name in expected} == expected
    if labelled:
        assert written["id2label"] == original["id2label"]
        assert written["label2id"] == original["label2id"]
        if "Sequence" in class_name:
            assert written["problem_type"] == original["problem_type"]
    assert read(tmp_path / "ours") == network.config


def unsaid_fields(family: str, class_name: str) -> set[str]:
    """Dropouts of heads that the class has not, so that nothing depends on them."""
    kinds = set(FAMILIES[family].classes[class_name])
    users = {
        "classifier_dropout": {"sequence", "token", *(("choice",) if family != "roberta" else ())},
        "classifier_dropout_prob": {"order", "sequence", "token", "choice"},
        "seq_classif_dropout": {"sequence", "choice"},
        "qa_dropout": {"span"},
    }
    return {name for name, readers in users.items() if not kinds & readers}


SEQUENCE = [(family, name) for family, name in CLASSES if FAMILIES[family].classes[name] == ("sequence",)]
PROBLEMS = [
    ("single_label_classification", 3, "single_label"),
    ("multi_label_classification", 3, "multi_label"),
    ("regression", 3, "regression"),
    ("multi_label_classification", 1, "multi_label"),
    (None, 3, "single_label"),
    (None, 1, "regression"),
]


@pytest.mark.parametrize(("family", "class_name"), SEQUENCE)
@pytest.mark.parametrize(("problem_type", "num_labels", "problem"), PROBLEMS)
def test_the_problem_is_the_one_named_or_told_by_the_labels(
    family: str, class_name: str, problem_type: str | None, num_labels: int, problem: str, tmp_path: Path
) -> None:
    model = make_foreign(family, class_name, problem_type=problem_type, num_labels=num_labels)
    config = read(save_foreign(model, tmp_path))
    assert config.head("sequence").problem == problem
    assert len(config.head("sequence").labels) == num_labels


@pytest.mark.parametrize("family", ["bert", "roberta", "mobilebert"])
def test_a_classifier_without_a_dropout_of_its_own_has_the_hidden_one(family: str, tmp_path: Path) -> None:
    assert (
        read(save(tmp_path, family, dict(SEQUENCE)[family], classifier_dropout=None)).head("sequence").dropout == 0.22
    )


def test_albert_s_token_classifier_has_the_hidden_dropout_where_its_own_is_null(tmp_path: Path) -> None:
    save(tmp_path, "albert", "AlbertForTokenClassification")
    edit_config(tmp_path, classifier_dropout_prob=None)
    assert read(tmp_path).head("token").dropout == 0.22
    edit_config(tmp_path, "classifier_dropout_prob")
    assert read(tmp_path).head("token").dropout == 0.1
