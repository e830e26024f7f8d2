"""What sentence-transformers writes beside a model: how token states become one vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from halfpint.artifact import Artifact, ArtifactError
from halfpint.config import EmbeddingHead, Pooling

_MODES: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
MODULES = ("Transformer", "Pooling", "Normalize")
"""What a sentence encoder is made of here; its states go through these in this order."""


class Sizes(Protocol):
    """What sentence-transformers is told of an encoder; every `EncoderConfig` says it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_positions(self) -> int: ...


def read_embedding_head(artifact: Artifact) -> EmbeddingHead | None:
    """The pooling that a folder's `modules.json` describes; None where there is no such file."""
    if not artifact.has("modules.json"):
        return None
    paths = _read_modules(artifact)
    if "Pooling" not in paths:
        return None
    name = f"{paths['Pooling']}/config.json"
    settings = _read_json(artifact, name)
    if not isinstance(settings, dict):
        raise ArtifactError(f"{artifact.folder / name} is no JSON object of pooling modes; fetch or write it again")
    modes = [name for name, on in settings.items() if name.startswith("pooling_mode_") and on is True]
    if isinstance(settings.get("pooling_mode"), str):  # sentence-transformers 5.2 and later
        modes = [
            f"pooling_mode_{settings['pooling_mode']}_{'token' if settings['pooling_mode'] == 'cls' else 'tokens'}"
        ]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ArtifactError(
            f"{artifact.folder} pools by {', '.join(modes) or 'nothing'}; known are {', '.join(_MODES)}"
        )
    return EmbeddingHead(_MODES[modes[0]], normalize="Normalize" in paths)


def _read_modules(artifact: Artifact) -> dict[str, str]:
    """Kind → path of the modules, which must be those that Halfpint computes, in their order."""
    file, paths = artifact.folder / "modules.json", {}
    modules = _read_json(artifact, "modules.json")
    if not isinstance(modules, list):
        raise ArtifactError(f"{file} is no list of modules; fetch or write it again")
    for module in modules:
        kind, path = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ArtifactError(f"{file} has the module {module!r}; expected an object with a type and a path, as text")
        kind = kind.rsplit(".", 1)[-1]
        if kind not in MODULES:
            raise ArtifactError(
                f"{file} has a {kind} module, which Halfpint does not compute; it knows {', '.join(MODULES)}"
            )
        paths[kind] = path
    if len(paths) != len(modules) or list(paths) != [kind for kind in MODULES if kind in paths]:
        order = ", ".join(module["type"].rsplit(".", 1)[-1] for module in modules)
        raise ArtifactError(f"{file} runs {order}; Halfpint computes {', '.join(MODULES)} in this order, each once")
    return paths


def write_embedding_head(folder: Path, head: EmbeddingHead, encoder: Sizes) -> None:
    """The files by which sentence-transformers opens the folder."""
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    if head.normalize:
        modules.append(("2", "2_Normalize", "Normalize"))
    listed = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in modules
    ]
    settings: dict[str, Any] = {"word_embedding_dimension": encoder.hidden_size}
    settings |= {mode: pooling == head.pooling for mode, pooling in _MODES.items()}
    _write_json(folder / "modules.json", listed)
    (folder / "1_Pooling").mkdir()
    _write_json(folder / "1_Pooling" / "config.json", settings)
    if head.normalize:
        (folder / "2_Normalize").mkdir()
    limits = {"max_seq_length": encoder.num_positions, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", limits)


def _read_json(artifact: Artifact, name: str) -> Any:
    try:
        return json.loads(artifact.path(name).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{artifact.folder / name} cannot be read: {error}") from error


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
