"""A model's folder, opened: its config, what was measured, its weight files, and the card beside them.

Every file is checked against the hashes in `halfpint.json`, where there is one. Folders from elsewhere have none
and are read all the same. Weights are safetensors; nothing pickled is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfpint.artifact.manifest import (
    CARD,
    CONFIG,
    FORMAT,
    METADATA,
    ArtifactError,
    inside,
    read_json,
    verify_files,
)
from halfpint.artifact.swap import read_steadily

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "tf_model.h5")
"""Weights in formats that are not opened, since they can carry code."""


@dataclass(frozen=True)
class Artifact:
    """A model's folder, and what its two JSON files say."""

    folder: Path
    config: dict[str, Any]
    metadata: dict[str, Any]
    """`halfpint.json`; empty for folders that Halfpint did not write."""

    def path(self, name: str) -> Path:
        """A file of the folder by its relative name, whether or not it is there; never one outside."""
        return inside(self.folder, name)

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def weight_files(self) -> list[Path]:
        """The safetensors file, or all its shards."""
        if self.has(WEIGHTS):
            return [self.path(WEIGHTS)]
        if self.has(INDEX):
            return self._shards()
        pickled = sorted({path.name for pattern in PICKLED for path in self.folder.glob(pattern)})
        if pickled:
            raise ArtifactError(
                f"only pickled weights ({', '.join(pickled)}) in {self.folder}; nothing pickled is opened; convert "
                "them to safetensors where you trust them (transformers: AutoModel.from_pretrained(folder), then "
                "model.save_pretrained(folder))"
            )
        raise ArtifactError(f"no weights in {self.folder}; expected {WEIGHTS}, or {INDEX} and its shards")

    def _shards(self) -> list[Path]:
        index = self.path(INDEX)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ArtifactError(f"{index} has no weight_map from tensors to files; fetch or save the folder again")
        for name in weight_map.values():
            if not isinstance(name, str) or not name.endswith(".safetensors"):
                raise ArtifactError(f"{index} names {name!r} as a shard; expected names of .safetensors files")
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not self.has(name)]
        if missing:
            raise ArtifactError(
                f"{', '.join(missing)} missing from {self.folder}, though {INDEX} names it; fetch the folder again"
            )
        return [self.path(name) for name in names]


def read_artifact(folder: Path | str, *, verify: bool = True) -> Artifact:
    """Open a model's folder; with `verify`, only if every file is as `halfpint.json` says."""
    return read_steadily(folder, lambda settled: _read(settled, verify))


def _read(folder: Path, verify: bool) -> Artifact:
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise ArtifactError(f"{folder} {found}; expected a model folder with a {CONFIG}")
    if not inside(folder, CONFIG).is_file():
        raise ArtifactError(f"no {CONFIG} in {folder}; expected a model folder as on the Hub")
    config = read_json(folder / CONFIG)
    metadata = read_json(folder / METADATA) if inside(folder, METADATA).is_file() else {}
    if metadata.get("format", FORMAT) != FORMAT:
        raise ArtifactError(
            f"{folder} has format {metadata['format']!r}, and this Halfpint reads format {FORMAT}; update halfpint"
        )
    if verify:
        verify_files(folder, metadata)
    return Artifact(folder, config, metadata)


def write_card(
    staging: Path, *, title: str, base_model: str | None, license: str | None, facts: Mapping[str, str]
) -> None:
    """Write the model card: front matter for the Hub, a table of facts, and how to load the model."""
    from huggingface_hub import ModelCardData  # slow to import, and only writers need it

    hub = ModelCardData(
        license=_line(license or "") or None,
        base_model=_line(base_model or "") or None,
        library_name="halfpint",
        tags=["halfpint"],
    )
    rows = "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in facts.items())
    table = f"| | |\n|---|---|\n{rows}\n" if rows else ""
    usage = '```python\nimport halfpint as hp\n\nmodel = hp.load("path/to/this/folder")\n```\n'
    card = f"---\n{hub.to_yaml().strip()}\n---\n\n# {_line(title)}\n\n{table}## How to use\n\n{usage}"
    (staging / CARD).write_text(card, encoding="utf-8")


def read_card(artifact: Artifact) -> dict[str, str]:
    """Licence and base model, as far as the card of a folder says them in words."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError  # type: ignore[import-untyped]  # what huggingface_hub reads cards with

    if not artifact.has(CARD):
        return {}
    try:
        found = metadata_load(artifact.path(CARD)) or {}
    except (YAMLError, ValueError):
        # A card is free to edit, and a broken one says nothing.
        return {}
    return {name: found[name] for name in ("license", "base_model") if isinstance(found.get(name), str)}


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")
