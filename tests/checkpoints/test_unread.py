"""What lies in a folder and is not read is told; what repeats another tensor is compared with it first."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import halfpint as hp
from halfpint.artifact import read_artifact
from halfpint.checkpoints.adapter import ForeignEncoder
from halfpint.checkpoints.families import Inexpressible
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.registry import FAMILIES
from tests.checkpoints.folders import make_other, write_bert
from tests.checkpoints.foreign import make_foreign, save_foreign

WEIGHTS = "model.safetensors"
TWINS = [(family.name, *pair) for family in FAMILIES.values() for pair in family.tied.items()]


def write_masked_lm(family: str, folder: Path, **more: torch.Tensor) -> Path:
    """A folder whose file has more tensors than were saved."""
    class_name = next(name for name, kinds in FAMILIES[family].classes.items() if kinds == ("masked_lm",))
    save_foreign(make_foreign(family, class_name), folder)
    save_file({**load_file(folder / WEIGHTS), **more}, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.mark.parametrize(("family", "twin", "original"), TWINS)
def test_a_twin_of_the_same_values_is_nothing_to_tell(family: str, twin: str, original: str, tmp_path: Path) -> None:
    folder = write_masked_lm(family, tmp_path)
    stored = load_file(folder / WEIGHTS)
    save_file({**stored, twin: stored[original].clone()}, folder / WEIGHTS, {"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = read_network(read_artifact(folder))
    assert [head.kind for head in network.config.heads] == ["masked_lm"]


@pytest.mark.parametrize(("family", "twin", "original"), TWINS)
def test_a_twin_of_other_values_is_a_decoder_of_its_own(family: str, twin: str, original: str, tmp_path: Path) -> None:
    folder = write_masked_lm(family, tmp_path)
    other = load_file(folder / WEIGHTS)[original].clone()
    other[-1] += 1e-3
    write_masked_lm(family, folder, **{twin: other})
    with pytest.raises(Inexpressible, match=f"decoder is not tied to the word embeddings: {twin} and {original} diff"):
        read_network(read_artifact(folder))
    with pytest.warns(UserWarning, match=r"no use for .*: the transformers adapter keeps the encoder alone"):
        model = hp.load(folder)
    assert isinstance(model.encoder, ForeignEncoder)


def test_a_decoder_without_a_head_is_told(tmp_path: Path) -> None:
    """A stray decoder, without the transform before it, is no masked-LM head."""
    folder = write_bert(tmp_path)
    stray = {"cls.predictions.decoder.weight": torch.ones(40, 24)}
    save_file({**load_file(folder / WEIGHTS), **stray}, folder / WEIGHTS, {"format": "pt"})
    with pytest.warns(UserWarning, match=r"no use for cls\.predictions\.decoder\.weight$"):
        network = read_network(read_artifact(folder))
    assert not network.config.heads


def test_a_twin_in_another_precision_is_compared_by_value(tmp_path: Path) -> None:
    folder = write_masked_lm("bert", tmp_path)
    stored = load_file(folder / WEIGHTS)
    original = "bert.embeddings.word_embeddings.weight"
    stored[original] = stored[original].bfloat16().float()
    stored["cls.predictions.decoder.weight"] = stored[original].bfloat16()
    save_file(stored, folder / WEIGHTS, {"format": "pt"})
    assert read_network(read_artifact(folder)).config.head("masked_lm")


@pytest.mark.parametrize("own", [True, False], ids=["own", "adapter"])
def test_the_warning_points_at_the_line_that_loads(own: bool, tmp_path: Path) -> None:
    if own:
        write_bert(tmp_path)
    else:
        make_other("electra").save_pretrained(tmp_path)
    save_file({**load_file(tmp_path / WEIGHTS), "stray": torch.ones(1)}, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.warns(UserWarning, match="no use for stray") as caught:
        hp.load(tmp_path)
    assert [warning.filename for warning in caught] == [__file__]
