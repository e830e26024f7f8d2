"""A small artifact whose every part says the same word, so that a mix of two shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from halfpint.artifact import Artifact, read_artifact, replace_folder, write_metadata


def fill(folder: Path, word: str) -> None:
    (folder / "config.json").write_text(json.dumps({"word": word}))
    save_file({word: np.arange(100, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps({"word": word, "model": {}}))
    (folder / "README.md").write_text(f"# {word}\n")
    (folder / "onnx").mkdir(exist_ok=True)
    (folder / "onnx" / "model.onnx").write_text(word)
    write_metadata(folder, word=word)


def write_sample(out: Path, word: str = "old", *, overwrite: bool = False) -> Artifact:
    with replace_folder(out, overwrite=overwrite) as staging:
        fill(staging, word)
    return read_artifact(out)


def word_of(folder: Path) -> str:
    """The one word of a sample; an error, where its parts say different ones or a file is not as it was written."""
    artifact = read_artifact(folder)
    words = {
        artifact.config["word"],
        artifact.metadata["word"],
        *load_file(artifact.path("model.safetensors")),
        json.loads(artifact.path("tokenizer.json").read_text())["word"],
        artifact.path("onnx/model.onnx").read_text(),
    }
    assert len(words) == 1, words
    return words.pop()


def beside(folder: Path) -> set[str]:
    """What lies next to a folder."""
    return {path.name for path in folder.parent.iterdir()} - {folder.name}
