"""Which model lies in a folder, from its config and the names of its tensors. Needs no torch.

What is in the file counts: heads and pooler are there when their tensors are, and the class that config.json
names must be complete. Where there are no weights at all, the class decides.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from safetensors import SafetensorError, safe_open

from halfpint.artifact import Artifact, ArtifactError
from halfpint.checkpoints.families import Family, Inexpressible, Names
from halfpint.checkpoints.registry import FAMILIES, OWN
from halfpint.checkpoints.sentence import read_embedding_head
from halfpint.checkpoints.values import Values, misfit, read_switch
from halfpint.config import ConfigError, EncoderConfig, HeadConfig, ModelConfig, from_dict

UNTIED = "the masked-LM decoder is not tied to the word embeddings"


@dataclass(frozen=True)
class Description:
    """A model and the family in whose words the folder has it; None for Halfpint's own."""

    config: ModelConfig
    family: Family | None


def describe(artifact: Artifact, stored: Container[str] | None = None) -> Description:
    """The model of a folder. `stored` are the names of its tensors, read from the files unless given."""
    if artifact.config.get("model_type") == OWN:
        try:
            return Description(from_dict(artifact.config), None)
        except ConfigError as error:
            raise _placed(error, artifact) from error
        except (TypeError, AttributeError) as error:
            raise ConfigError(
                f"{artifact.folder}/config.json is no Halfpint config ({error}); write the folder again"
            ) from error
    if artifact.config.get("quantization_config") is not None:
        raise ArtifactError(
            f"{artifact.folder}/config.json has a quantization_config, and quantized weights are not read; "
            "give the folder of the model before it was quantized"
        )
    try:
        family = _find_family(artifact.config)
    except ConfigError as error:
        raise _placed(error, artifact) from error
    if stored is None:
        stored = tensor_names(artifact)
    embedding = read_embedding_head(artifact)
    try:
        encoder = family.read_encoder(artifact.config)
        heads = _read_heads(family, artifact.config, encoder, stored)
        tied = read_switch(artifact.config, "tie_word_embeddings", True)
        if encoder.pooler == "tanh" and not _has_pooler(family, artifact.config, encoder, stored):
            encoder = encoder.replace(pooler="none")
        config = ModelConfig(encoder, (*heads, embedding) if embedding else heads)
    except ConfigError as error:
        raise _placed(error, artifact) from error
    if not tied and any(head.kind == "masked_lm" for head in heads):
        raise Inexpressible(UNTIED)
    return Description(config, family)


def _placed(error: ConfigError, artifact: Artifact) -> ConfigError:
    """The same error with the file that it is about."""
    return ConfigError(f"{artifact.folder}/config.json: {error}")


def tensor_names(artifact: Artifact) -> Container[str]:
    """The names in a folder's weights; of a folder without weights, every name."""
    if not artifact.has("model.safetensors") and not artifact.has("model.safetensors.index.json"):
        return _Everything()
    names: set[str] = set()
    for path in artifact.weight_files():
        try:
            with safe_open(path, framework="numpy") as file:
                names |= {modern_name(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise unreadable(path, error) from error
    return names


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


def unreadable(path: object, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{path} cannot be read: it is truncated or no safetensors file ({error}); fetch or write it again"
    )


def modern_name(name: str) -> str:
    """Old checkpoints, bert-base-uncased on the Hub among them, call a norm's tensors gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def as_stored(names: Names, family: Family, stored: Container[str]) -> Names:
    """A name map in the names that a file really has."""
    return {ours: tuple(_stored_name(name, family, stored) for name in theirs) for ours, theirs in names.items()}


def _stored_name(name: str, family: Family, stored: Container[str]) -> str:
    """The name a file has for a tensor: with or without the family's prefix, or that of a tied twin."""
    bare = name.removeprefix(family.prefix)
    twins = [twin for twin, original in family.tied.items() if original in (name, family.prefix + bare)]
    return next((each for each in (name, bare, family.prefix + bare, *twins) if each in stored), name)


def _find_family(values: Values) -> Family:
    name = values.get("model_type")
    if name is not None and not isinstance(name, str):
        raise misfit("model_type", name, f"a name such as {next(iter(FAMILIES))}")
    if name is None or name not in FAMILIES:
        raise Inexpressible(f"the architecture {name!r} is none of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _declared_heads(family: Family, values: Values) -> tuple[str, ...]:
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise misfit("architectures", names, "a list of class names")
    return next((family.classes[name] for name in names if name in family.classes), ())


def _read_heads(
    family: Family, values: Values, encoder: EncoderConfig, stored: Container[str]
) -> tuple[HeadConfig, ...]:
    """The declared heads, and pretraining heads that lie in the file undeclared (bert-base-uncased has one)."""
    declared = _declared_heads(family, values)
    heads = [family.read_head(kind, values, encoder) for kind in declared]
    known = {kind for kinds in family.classes.values() for kind in kinds}
    for kind in known.intersection(("masked_lm", "order")).difference(declared):
        head = family.read_head(kind, values, encoder)
        names = as_stored(family.head_names(head, encoder), family, stored)
        if not isinstance(stored, _Everything) and all(name in stored for parts in names.values() for name in parts):
            heads.append(head)
    return tuple(sorted(heads, key=lambda head: head.kind))


def _has_pooler(family: Family, values: Values, encoder: EncoderConfig, stored: Container[str]) -> bool:
    """A class that reads a pooler must have one; another has it when its tensors are there."""
    declared = _declared_heads(family, values)
    if isinstance(stored, _Everything):
        return family.builds_pooler(declared)
    if any(kind not in family.poolerless for kind in declared):
        return True
    # Half of one counts, so that what is missing is named.
    parts = [theirs[0] for ours, theirs in family.encoder_names(encoder).items() if ours.startswith("pooler.")]
    return any(_stored_name(family.prefix + part, family, stored) in stored for part in parts)
