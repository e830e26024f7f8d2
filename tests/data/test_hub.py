"""Data sets of the Hub, against a stand-in on this machine: what is read, what stays, and what is said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import datasets
import pytest

from halfpint.data.hub import with_label_names
from halfpint.data.sources import DataError, read
from tests.checkpoints.stand_in import ask, serve
from tests.data.files import write

# Every name is read; an answer is the data set, or the error with its kind.
READ = """
import json, sys
from halfpint.data.sources import read

answers = {}
for name in sys.argv[1:]:
    try:
        found = read(name)
        tables = {split: table.to_pydict() for split, table in found.tables.items()}
        answers[name] = [found.name, tables, found.origins]
    except ValueError as error:
        answers[name] = f"{type(error).__name__}: {error}"
print(json.dumps(answers))
"""

CARD = """---
configs:
- config_name: one
  data_files: [{split: train, path: one.csv}]
- config_name: two
  data_files: [{split: validation, path: two.csv}]
---
"""


def read_names(url: str, home: Path, *names: str) -> dict[str, Any]:
    return json.loads(ask(url, home, READ, *names))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], float]:
    """A visit to the Hub, a second one after it went down, and the seconds that the second took."""
    root = tmp_path_factory.mktemp("hub")
    write(root / "plain" / "train.csv", "text,label\na,x\nb,y\n")
    write(root / "plain" / "validation.csv", "text,label\nc,x\n")
    for name in ("plain", "script", "broken"):
        write(root / name / "README.md", "A card.")
    write(root / "several" / "README.md", CARD)
    write(root / "several" / "one.csv", "text\na\n")
    write(root / "several" / "two.csv", "text\nb\n")
    write(root / "script" / "script.py", "")
    write(root / "broken" / "train.jsonl", '{"text": "a"}\n{"text')
    names = [f"me/{path.name}" for path in sorted(root.iterdir())]
    with serve({name: root / name[3:] for name in names}) as hub:
        online = read_names(hub.url, root / "home", *names, "me/several:one", "me/several:two", "me/nothing", "no name")
    start = time.monotonic()
    offline = read_names(hub.url, root / "home", "me/plain", "me/new")
    return online, offline, time.monotonic() - start


def test_a_name_on_the_hub_is_read(sessions: tuple[dict[str, Any], dict[str, Any], float]) -> None:
    name, tables, origins = sessions[0]["me/plain"]
    assert name == "plain"
    assert tables == {"train": {"text": ["a", "b"], "label": ["x", "y"]}, "dev": {"text": ["c"], "label": ["x"]}}
    assert origins == dict.fromkeys(tables, "me/plain on the Hub")


def test_a_configuration_is_named_after_a_colon(sessions: tuple[dict[str, Any], dict[str, Any], float]) -> None:
    answers = sessions[0]
    assert answers["me/several:one"][:2] == ["several", {"train": {"text": ["a"]}}]
    assert answers["me/several:two"][:2] == ["several", {"dev": {"text": ["b"]}}]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("me/several", "cannot be had from the Hub (Config name is missing."),
        ("me/script", "cannot be had from the Hub (Dataset scripts are no longer supported"),
        ("me/broken", "cannot be had from the Hub (An error occurred while generating the dataset"),
        ("me/nothing", "cannot be had from the Hub (Dataset 'me/nothing' doesn't exist on the Hub"),
        ("no name", "cannot be had from the Hub (Repo id must use alphanumeric chars"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    name: str, words: str, sessions: tuple[dict[str, Any], dict[str, Any], float]
) -> None:
    error = sessions[0][name]
    assert error.startswith(f"DataError: {name} is no file or folder here, and {words}"), error
    assert error.endswith("check the name, or give a file")
    assert "\n" not in error


def test_what_was_read_once_is_read_without_the_hub(sessions: tuple[dict[str, Any], dict[str, Any], float]) -> None:
    online, offline, _ = sessions
    assert offline["me/plain"] == online["me/plain"]


def test_without_the_hub_nobody_waits(sessions: tuple[dict[str, Any], dict[str, Any], float]) -> None:
    """`datasets` alone tries for half a minute."""
    _, offline, seconds = sessions
    assert offline["me/new"] == (
        "DataError: me/new is no file or folder here, and the Hub cannot be reached; check the name, or give a file"
    )
    assert seconds < 20


def test_without_datasets_the_install_command_is_named(tmp_path: Path) -> None:
    script = f"import sys; sys.modules['datasets'] = None\n{READ}"
    done = subprocess.run([sys.executable, "-c", script, "ag_news"], capture_output=True, text=True, check=True)
    (error,) = json.loads(done.stdout).values()
    assert error.startswith(
        "DataError: there is no file or folder ag_news here, and to look on the Hub needs the datasets"
    )
    assert error.endswith("pip install 'halfpint[train]'")


@pytest.mark.parametrize(
    ("name", "words"),
    [("ag_news.csv", "there is no file"), ("./ag_news", "there is no file"), ("a/b/c", "there is no file")],
)
def test_what_looks_like_a_path_is_not_looked_for_on_the_hub(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words):
        read(name)


def test_columns_are_not_for_the_hub() -> None:
    with pytest.raises(DataError, match="columns were named, and ag_news is no file here"):
        read("ag_news", columns="text,label")


def test_labels_have_their_names() -> None:
    names = datasets.ClassLabel(names=["world", "sports"])
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": names, "tags": datasets.List(names), "n": datasets.Value("int64")}
    )
    rows = [
        {"text": "a", "label": 1, "tags": [0, 1], "n": 1},
        {"text": "b", "label": -1, "tags": [], "n": 0},
        {"text": "c", "label": None, "tags": None, "n": None},
    ]
    expected = [
        {"text": "a", "label": "sports", "tags": ["world", "sports"], "n": 1},
        {"text": "b", "label": None, "tags": [], "n": 0},
        {"text": "c", "label": None, "tags": None, "n": None},
    ]
    part = datasets.Dataset.from_list(rows, features=features)
    assert with_label_names(part).to_pylist() == expected
    assert read({"train": part}).tables["train"].to_pylist() == expected
