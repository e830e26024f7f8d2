"""What a model's folder says about itself: `halfpint.json`, its hashes, and names that stay inside.

No name that a folder gives (in an index, in `halfpint.json`, by a link) leads out of it. The one exception
are the links of the Hub's cache into its own blobs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from os.path import realpath
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

FORMAT = 1
CONFIG = "config.json"
METADATA = "halfpint.json"
CARD = "README.md"
UNFINISHED = ".unfinished"
"""In a folder whose writer has not come to the end. Hashes alone would not tell: a writer may have begun by
copying another complete folder."""
SWAPPED = ".swapped"
"""In a complete folder that is about to be moved: the new one until all is done, the old one until it is deleted."""
MARKS = (UNFINISHED, SWAPPED)
"""What a writer's folders are known by, so that nobody else's is ever deleted."""


class ArtifactError(ValueError):
    """A folder that cannot be read or written; the message says what is wrong and what to do."""


def inside(folder: Path, name: str) -> Path:
    """The path of a file by its relative name, whether or not it is there."""
    # Windows rules know both slashes and drives, and a folder that was written here may be read there.
    pure = PureWindowsPath(name)
    if not pure.parts or pure.anchor or ".." in pure.parts or "\0" in name:
        raise ArtifactError(f"{name!r} is no name inside {folder}; expected a relative one without '..'")
    root = Path(realpath(folder))
    target = Path(realpath(root / name))
    if not any(target.is_relative_to(allowed) for allowed in (root, *_cache_blobs(root))):
        raise ArtifactError(f"{name} in {folder} is a link out of it, to {target}, and is not followed; copy the file")
    return folder / name


def _cache_blobs(root: Path) -> Iterator[Path]:
    """Where the files of a snapshot in the Hub's cache lie: CACHE/models--…/snapshots/REVISION."""
    for folder in (root, *root.parents):
        repository = folder.parent.parent
        if folder.parent.name == "snapshots" and repository.name.startswith("models--"):
            yield repository / "blobs"
            # Where huggingface_hub shares blobs between repositories, those above are links to these.
            yield repository.parent / "blobs"


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read ({error.strerror}); check the folder and its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not valid JSON ({error}); copy or write the folder again") from error
    if not isinstance(values, dict):
        raise ArtifactError(f"{path} holds a {type(values).__name__}, expected a JSON object; copy or write it again")
    return values


def write_metadata(staging: Path, /, **fields: Any) -> None:
    """Merge fields into `halfpint.json`. NumPy values become plain ones; what is not a finite number becomes null."""
    path = staging / METADATA
    merged = {**(read_json(path) if path.exists() else {}), **_plain(fields)}
    path.write_text(json.dumps(merged, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # JSON has no NaN, and hours of training should not end because one seed has no spread.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_manifest(staging: Path) -> None:
    """Complete `halfpint.json` with the hashes of every file that is not free to edit."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(staging.rglob("*")):
        name = path.relative_to(staging).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ArtifactError(f"{name} is a link or no plain file, which a model folder cannot hold; copy the file")
        if path.is_file() and name not in (METADATA, CARD, *MARKS):
            inside(staging, name)
            files[name] = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    write_metadata(staging, format=FORMAT, halfpint=_version(), created=created, files=files)


def verify_files(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Compare every file that `metadata` lists with what it says. Folders from elsewhere list none."""
    files = metadata.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(entry, dict) for entry in files.values()):
        raise ArtifactError(f"`files` in {folder / METADATA} is malformed; copy or write the folder again")
    for name, entry in files.items():
        problem = _difference(inside(folder, name), entry)
        if problem:
            raise ArtifactError(
                f"{name} in {folder} was changed or is incomplete: {problem}; copy or write the folder again "
                "(in Python, verify=False takes it as it is)"
            )


def _difference(path: Path, entry: Mapping[str, Any]) -> str | None:
    if not path.is_file():
        return "it is missing"
    try:
        size = path.stat().st_size
        if size != entry.get("bytes"):
            return f"it has {size} bytes, expected {entry.get('bytes')}"
        return None if _sha256(path) == entry.get("sha256") else f"its SHA-256 is not the one in {METADATA}"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def is_complete(staging: Path) -> bool:
    """Whether a folder was written to its end, and is all there."""
    if not (staging / METADATA).is_file() or (staging / UNFINISHED).exists():
        return False
    try:
        metadata = read_json(staging / METADATA)
        verify_files(staging, metadata)
    except ArtifactError:
        return False
    return "files" in metadata


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version() -> str:
    try:
        return importlib.metadata.version("halfpint")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"
