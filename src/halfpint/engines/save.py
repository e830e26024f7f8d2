"""A model in memory to a whole artifact: config, weights, tokenizer, pooling, licence, card and `halfpint.json`.

What is notable:
- `tokenizer.json` is the live tokenizer; its companions, which other libraries read, are copied from the folder
  that the model came from, and vocabulary files only while they still say the same;
- how `embed` pools is written for encoders, in the words of sentence-transformers;
- a model of the transformers adapter is written as `transformers` writes it, an encoder alone under the names it has
  in the whole model; its heads lie beside it in a file of their own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from halfpint.artifact import Artifact, ArtifactError, read_card, replace_folder, write_card, write_metadata
from halfpint.artifact.manifest import CARD, METADATA, inside
from halfpint.checkpoints.adapter import quiet
from halfpint.checkpoints.foreign_network import AnyNetwork, ForeignNetwork, write_heads
from halfpint.checkpoints.sentence import read_embedding_head, write_embedding_head
from halfpint.checkpoints.write import Written, write_network
from halfpint.config import EmbeddingHead
from halfpint.data.pipelines import is_own, write_companions
from halfpint.data.tokenizer import COMPANIONS, VOCABULARIES, Tokenizer, read_tokenizer
from halfpint.model.network import Network

LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.txt")
"""What a licence may ask to be passed on with the weights."""

POOLING = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")


def save_artifact(
    out: Path | str,
    module: AnyNetwork,
    tokenizer: Tokenizer | None,
    embedding: EmbeddingHead,
    source: Artifact | None,
    *,
    overwrite: bool = False,
    title: str | None = None,
    base_model: str | None = None,
    license: str | None = None,
    facts: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    files: Mapping[str, Path] | None = None,
) -> Path:
    """Write the folder whole or not at all; what is given goes into the card, and metadata into `halfpint.json`.

    `files` are copied into it, by their names there.
    """
    if not isinstance(out, str | PathLike):
        raise ArtifactError(f"the folder to save in is {out!r} ({type(out).__name__}); give its path")
    out = Path(out).expanduser()
    with replace_folder(out, overwrite=overwrite) as staging:
        if isinstance(module, Network):
            written = _write_own(module, embedding, staging)
        else:
            written = _write_foreign(module, embedding, source, staging)
        _write_tokenizer(tokenizer, source, staging)
        _copy(source, LICENCES, staging)
        for name, path in (files or {}).items():
            _add_file(name, path, staging)
        parameters = f"{sum(each.numel() for each in module.parameters()):,}"
        told = {"parameters": parameters, "format": written.format, **(facts or {})}
        # The weights are still the source's unless the caller says otherwise.
        card = read_card(source) if source else {}
        write_card(
            staging,
            title=title or out.name,
            base_model=base_model or card.get("base_model"),
            license=license or card.get("license"),
            facts=told,
        )
        write_metadata(staging, **{"written": asdict(written), **(metadata or {})})
    return out


def _add_file(name: str, path: Path, staging: Path) -> None:
    target = inside(staging, name)
    # The card and the metadata are written last.
    if target.exists() or target in (staging / CARD, staging / METADATA):
        raise ArtifactError(f"files has {name!r}, which the model itself writes; give the file another name")
    if not Path(path).is_file():
        raise ArtifactError(f"files has {str(path)!r} for {name!r}, and there is no such file; give one that is there")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _write_own(network: Network, embedding: EmbeddingHead, staging: Path) -> Written:
    written = write_network(network, staging)
    is_encoder = not any(kind != "embedding" for kind in network.heads)
    if (is_encoder or embedding != EmbeddingHead()) and network.config.head("embedding") is None:
        write_embedding_head(staging, embedding, network.config.encoder)
    return written


def _write_foreign(
    network: ForeignNetwork, embedding: EmbeddingHead, source: Artifact | None, staging: Path
) -> Written:
    encoder = network.encoder
    # A pooler that was filled with random numbers is left out, or it would come back as a trained one.
    kept = {
        name: tensor
        for name, tensor in encoder.model.state_dict().items()
        if encoder.pools or not name.startswith("pooler.")
    }
    if getattr(encoder.config, "is_encoder_decoder", False):
        encoder.config.save_pretrained(staging)
        names = {f"encoder.{name}": tensor.detach().cpu().clone() for name, tensor in kept.items()}
        save_file(names, staging / "model.safetensors", {"format": "pt"})
    else:
        model: Any = encoder.model
        with quiet():
            model.save_pretrained(staging, state_dict=kept)
    if heads := write_heads(network, staging):
        write_metadata(staging, heads=heads)
    _write_foreign_pooling(network, embedding, source, staging)
    return Written(encoder.name, None)


def _write_foreign_pooling(
    network: ForeignNetwork, embedding: EmbeddingHead, source: Artifact | None, staging: Path
) -> None:
    head = network.head_config("embedding")
    wanted = head if isinstance(head, EmbeddingHead) else embedding
    if source is not None and source.has("modules.json") and read_embedding_head(source) == wanted:
        modules = json.loads(source.path("modules.json").read_text(encoding="utf-8"))
        folders = [module["path"] for module in modules if module["path"]]
        _copy(source, (*POOLING, *(f"{folder}/config.json" for folder in folders)), staging)
    elif head is not None or wanted != EmbeddingHead():
        write_embedding_head(staging, wanted, network.encoder)


def _write_tokenizer(tokenizer: Tokenizer | None, source: Artifact | None, staging: Path) -> None:
    if tokenizer is None:
        _copy(source, (*COMPANIONS, *VOCABULARIES), staging)
        return
    tokenizer.save(staging / "tokenizer.json")
    stored = read_tokenizer(source) if source is not None else None
    if stored is not None and stored.to_json() == tokenizer.to_json():
        _copy(source, (*COMPANIONS, *VOCABULARIES), staging)
    elif is_own(tokenizer):
        write_companions(staging, tokenizer)
    else:
        _copy(source, COMPANIONS, staging)


def _copy(source: Artifact | None, names: tuple[str, ...], staging: Path) -> None:
    """Those of the files that are in the folder the model came from."""
    if source is None:
        return
    if not source.folder.is_dir():
        raise ArtifactError(
            f"{source.folder}, the folder that this model was loaded from, is gone, and with it the files of its "
            "tokenizer and licence; load the model again from where it is now"
        )
    for name in names:
        if source.has(name):
            target = staging / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source.path(name), target)
