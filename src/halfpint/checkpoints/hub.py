"""From a name to a folder: a local folder, a preset, or a name on the Hub (or in its local cache)."""

from __future__ import annotations

import difflib
from pathlib import Path

from halfpint.artifact import ArtifactError
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


class WeightsUnavailable(ArtifactError):
    """A name whose weights could not be had; the message names the ways out."""


def find_folder(name: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model, fetched from the Hub where it is not here."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ArtifactError(f"{name} is a file; a model is a folder with config.json and its weights")
    text = str(name)
    preset = find_preset(text)
    if preset is None and _looks_local(text):
        raise ArtifactError(f"there is no folder {name}; a model is a folder, a preset ({_near(text)}) or a Hub name")
    return _fetch(preset.hub if preset else text, text, revision)


def _looks_local(name: str) -> bool:
    """A Hub name has the form `owner/model` or `model`, and nothing of a path."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or not name


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, list(PRESETS), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ", ".join(PRESETS)


def _fetch(hub_name: str, asked: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    ways_out = (
        "give a folder that holds the weights, set HF_ENDPOINT or HF_HOME to a mirror or cache that has them, "
        "or train without them (--from-scratch)"
    )
    try:
        return Path(snapshot_download(hub_name, revision=revision, allow_patterns=PATTERNS, ignore_patterns=IGNORED))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise WeightsUnavailable(
            f"{asked!r} is neither a folder nor a preset nor a model on the Hub; presets: {_near(asked)}"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        what = f"the weights of {asked} ({hub_name}) cannot be had"
        if asked == hub_name:
            what = f"{asked!r} is neither a folder nor a preset ({_near(asked)}), and the Hub cannot be asked"
        raise WeightsUnavailable(f"{what}: {ways_out}") from error
