"""Checkpoints: all that a run needs to go on as if nothing had happened, in folders written whole or not at all.

A checkpoint is `checkpoints/STEP/`: tensors as safetensors, in files of a bounded size where asked, and the rest as
JSON. Every file is hashed; one that was changed or cut is refused, and the checkpoint before it is used. The last
two are kept.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from halfpint.artifact import ArtifactError, replace_folder
from halfpint.artifact.manifest import METADATA, is_complete

KEPT = 2
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: groups of tensors by name (`model`, `optimizer`, `best` …), and plain values."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    values: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, max_bytes: int = 2 * 10**9) -> Path:
    """Write `folder/STEP`, and remove all but the last two."""
    out = folder / f"{checkpoint.step:08d}"
    with replace_folder(out, overwrite=True) as staging:
        for group, tensors in checkpoint.tensors.items():
            for index, shard in enumerate(_shards(tensors, max_bytes)):
                save_file(shard, staging / f"{group}-{index:03d}.safetensors")
        values = {"step": checkpoint.step, "groups": list(checkpoint.tensors), "values": checkpoint.values}
        (staging / STATE).write_text(json.dumps(values), encoding="utf-8")
    for old in steps_of(folder)[:-KEPT]:
        shutil.rmtree(folder / f"{old:08d}")
    return out


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint that is whole; None where there is none."""
    for step in reversed(steps_of(folder)):
        path = folder / f"{step:08d}"
        try:
            return _read(path)
        except ArtifactError as error:
            warnings.warn(f"{error}; going on from the checkpoint before it", stacklevel=2)
    return None


def steps_of(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal())


def _read(path: Path) -> Checkpoint:
    if not is_complete(path):
        raise ArtifactError(f"the checkpoint {path} was changed or is incomplete, going by {METADATA}")
    values = json.loads((path / STATE).read_text(encoding="utf-8"))
    try:
        tensors = {
            group: {
                name: tensor
                for file in sorted(path.glob(f"{group}-*.safetensors"))
                for name, tensor in load_file(file).items()
            }
            for group in values["groups"]
        }
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"the checkpoint {path} cannot be read ({error})") from error
    return Checkpoint(values["step"], tensors, values["values"])


def _shards(tensors: dict[str, Tensor], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """In their order, as many at a time as stay within the size, or one that alone is larger."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        # A copy of its own: safetensors refuses tensors that share storage, and the device's go to the host.
        shard[name] = tensor.detach().cpu().clone().contiguous()
        size += tensor.nbytes
    if shard:
        yield shard
