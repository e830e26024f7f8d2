"""`modules.json`: what Halfpint computes is read, and everything else is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import halfpint as hp
from halfpint.artifact import ArtifactError, read_artifact
from halfpint.checkpoints.sentence import read_embedding_head, write_embedding_head
from halfpint.config import EmbeddingHead
from tests.checkpoints.folders import make_other, write_bert


def module(kind: str, path: str = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


TRANSFORMER, POOLING, NORMALIZE = module("Transformer"), module("Pooling", "1_Pooling"), module("Normalize", "2_N")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sentence encoder that pools by the mean and normalises."""
    write_bert(tmp_path)
    write_embedding_head(tmp_path, EmbeddingHead(), hp.preset("bert-tiny").config)
    return tmp_path


def write_modules(folder: Path, modules: object) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("modules", "head"),
    [
        ([TRANSFORMER], None),
        ([TRANSFORMER, POOLING], EmbeddingHead("mean", normalize=False)),
        ([TRANSFORMER, POOLING, NORMALIZE], EmbeddingHead("mean")),
    ],
    ids=["states", "mean", "normalised"],
)
def test_known_modules_are_read(folder: Path, modules: list[Any], head: EmbeddingHead | None) -> None:
    write_modules(folder, modules)
    assert read_embedding_head(read_artifact(folder)) == head


@pytest.mark.parametrize("kind", ["Dense", "CNN", "WeightedLayerPooling", "Own"])
def test_other_modules_are_refused_by_name(folder: Path, kind: str) -> None:
    write_modules(folder, [TRANSFORMER, POOLING, module(kind, "2_Other")])
    with pytest.raises(ArtifactError, match=rf"modules\.json has a {kind} module, which Halfpint does not compute"):
        hp.load(folder)


def test_other_modules_are_refused_beside_another_architecture(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    write_modules(tmp_path, [TRANSFORMER, POOLING, module("Dense", "2_Dense")])
    with pytest.raises(ArtifactError, match="a Dense module"):
        hp.load(tmp_path)


@pytest.mark.parametrize(
    "modules",
    [[TRANSFORMER, POOLING, POOLING], [TRANSFORMER, NORMALIZE, POOLING], [POOLING, TRANSFORMER]],
    ids=["twice", "normalised first", "pooled first"],
)
def test_modules_in_another_order_are_refused(folder: Path, modules: list[Any]) -> None:
    write_modules(folder, modules)
    with pytest.raises(
        ArtifactError, match=r"runs .*; Halfpint computes Transformer, Pooling, Normalize in this order"
    ):
        hp.load(folder)


@pytest.mark.parametrize("modules", [[{"name": "x"}], [{"type": "a.Pooling"}], [{"type": "a.Pooling", "path": None}],
                                     [{"type": 7, "path": ""}], ["Transformer"], [None]], ids=str)  # fmt: skip
def test_a_module_that_is_none_is_shown(folder: Path, modules: object) -> None:
    write_modules(folder, modules)
    with pytest.raises(
        ArtifactError, match=r"modules\.json has the module .*; expected an object with a type and a path"
    ):
        hp.load(folder)


@pytest.mark.parametrize("modules", [{"type": "x"}, "Transformer", 7, None], ids=str)
def test_a_list_of_modules_that_is_none_is_refused(folder: Path, modules: object) -> None:
    write_modules(folder, modules)
    with pytest.raises(ArtifactError, match=r"modules\.json is no list of modules"):
        hp.load(folder)


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00"])
def test_what_is_no_json_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{name} cannot be read"):
        hp.load(folder)


def test_pooling_that_is_no_object_is_refused(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text("[]")
    with pytest.raises(ArtifactError, match=r"1_Pooling/config\.json is no JSON object of pooling modes"):
        hp.load(folder)


def test_other_pooling_is_refused_by_name(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ArtifactError, match="pools by pooling_mode_max_tokens; known are pooling_mode_mean_tokens"):
        hp.load(folder)
