"""Names on the Hub, against a stand-in on this machine: what is fetched, what is not, and what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfpint as hp
from halfpint.artifact import replace_folder, write_metadata
from halfpint.checkpoints.write import write_network
from halfpint.config import EncoderConfig, ModelConfig
from halfpint.model.network import Network
from halfpint.presets import PRESETS
from tests.checkpoints.folders import write_bert, write_tokenizer
from tests.checkpoints.foreign import make_foreign
from tests.checkpoints.stand_in import StandIn, ask, serve

IDS = [[5, 6, 7], [8]]
PRESET_ON_HUB = PRESETS["bert-tiny"].hub

# Every name (or name@revision) is loaded; an answer is the states, or the error with its kind.
LOAD = """
import json, sys
import halfpint as hp

answers = {}
for name in sys.argv[2:]:
    try:
        model = hp.load(name.partition("@")[0], revision=name.partition("@")[2] or None)
        answers[name] = [states.tolist() for states in model.encode(json.loads(sys.argv[1]))]
    except ValueError as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""

# All are counted, then the first is loaded.
PROFILE = """
import json, sys
import halfpint as hp

counted = [hp.profile(name, length=8).to_dict() for name in sys.argv[2:]]
# What was fetched to count is not taken for the whole model.
states = [each.tolist() for each in hp.load(sys.argv[2]).encode(json.loads(sys.argv[1]))]
print(json.dumps([counted, states]))
"""


def load(url: str, home: Path, *names: str) -> dict[str, Any]:
    return json.loads(ask(url, home, LOAD, json.dumps(IDS), *names))


@dataclass
class Session:
    """One client's visit to the Hub, and its second visit after the Hub went down."""

    folders: dict[str, Path]
    hub: StandIn
    online: dict[str, Any]
    offline: dict[str, Any]


def write_artifact(folder: Path) -> None:
    """One of Halfpint's own, with an exported graph, all of it hashed."""
    encoder = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20)
    with replace_folder(folder) as staging:
        write_network(Network(ModelConfig(encoder.replace(num_heads=(2, 1)))), staging)
        write_tokenizer(staging)
        (staging / "onnx").mkdir()
        (staging / "onnx" / "model.onnx").write_bytes(b"a graph")
        write_metadata(staging, base="me/single")


def make_repositories(root: Path) -> dict[str, Path]:
    write_bert(root / "single", "BertForMaskedLM")
    for extra in ("modeling_tiny.py", "pytorch_model.bin", "onnx/model.onnx"):
        (root / "single" / extra).parent.mkdir(exist_ok=True)
        (root / "single" / extra).write_bytes(b"not to be fetched")
    make_foreign("bert", "BertModel").save_pretrained(root / "sharded", max_shard_size="20KB")
    write_bert(root / "pickled")
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    write_bert(root / "preset")
    write_artifact(root / "artifact")
    names = {f"me/{each}": root / each for each in ("single", "sharded", "pickled", "artifact")}
    return {**names, PRESET_ON_HUB: root / "preset", "me/gated": root / "single"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root = tmp_path_factory.mktemp("hub")
    folders = make_repositories(root)
    with serve(folders, gated={"me/gated"}) as hub:
        names = ("me/single", "me/sharded", "me/pickled", "me/artifact", "bert-tiny")
        online = load(hub.url, root / "home", *names, "me/gated", "me/nothing", "me/single@v9")
    offline = load(hub.url, root / "home", "me/single", "me/sharded", "bert-tiny", "me/new", "bert-base")
    return Session(folders, hub, online, offline)


def assert_same_states(answer: Any, folder: Path) -> None:
    assert isinstance(answer, list), answer
    for theirs, ours in zip(answer, hp.load(folder).encode(IDS), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["me/single", "me/sharded", "me/artifact"])
def test_a_hub_name_is_loaded(session: Session, name: str) -> None:
    assert_same_states(session.online[name], session.folders[name])


def test_a_preset_is_loaded_by_its_hub_name(session: Session) -> None:
    assert_same_states(session.online["bert-tiny"], session.folders[PRESET_ON_HUB])


def test_neither_pickles_nor_code_nor_graphs_are_fetched(session: Session) -> None:
    assert session.hub.fetched("me/single") == {"config.json", "model.safetensors", "tokenizer.json"}


def test_all_shards_are_fetched(session: Session) -> None:
    shards = {path.name for path in session.folders["me/sharded"].glob("*.safetensors")}
    assert len(shards) > 1
    assert session.hub.fetched("me/sharded") >= shards


def test_an_artifact_is_fetched_with_all_that_its_hashes_cover(session: Session) -> None:
    assert "onnx/model.onnx" in session.hub.fetched("me/artifact")


def test_a_repository_of_pickles_is_refused_and_the_pickle_not_fetched(session: Session) -> None:
    error = session.online["me/pickled"]
    assert error.startswith("ArtifactError: me/pickled has only pickled weights (pytorch_model.bin)")
    assert "convert them to safetensors" in error
    assert "pytorch_model.bin" not in session.hub.fetched("me/pickled")


def test_an_unknown_repository_is_an_error_in_words(session: Session) -> None:
    error = session.online["me/nothing"]
    assert error.startswith("WeightsUnavailable: 'me/nothing' is neither a folder nor a preset")
    assert error.endswith("nor a model on the Hub")


def test_a_gated_repository_says_what_to_do(session: Session) -> None:
    assert "me/gated is gated: accept its terms on the Hub and log in" in session.online["me/gated"]


def test_an_unknown_revision_is_named(session: Session) -> None:
    assert session.online["me/single@v9"].startswith("WeightsUnavailable: me/single has no revision 'v9' on the Hub")


@pytest.mark.parametrize("name", ["me/single", "me/sharded", "bert-tiny"])
def test_what_was_fetched_loads_without_the_hub(session: Session, name: str) -> None:
    assert session.offline[name] == session.online[name]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("me/new", "'me/new' is neither a folder nor a preset"),
        ("bert-base", "the weights of bert-base (google-bert/bert-base-uncased) cannot be had"),
    ],
)
def test_without_hub_and_cache_the_ways_out_are_named(session: Session, name: str, words: str) -> None:
    error = session.offline[name]
    assert error.startswith(f"WeightsUnavailable: {words}")
    for way_out in ("a folder that holds the weights", "HF_ENDPOINT or HF_HOME"):
        assert way_out in error
    assert "--" not in error  # hp.load has no flags


COUNT = """
import sys
import halfpint as hp

try:
    hp.profile("distilbrt")
except ValueError as error:
    print(error)
"""


def test_what_cannot_be_counted_is_told_without_ways_that_counting_has_not(tmp_path: Path) -> None:
    with serve({}) as hub:
        hub.hangs_up = True
        error = ask(hub.url, tmp_path, COUNT)
    assert error.startswith("'distilbrt' is neither a folder nor a preset (did you mean distilbert")
    assert error.endswith("give a folder with its config.json, or set HF_ENDPOINT or HF_HOME to a mirror or cache "
                          "that has it\n")  # fmt: skip


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder here, and only names on the Hub have revisions \(given: 'v9'\)"):
        hp.load(write_bert(tmp_path), revision="v9")


@pytest.mark.parametrize("ask_for", [hp.load, hp.profile])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, r"given as None \(NoneType\); give a folder, a preset or a Hub name"),
        (3, r"given as 3 \(int\); give a folder"),
        ("", r"the name of the model is empty; give a folder \(\. is this one\)"),
        (" ", "the name of the model is empty"),
    ],
)
def test_what_can_be_no_name_is_refused(
    ask_for: Callable[..., Any], name: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_bert(tmp_path))
    with pytest.raises(ValueError, match=words):
        ask_for(name)


def test_a_hub_that_hangs_up_is_as_good_as_none(tmp_path: Path) -> None:
    with serve({}) as hub:
        hub.hangs_up = True
        assert "the Hub cannot be asked" in load(hub.url, tmp_path, "me/single")["me/single"]


def test_counting_fetches_no_weights(tmp_path: Path) -> None:
    """Not from files of one model, of shards, of pickles, nor of Halfpint's own hashed ones."""
    folders = make_repositories(tmp_path / "hub")
    names = ["me/single", "me/sharded", "me/pickled", "me/artifact"]
    with serve(folders) as hub:
        counted, states = json.loads(ask(hub.url, tmp_path / "home", PROFILE, json.dumps(IDS), *names))
    fetched = [name for repository in names[1:] for name in hub.fetched(repository)]
    assert fetched
    assert all(name.endswith(".json") and not name.endswith(".index.json") for name in fetched), fetched
    for name, values in zip(names, counted, strict=True):
        # The class says which heads and whether a pooler, and here it says the same as the weights.
        of_folder = hp.profile(folders[name], length=8) if name != "me/pickled" else None
        assert values["model"] == name
        assert "counted without its weights" in values["note"]
        assert of_folder is None or values["stored_parameters"] == of_folder.stored_parameters
    assert_same_states(states, folders["me/single"])
