"""From a name to a folder: a local folder, a preset, or a name on the Hub (or in its local cache)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from os import PathLike
from pathlib import Path
from typing import cast

from halfpint.artifact import ArtifactError
from halfpint.artifact.folder import PICKLED
from halfpint.artifact.manifest import METADATA, read_json
from halfpint.presets import PRESETS, find_preset

PATTERNS = [
    "*.json",
    "*.safetensors",
    "*.model",
    "vocab.txt",
    "merges.txt",
    "README.md",
    "1_Pooling/config.json",
]
"""What is fetched: configuration, tokenizer and safetensors; never a pickle, never code."""

IGNORED = ["onnx/*", "openvino/*", "*/model*.safetensors"]

DESCRIBING = ["*.json"]
"""What is fetched to count alone."""
INDICES = ["*.index.json"]
"""Lists of shards, which nobody should find without the shards."""

WAYS_OUT = "give a folder that holds the weights, or set HF_ENDPOINT or HF_HOME to a mirror or cache that has them"
"""A verb that can do without weights catches `WeightsUnavailable` and adds its own."""
WAYS_TO_COUNT = "give a folder with its config.json, or set HF_ENDPOINT or HF_HOME to a mirror or cache that has it"


class WeightsUnavailable(ArtifactError):
    """A name whose weights could not be had; the message names the ways out."""


def find_folder(name: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """The folder of a model, fetched from the Hub where it is not here; without `weights`, only what describes it."""
    folder = local_folder(name)
    if folder is not None:
        if revision is not None:
            raise ArtifactError(
                f"{name} is a folder here, and only names on the Hub have revisions (given: {revision!r}); "
                "leave the revision out, or give a name"
            )
        return folder
    if Path(name).expanduser().is_file():
        raise ArtifactError(f"{name} is a file; a model is a folder with config.json and its weights")
    text = str(name)
    preset = find_preset(text)
    if preset is None and _looks_local(text):
        raise ArtifactError(f"there is no folder {name}; a model is a folder, a preset ({_near(text)}) or a Hub name")
    hub_name = preset.hub if preset else text
    with _explained(hub_name, text, revision, WAYS_OUT if weights else WAYS_TO_COUNT):
        if not weights:
            return _fetch(hub_name, revision, DESCRIBING, [*IGNORED, *INDICES])
        folder = _fetch(hub_name, revision, PATTERNS, IGNORED)
        if (folder / METADATA).is_file():
            # One of Halfpint's own is checked by hash, so all that it lists must be here.
            folder = _fetch(hub_name, revision, [*PATTERNS, *_listed(folder)], [])
        if not any(folder.glob("*.safetensors")):
            _refuse_pickles(hub_name, revision)
            raise WeightsUnavailable(f"{text} has no safetensors on the Hub ({hub_name}): {WAYS_OUT}")
    return folder


def local_folder(name: str | Path) -> Path | None:
    """The folder of that name, where there is one; what can be no name at all is refused."""
    if not isinstance(name, str | PathLike):
        raise ArtifactError(
            f"a model was given as {name!r} ({type(name).__name__}); give a folder, a preset or a Hub name"
        )
    if not str(name).strip():
        raise ArtifactError("the name of the model is empty; give a folder (. is this one), a preset or a Hub name")
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else None


def _looks_local(name: str) -> bool:
    """A Hub name has the form `owner/model` or `model`, and nothing of a path."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or not name


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, list(PRESETS), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ", ".join(PRESETS)


def _fetch(hub_name: str, revision: str | None, wanted: list[str], ignored: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(hub_name, revision=revision, allow_patterns=wanted, ignore_patterns=ignored))


def _listed(folder: Path) -> list[str]:
    """The files that an artifact's halfpint.json names; pickles and code, which it has no business to name, apart."""
    files = read_json(folder / METADATA).get("files")
    names = files if isinstance(files, dict) else {}
    return [name for name in names if not _is_pickle(name) and not name.endswith(".py")]


def _is_pickle(name: str) -> bool:
    return any(fnmatch(name.rpartition("/")[2], pattern) for pattern in PICKLED)


def _refuse_pickles(hub_name: str, revision: str | None) -> None:
    from huggingface_hub import HfApi

    pickled = [name for name in HfApi().list_repo_files(hub_name, revision=revision) if _is_pickle(name)]
    if pickled:
        raise ArtifactError(
            f"{hub_name} has only pickled weights ({', '.join(sorted(pickled))}), and nothing pickled is fetched or "
            "opened; convert them to safetensors where you trust them (transformers: AutoModel.from_pretrained(name), "
            "then model.save_pretrained(folder)), and give that folder"
        )


@contextmanager
def _explained(hub_name: str, asked: str, revision: str | None, ways_out: str) -> Iterator[None]:
    """What goes wrong between here and the Hub, in words and with the ways out."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # What else its HTTP library raises; that is not the same library in every version, but always this base.
    http_error = cast(type[Exception], HfHubHTTPError.__bases__[0])
    is_preset = asked != hub_name
    try:
        yield
    except GatedRepoError as error:
        raise WeightsUnavailable(
            f"{hub_name} is gated: accept its terms on the Hub and log in (hf auth login), or {ways_out}"
        ) from error
    except RevisionNotFoundError as error:
        raise WeightsUnavailable(f"{hub_name} has no revision {revision!r} on the Hub; give one that it has") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        if is_preset:
            raise WeightsUnavailable(f"the Hub has no {hub_name}, the weights of {asked}: {ways_out}") from error
        raise WeightsUnavailable(
            f"{asked!r} is neither a folder nor a preset ({_near(asked)}) nor a model on the Hub"
        ) from error
    except (http_error, OSError) as error:
        what = f"the weights of {asked} ({hub_name}) cannot be had"
        if not is_preset:
            what = f"{asked!r} is neither a folder nor a preset ({_near(asked)}), and the Hub cannot be asked"
        raise WeightsUnavailable(f"{what}: {ways_out}") from error
