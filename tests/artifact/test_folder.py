"""Folders are read with their hashes checked, their weights found, and nothing outside them opened."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from halfpint.artifact import Artifact, ArtifactError, read_artifact, write_card
from tests.artifact.samples import write_sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "model").folder


def foreign(folder: Path, *names: str, index: object = None) -> Artifact:
    """A folder from elsewhere: a config, files of the given names, and no halfpint.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name in names:
        (folder / name).write_bytes(b"weights")
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return read_artifact(folder)


def hub_cache(root: Path, *, shared: bool = False) -> Path:
    """A snapshot as huggingface_hub lays it out: links to blobs, which may be links to blobs of all repositories."""
    repository = root / "models--org--name"
    snapshot = repository / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name, content in {"config.json": "{}", "model.safetensors": "weights"}.items():
        blob = repository / "blobs" / f"hash-of-{name}"
        if shared:
            (root / "blobs" / "ha").mkdir(parents=True, exist_ok=True)
            (root / "blobs" / "ha" / blob.name).write_text(content)
            blob.symlink_to(f"../../blobs/ha/{blob.name}")
        else:
            blob.write_text(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


def test_what_was_written_is_read(sample: Path) -> None:
    artifact = read_artifact(sample)
    assert artifact.config == {"word": "old"}
    assert artifact.metadata["word"] == "old"
    assert artifact.weight_files() == [sample / "model.safetensors"]


def test_a_relative_folder_stays_itself_when_the_process_moves(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample.parent)
    artifact = read_artifact("model")
    monkeypatch.chdir("/")
    assert artifact.has("tokenizer.json")


def test_a_folder_from_elsewhere_has_no_metadata(tmp_path: Path) -> None:
    assert foreign(tmp_path / "model", "model.safetensors").metadata == {}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "onnx/model.onnx"])
def test_one_flipped_bit_is_found(sample: Path, name: str) -> None:
    content = bytearray((sample / name).read_bytes())
    content[-2] ^= 1
    (sample / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{name} in .* was changed or is incomplete|config.json is not valid"):
        read_artifact(sample)


def test_a_truncated_file_is_found(sample: Path) -> None:
    os.truncate(sample / "model.safetensors", 100)
    with pytest.raises(ArtifactError, match=r"model.safetensors .* incomplete: it has 100 bytes, expected \d+; copy"):
        read_artifact(sample)


def test_a_missing_file_is_found(sample: Path) -> None:
    (sample / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match=r"tokenizer.json .* it is missing"):
        read_artifact(sample)


def test_a_changed_file_can_be_read_unverified(sample: Path) -> None:
    (sample / "tokenizer.json").write_text("{}")
    assert read_artifact(sample, verify=False).config == {"word": "old"}


def test_the_card_is_free_to_edit(sample: Path) -> None:
    (sample / "README.md").write_text("# Mine now\n")
    assert read_artifact(sample).metadata["word"] == "old"


def test_more_files_may_lie_in_the_folder(sample: Path) -> None:
    (sample / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    assert read_artifact(sample).has(".gitattributes")


def test_a_listed_file_outside_is_refused(sample: Path) -> None:
    (sample.parent / "secret").write_text("x")
    metadata = json.loads((sample / "halfpint.json").read_text())
    metadata["files"]["../secret"] = {"sha256": "", "bytes": 1}
    (sample / "halfpint.json").write_text(json.dumps(metadata))
    with pytest.raises(ArtifactError, match=r"'\.\./secret' is no name inside"):
        read_artifact(sample)


@pytest.mark.parametrize("files", [["model.safetensors"], {"model.safetensors": "abc"}, 3])
def test_malformed_hashes_are_an_error(sample: Path, files: object) -> None:
    (sample / "halfpint.json").write_text(json.dumps({"files": files}))
    with pytest.raises(ArtifactError, match=r"`files` in .*halfpint.json is malformed"):
        read_artifact(sample)


def test_a_later_format_asks_for_an_update(sample: Path) -> None:
    (sample / "halfpint.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(ArtifactError, match=r"has format 2, .* update halfpint"):
        read_artifact(sample)


@pytest.mark.parametrize("name", ["config.json", "halfpint.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[1, 2]", "holds a list, expected a JSON object"),
    ],
)
def test_json_that_is_no_object_is_an_error(sample: Path, name: str, content: bytes, message: str) -> None:
    (sample / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{name} {message}"):
        read_artifact(sample)


def test_a_missing_folder_a_file_and_an_empty_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in {"missing": "does not exist", "file": "is a file", "empty": "no config.json in"}.items():
        with pytest.raises(ArtifactError, match=message):
            read_artifact(tmp_path / name)


def test_errors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        foreign(tmp_path / "model", "pytorch_model.bin").weight_files()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../model/config.json", "onnx/../../x", "..\\x", "C:\\x", "C:x", "\\x", "", ".", "a\0b"]
)
def test_names_that_lead_out_are_refused(sample: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="is no name inside"):
        read_artifact(sample).path(name)


def test_a_name_inside_is_a_path_whether_or_not_it_is_there(sample: Path) -> None:
    artifact = read_artifact(sample)
    assert artifact.path("onnx/model.onnx") == sample / "onnx" / "model.onnx"
    assert artifact.path("new/file") == sample / "new" / "file"


@pytest.mark.parametrize("name", ["link", "folder/file"])
def test_a_link_out_of_the_folder_is_refused(sample: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (sample / "link").symlink_to("../outside/file")
    (sample / "folder").symlink_to("../outside")
    with pytest.raises(ArtifactError, match="is a link out of it"):
        read_artifact(sample).has(name)


def test_a_config_that_is_a_link_out_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").symlink_to("../elsewhere.json")
    with pytest.raises(ArtifactError, match=r"config.json .* is a link out of it"):
        read_artifact(tmp_path / "model")


def test_a_link_within_the_folder_is_followed(sample: Path) -> None:
    (sample / "link").symlink_to("tokenizer.json")
    assert read_artifact(sample).has("link")


@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_in_the_hub_cache_is_read_through_its_links(tmp_path: Path, shared: bool) -> None:
    snapshot = hub_cache(tmp_path, shared=shared)
    assert read_artifact(snapshot).weight_files() == [snapshot / "model.safetensors"]


@pytest.mark.parametrize("target", ["../../refs/main", "../../../models--org--other/blobs/x", "/etc/hostname"])
def test_a_snapshot_links_to_its_blobs_only(tmp_path: Path, target: str) -> None:
    snapshot = hub_cache(tmp_path)
    (snapshot / "tokenizer.json").symlink_to(target)
    with pytest.raises(ArtifactError, match="is a link out of it"):
        read_artifact(snapshot).has("tokenizer.json")


def test_blobs_beside_a_folder_outside_the_cache_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "name" / "snapshots" / "abc123"
    folder.mkdir(parents=True)
    (tmp_path / "name" / "blobs").mkdir()
    (folder / "config.json").symlink_to("../../blobs/x")
    with pytest.raises(ArtifactError, match="is a link out of it"):
        read_artifact(folder)


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    shards = ["a-1.safetensors", "a-2.safetensors"]
    artifact = foreign(
        tmp_path / "model", *shards, index={"weight_map": {"x": shards[1], "y": shards[0], "z": shards[0]}}
    )
    assert artifact.weight_files() == [artifact.folder / name for name in shards]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"x": "a-1.safetensors", "y": "a-2.safetensors"}}
    with pytest.raises(ArtifactError, match=r"^a-2.safetensors missing from"):
        foreign(tmp_path / "model", "a-1.safetensors", index=index).weight_files()


@pytest.mark.parametrize("name", ["../other.safetensors", "/other.safetensors"])
def test_an_index_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "other.safetensors").write_bytes(b"weights")
    with pytest.raises(ArtifactError, match="is no name inside"):
        foreign(tmp_path / "model", index={"weight_map": {"x": name}}).weight_files()


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_an_index_without_a_map_is_an_error(tmp_path: Path, index: object) -> None:
    with pytest.raises(ArtifactError, match=r"index.json has no weight_map"):
        foreign(tmp_path / "model", index=index).weight_files()


@pytest.mark.parametrize("name", ["pytorch_model.bin", 3, None])
def test_an_index_names_safetensors_only(tmp_path: Path, name: object) -> None:
    with pytest.raises(ArtifactError, match=r"as a shard; expected names of .safetensors"):
        foreign(tmp_path / "model", "pytorch_model.bin", index={"weight_map": {"x": name}}).weight_files()


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "m.pt", "m.pth", "m.ckpt", "m.pkl", "tf_model.h5"]
)
def test_pickled_weights_are_not_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match=f"only pickled weights .{name}. .* nothing pickled is opened; convert"):
        foreign(tmp_path / "model", name).weight_files()


def test_pickled_weights_beside_safetensors_do_no_harm(tmp_path: Path) -> None:
    artifact = foreign(tmp_path / "model", "model.safetensors", "pytorch_model.bin")
    assert artifact.weight_files() == [artifact.folder / "model.safetensors"]


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no weights in"):
        foreign(tmp_path / "model").weight_files()


def test_the_card_has_the_facts_and_the_way_to_load(tmp_path: Path) -> None:
    facts = {"accuracy": "91.4 ± 0.1", "a|b": "two\nlines"}
    write_card(tmp_path, title="A small model", base_model="org/base", license="apache-2.0", facts=facts)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "base_model": "org/base",
        "library_name": "halfpint",
        "tags": ["halfpint"],
    }
    assert "# A small model\n" in card.text
    assert "| accuracy | 91.4 ± 0.1 |\n| a\\|b | two lines |\n" in card.text
    assert "model = hp.load(" in card.text


@given(base_model=st.text(), license=st.text())
def test_no_value_breaks_the_front_matter(base_model: str, license: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_card(Path(folder), title="---\nlicense: mit", base_model=base_model, license=license, facts={})
        data = ModelCard((Path(folder) / "README.md").read_text(encoding="utf-8")).data
    assert (data.base_model, data.license) == tuple(" ".join(it.split()) or None for it in (base_model, license))


def test_a_model_without_base_or_licence_names_none(tmp_path: Path) -> None:
    write_card(tmp_path, title="From scratch", base_model=None, license=None, facts={})
    assert ModelCard.load(tmp_path / "README.md").data.to_dict().keys() == {"library_name", "tags"}
