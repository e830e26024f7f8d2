"""The folder of a run while it goes on: `OUT.run/`, with its settings, its log, its checkpoints and predictions.

The model itself appears at OUT only when the run has succeeded, and then this folder goes. What is notable:
- a run that was stopped goes on when the same command is given again; one with other settings is refused, by name;
- `run.toml` holds every setting as it was resolved, so `halfpint rerun` does the same again;
- one process at a time.
"""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halfpint.artifact import ArtifactError, hold_folder
from halfpint.data.task import Judged
from halfpint.train.settings import SettingsError

SETTINGS = "run.toml"
LOG = "log.jsonl"

Values = Mapping[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what it has."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def settings(self) -> Path:
        return self.path / SETTINGS

    def checkpoints(self, seed: int) -> Path:
        return self.path / "checkpoints" / f"seed-{seed}"

    def finished(self, seed: int) -> Path:
        """The weights of a seed, once it is done."""
        return self.path / "finished" / f"seed-{seed}.safetensors"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions"

    def keep_predictions(self, name: str, judged: Judged) -> None:
        """Judged rows, to be compared with those of other models."""
        self.predictions.mkdir(exist_ok=True)
        arrays: dict[str, Any] = dict(judged)
        np.savez_compressed(self.predictions / f"{name}.npz", **arrays)

    def forget_checkpoints(self, seed: int) -> None:
        shutil.rmtree(self.checkpoints(seed), ignore_errors=True)

    def note(self, event: Values) -> None:
        """One line of the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")

    def remove(self) -> None:
        shutil.rmtree(self.path)


@contextmanager
def run_folder(out: Path, verb: str, settings: Values, *, overwrite: bool) -> Iterator[RunFolder]:
    """The run folder of OUT: a new one, or the one that a run with these settings left behind."""
    out = Path(out).expanduser()
    require_free(out, overwrite=overwrite)
    folder = RunFolder(out.parent / f"{out.name}.run")
    written = to_toml({"verb": verb, **settings})
    with hold_folder(folder.path) as held:
        if not held:
            raise ArtifactError(f"another process is at work in {folder.path}; wait for it, or give another --out")
        if folder.settings.exists() and not overwrite:
            _require_same(folder, tomllib.loads(written))
        elif folder.path.exists():
            folder.remove()
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.settings.write_text(written, encoding="utf-8")
        yield folder


def require_free(out: Path, *, overwrite: bool) -> None:
    """Refuse an OUT that is there, before anything takes time."""
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ArtifactError(f"{out} is not empty; give another --out, or --overwrite (overwrite=True) to replace it")
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is a file; give a folder as --out")


def _require_same(folder: RunFolder, wanted: Values) -> None:
    there = read_toml(folder.settings)
    for name in sorted({*wanted, *there}):
        if wanted.get(name) != there.get(name):
            raise SettingsError(
                f"{folder.path} holds an unfinished run of other settings: its {name} is {there.get(name)!r}, not "
                f"{wanted.get(name)!r}; give the same, another --out, or --overwrite to begin anew"
            )


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}); give the run.toml of a run") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no TOML ({error}); give the run.toml of a run") from error


def to_toml(values: Values) -> str:
    """Flat values, then the tables among them; what is None is left out."""
    given = {name: value for name, value in values.items() if value is not None}
    lines = [f"{name} = {_toml(value)}" for name, value in given.items() if not isinstance(value, Mapping)]
    for name, value in given.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(each)}" for key, each in value.items() if each is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # A JSON string is a TOML string, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{value!r} has no place in a run.toml")
