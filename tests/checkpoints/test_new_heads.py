"""A head that was never in a checkpoint: its family's own, written so that `transformers` opens the model."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from halfpint.artifact import read_artifact
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.registry import FAMILIES, default_head, express
from halfpint.checkpoints.write import Written, write_network
from halfpint.config import (
    HEADS,
    ChoiceHead,
    ConfigError,
    EmbeddingHead,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    OrderHead,
    SequenceHead,
    SpanHead,
    TokenHead,
)
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.presets import PRESETS
from tests.checkpoints.foreign import foreign_answers, make_foreign, save_foreign
from tests.checkpoints.test_parity import draw_texts, relative_error
from tests.checkpoints.test_round_trip import open_in_transformers

LABELS = ("sad", "glad", "mad")
LABELLED = ("sequence", "token")
SINGLE = [
    (family.name, class_name, kinds[0])
    for family in FAMILIES.values()
    for class_name, kinds in family.classes.items()
    if len(kinds) == 1
]
"""Every class with one head."""

POOLED = ("bert", "roberta", "albert", "mobilebert")
"""Families whose bare class has a pooler."""


def read_bare(family: str, folder: Path, **changes: object) -> Network:
    class_name = next(iter(FAMILIES[family].classes))
    return read_network(read_artifact(save_foreign(make_foreign(family, class_name, **changes), folder / "bare")))


def add_default_head(network: Network, kind: str) -> None:
    labels = LABELS if kind in LABELLED else ()
    network.add_head(default_head(kind, network.config.encoder, labels))


def write(network: Network, folder: Path) -> Written:
    (folder / "ours").mkdir()
    return write_network(network, folder / "ours")


@pytest.mark.parametrize(("family", "class_name", "kind"), SINGLE)
def test_a_new_head_opens_in_transformers(family: str, class_name: str, kind: str, tmp_path: Path) -> None:
    network = read_bare(family, tmp_path)
    pooled = network.config.encoder.pooler != "none"
    add_default_head(network, kind)
    written = write(network, tmp_path)
    dropped = ("pooler",) if pooled and not FAMILIES[family].builds_pooler((kind,)) else ()
    assert written == Written(family, None, dropped)
    model, complaints = open_in_transformers(tmp_path / "ours", class_name)
    assert not complaints
    ids, segments = draw_texts(torch.Generator().manual_seed(1))
    if getattr(model.config, "type_vocab_size", 0) < 2:
        segments = [[0] * len(text) for text in ids]
    with torch.no_grad():
        _, answers = network.eval()(Batch.from_ids(ids, segments))
        theirs = [
            foreign_answers(FAMILIES[family], class_name, model.eval(), *text)
            for text in zip(ids, segments, strict=True)
        ]
    assert relative_error(answers[kind], torch.cat([each[kind] for each in theirs])) < 1e-5
    again = read_network(read_artifact(tmp_path / "ours")).config
    assert again.heads == network.config.heads
    assert again.encoder == (network.config.encoder.replace(pooler="none") if dropped else network.config.encoder)


@pytest.mark.parametrize("family", POOLED)
def test_a_bare_encoder_without_its_pooler_says_that_the_class_has_one(family: str, tmp_path: Path) -> None:
    network = Network(ModelConfig(read_bare(family, tmp_path).config.encoder.replace(pooler="none")))
    written = write(network, tmp_path)
    assert written == Written(family, None, missing=("pooler",))
    _, complaints = open_in_transformers(tmp_path / "ours", next(iter(FAMILIES[family].classes)))
    assert complaints
    assert all(name.startswith("pooler.") for name in complaints)


def test_a_distilbert_lacks_nothing(tmp_path: Path) -> None:
    assert write(read_bare("distilbert", tmp_path), tmp_path) == Written("distilbert", None)


def test_a_pooler_that_a_head_reads_is_kept(tmp_path: Path) -> None:
    network = read_bare("bert", tmp_path)
    for kind in ("masked_lm", "order"):
        add_default_head(network, kind)
    assert write(network, tmp_path) == Written("bert", None)
    assert read_network(read_artifact(tmp_path / "ours")).config == network.config


def test_a_pooler_is_kept_beside_an_embedding(tmp_path: Path) -> None:
    network = read_bare("bert", tmp_path)
    add_default_head(network, "embedding")
    assert write(network, tmp_path) == Written("bert", None)


def test_the_bare_first_token_of_mobilebert_outlives_a_class_without_a_pooler(tmp_path: Path) -> None:
    network = read_bare("mobilebert", tmp_path, classifier_activation=False)
    add_default_head(network, "token")
    assert write(network, tmp_path) == Written("mobilebert", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = read_network(read_artifact(tmp_path / "ours"))
    assert again.config == network.config
    assert again.config.encoder.pooler == "first"


DEFAULTS = [
    ("bert-base", SequenceHead(LABELS, dropout=0.1)),
    ("bert-base", TokenHead(LABELS, dropout=0.1)),
    ("bert-base", SpanHead()),
    ("bert-base", ChoiceHead(dropout=0.1)),
    ("bert-base", MaskedLMHead("gelu")),
    ("bert-base", OrderHead()),
    ("bert-base", EmbeddingHead()),
    ("roberta-base", SequenceHead(LABELS, dense="tanh", dropout=0.1)),
    ("roberta-base", ChoiceHead(dropout=0.1)),
    ("roberta-base", OrderHead()),
    ("distilbert", SequenceHead(LABELS, dense="relu", dropout=0.2)),
    ("distilbert", TokenHead(LABELS, dropout=0.1)),
    ("distilbert", SpanHead(dropout=0.1)),
    ("distilbert", ChoiceHead(dense="relu", dropout=0.2)),
    ("albert-base", SequenceHead(LABELS, dropout=0.1)),
    ("albert-base", MaskedLMHead("gelu_tanh")),
    ("albert-base", OrderHead(dropout=0.1)),
    ("mobilebert", SequenceHead(LABELS, dropout=0.0)),
    ("mobilebert", MaskedLMHead("relu")),
]


@pytest.mark.parametrize(("preset", "head"), DEFAULTS, ids=str)
def test_the_default_is_the_head_of_the_family(preset: str, head: object) -> None:
    assert default_head(head.kind, PRESETS[preset].config, LABELS) == head


def test_every_family_s_every_head_stays_in_the_family() -> None:
    encoders = {family: next(each for each in PRESETS.values() if each.family == family).config for family in FAMILIES}
    for family, _, kind in SINGLE:
        head = default_head(kind, encoders[family], LABELS, "multi_label")
        assert express(ModelConfig(encoders[family], (head,))).family.name == family


def own_encoder(**fields: object) -> EncoderConfig:
    """Shared attention, which no family has."""
    return EncoderConfig.uniform(
        vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20, sharing="attention",
        activation="relu", dropout=0.3, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("pooler", ["tanh", "none"])
@pytest.mark.parametrize("kind", sorted(HEADS))
def test_an_encoder_without_a_family_gets_heads_that_it_can_carry(kind: str, pooler: str) -> None:
    encoder = own_encoder(pooler=pooler)
    if (kind, pooler) == ("order", "none"):
        with pytest.raises(ConfigError, match="an order head reads the pooler, and this encoder has none"):
            default_head(kind, encoder)
        return
    head = default_head(kind, encoder, LABELS, "regression")
    config = ModelConfig(encoder, (head,))
    with pytest.raises(Inexpressible):
        express(config)
    dense = None if pooler == "tanh" else "tanh"
    expected = {
        "sequence": SequenceHead(LABELS, "regression", dense, 0.3),
        "choice": ChoiceHead(dense, 0.3),
        "token": TokenHead(LABELS, 0.3),
        "masked_lm": MaskedLMHead("relu"),
        "span": SpanHead(),
        "order": OrderHead(),
        "embedding": EmbeddingHead(),
    }
    assert head == expected[kind]


def test_a_family_s_encoder_without_its_pooler_gets_a_dense_layer() -> None:
    encoder = PRESETS["bert-tiny"].config.replace(pooler="none")
    assert default_head("sequence", encoder, LABELS) == SequenceHead(LABELS, dense="tanh", dropout=0.1)
    with pytest.raises(ConfigError, match="this encoder has none"):
        default_head("order", encoder)


@pytest.mark.parametrize("kind", LABELLED)
def test_labels_are_needed(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"a {kind} head without labels; give at least one"):
        default_head(kind, PRESETS["bert-tiny"].config)


def test_an_unknown_head_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match="there is no head 'classifier'; it is one of masked_lm, order, sequence"):
        default_head("classifier", PRESETS["bert-tiny"].config)
