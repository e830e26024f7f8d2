"""What stands in `halfpint.json`: any fields, in plain JSON, and the hash of every file but the card."""

from __future__ import annotations

import hashlib
import json
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.artifact import ArtifactError, read_artifact, replace_folder, write_metadata
from tests.artifact.samples import fill, write_sample

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
RESERVED = {"format", "halfpint", "created", "files"}


def read_back(**fields: object) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        write_metadata(Path(folder), **fields)
        return json.loads((Path(folder) / "halfpint.json").read_text(encoding="utf-8"))


@given(st.dictionaries(st.text().filter(lambda key: key not in RESERVED), JSON_VALUES, max_size=5))
def test_any_metadata_comes_back(fields: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with replace_folder(Path(folder) / "model") as staging:
            (staging / "config.json").write_text("{}")
            write_metadata(staging, **fields)
        metadata = read_artifact(Path(folder) / "model").metadata
    assert {key: value for key, value in metadata.items() if key not in RESERVED} == fields


def test_numpy_values_become_plain_ones() -> None:
    fields = {"a": np.float32(0.5), "b": np.arange(3), "c": {"d": (np.int64(2), np.bool_(True))}}
    assert read_back(**fields) == {"a": 0.5, "b": [0, 1, 2], "c": {"d": [2, True]}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), np.float64("-inf")])
def test_what_is_no_finite_number_becomes_null(value: float) -> None:
    assert read_back(spread=[value]) == {"spread": [None]}


def test_fields_are_merged(tmp_path: Path) -> None:
    write_metadata(tmp_path, seed=1, data="abc")
    write_metadata(tmp_path, seed=2)
    assert json.loads((tmp_path / "halfpint.json").read_text()) == {"seed": 2, "data": "abc"}


def test_the_file_is_sorted_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_metadata(tmp_path, b=1, a=2)
    assert (tmp_path / "halfpint.json").read_text() == '{\n  "a": 2,\n  "b": 1\n}\n'


def test_every_file_but_the_card_and_itself_is_listed(tmp_path: Path) -> None:
    artifact = write_sample(tmp_path / "model")
    assert artifact.metadata["files"].keys() == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "onnx/model.onnx",
    }
    for name, entry in artifact.metadata["files"].items():
        content = artifact.path(name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def test_a_card_below_the_top_is_a_file_like_any_other(tmp_path: Path) -> None:
    with replace_folder(tmp_path / "model") as staging:
        fill(staging, "new")
        (staging / "onnx" / "README.md").write_text("x")
    assert "onnx/README.md" in read_artifact(tmp_path / "model").metadata["files"]


def test_the_writer_and_the_time_are_noted(tmp_path: Path) -> None:
    metadata = write_sample(tmp_path / "model").metadata
    assert (metadata["format"], metadata["halfpint"]) == (1, version("halfpint"))
    age = datetime.now(UTC) - datetime.fromisoformat(metadata["created"])
    assert timedelta(0) <= age < timedelta(minutes=1)


def test_hashes_copied_from_another_folder_are_replaced(tmp_path: Path) -> None:
    source = write_sample(tmp_path / "source", "old").folder
    with replace_folder(tmp_path / "model") as staging:
        (staging / "halfpint.json").write_bytes((source / "halfpint.json").read_bytes())
        (staging / "config.json").write_text("{}")
    assert read_artifact(tmp_path / "model").metadata["files"].keys() == {"config.json"}


def test_a_link_is_not_written_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("x")
    with (
        pytest.raises(ArtifactError, match=r"model.safetensors is a link"),
        replace_folder(tmp_path / "out") as staging,
    ):
        (staging / "model.safetensors").symlink_to(tmp_path / "weights")
    assert not (tmp_path / "out").exists()
