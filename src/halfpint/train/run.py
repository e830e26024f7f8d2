"""The folder of a run while it goes on: `OUT.run/`, with its settings, its log, its checkpoints and predictions.

The model itself appears at OUT only when the run has succeeded, and then this folder goes. What is notable:
- a run that was stopped goes on when the same command is given again; one with other settings is refused, by name,
  where there is something to lose: a checkpoint, or the weights of a seed;
- what it learns from is among the settings, as hashes: other rows under the same name are another run;
- `run.toml` holds every setting as it was resolved, so `halfpint rerun` does the same again;
- one process at a time, and of those that `torchrun` starts together the first alone writes.
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
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from halfpint.artifact import ArtifactError, hold_folder
from halfpint.data.task import Judged
from halfpint.train.failures import TrainingFailed
from halfpint.train.parallel import Ranks
from halfpint.train.settings import SettingsError

SETTINGS = "run.toml"
LOG = "log.jsonl"
HASHES = "data_hashes"
WEAK = "too-weak"
"""Marks a run that has trained and was not good enough: what it has serves --allow-weak, and nothing else."""
NO_IDENTITY = ("allow_weak",)
"""Settings that change nothing of what is trained."""

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
        arrays: dict[str, Any] = dict(judged)
        with self.explained():
            self.predictions.mkdir(exist_ok=True)
            np.savez_compressed(self.predictions / f"{name}.npz", **arrays)

    def keep_weights(self, seed: int, tensors: Mapping[str, Tensor]) -> None:
        """The weights of a seed that is done; its checkpoints have served."""
        place = self.finished(seed)
        staging = place.with_suffix(".new")
        with self.explained():
            place.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, staging)
            staging.replace(place)
        self.forget_checkpoints(seed)

    def mark_weak(self) -> None:
        (self.path / WEAK).touch()

    @property
    def is_worth_keeping(self) -> bool:
        """Whether there is something that cannot be had again at once."""
        return any(self.path.glob("finished/*.safetensors")) or any(self.path.glob("checkpoints/*/*"))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What the system refuses, in words."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ArtifactError(
                f"{why} while writing in {self.path}; what was done so far is kept there: free some space or mend it, "
                "and give the same command again"
            ) from error

    def forget_checkpoints(self, seed: int) -> None:
        shutil.rmtree(self.checkpoints(seed), ignore_errors=True)

    def note(self, event: Values) -> None:
        """One line of the log."""
        with self.explained(), self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")

    def remove(self) -> None:
        shutil.rmtree(self.path)


@contextmanager
def run_folder(out: Path, verb: str, settings: Values, *, overwrite: bool, ranks: Ranks) -> Iterator[RunFolder]:
    """The run folder of OUT: a new one, or the one that a run with these settings left behind."""
    folder = RunFolder(out.parent / f"{out.name}.run")
    if not ranks.is_first:
        ranks.wait()
        yield folder
        return
    written = to_toml({"verb": verb, **settings})
    with hold_folder(folder.path) as held:
        if not held:
            raise ArtifactError(f"another process is at work in {folder.path}; wait for it, or give another --out")
        if overwrite or not _goes_on(folder, tomllib.loads(written)):
            shutil.rmtree(folder.path, ignore_errors=True)
        with folder.explained():
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.settings.write_text(written, encoding="utf-8")
        ranks.wait()
        try:
            yield folder
        except BaseException as error:
            if isinstance(error, TrainingFailed) or not folder.is_worth_keeping:
                shutil.rmtree(folder.path, ignore_errors=True)
            raise


def require_free(out: Path, *, overwrite: bool) -> None:
    """Refuse an OUT that is there, before anything takes time."""
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise ArtifactError(f"{out} is not empty; give another --out, or --overwrite (overwrite=True) to replace it")
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out} is a file; give a folder as --out")


def _goes_on(folder: RunFolder, wanted: Values) -> bool:
    """Whether the folder holds this very run; refused where it holds another that would be lost."""
    if not folder.settings.exists():
        return False
    there = read_toml(folder.settings)
    other = [name for name in sorted({*wanted, *there} - set(NO_IDENTITY)) if wanted.get(name) != there.get(name)]
    if not other:
        return True
    if not folder.is_worth_keeping or (folder.path / WEAK).exists():
        return False
    name = other[0]
    told = MEANINGS.get(name, f"of other settings: its {name} is {there.get(name)!r}, not {wanted.get(name)!r}")
    raise SettingsError(
        f"{folder.path} holds an unfinished run {told}; give the same, another --out, or --overwrite to begin anew"
    )


MEANINGS = {
    HASHES: "on other rows: the data has changed since",
    "start_hash": "from other weights: the model it started from has changed since",
}


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
