"""A folder of weights to a network: Halfpint's own and every family's, single files and shards.

Nothing is guessed: a tensor that is missing, of another shape, or of no floats is named, with what was expected.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from halfpint.artifact import Artifact, ArtifactError
from halfpint.checkpoints.describe import UNTIED, as_stored, describe, modern_name, unreadable
from halfpint.checkpoints.families import TRANSPOSED, Family, Inexpressible, Names
from halfpint.config import ModelConfig
from halfpint.model.network import Network

BUFFERS = ("position_ids", "token_type_ids")
"""Ends of names that older checkpoints store though nothing was learnt in them."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""Numbers that are weights as they are, by the name that safetensors gives them. Others mean something by a scale that
lies elsewhere."""

Shape = tuple[int, ...]


class Tensors:
    """The tensors of one or several safetensors files, read when asked for, by their present-day names."""

    def __init__(self, files: dict[str, tuple[Any, Path]]) -> None:
        self._files = {modern_name(name): (*file, name) for name, file in files.items()}
        self.unread = {name for name in self._files if not name.endswith(BUFFERS)}

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def shape(self, name: str) -> Shape:
        file, _, stored = self._files[name]
        return tuple(file.get_slice(stored).get_shape())

    def require_floats(self, name: str) -> None:
        """A quantized tensor read as weights would answer, and mean nothing."""
        file, path, stored = self._files[name]
        kind = file.get_slice(stored).get_dtype()
        if kind not in FLOATS:
            raise ArtifactError(
                f"{path}: tensor {name} is of {kind}, expected one of {', '.join(FLOATS)}; "
                "give the folder of the model before it was quantized or cast"
            )

    def read(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self.peek(name)

    def peek(self, name: str) -> Tensor:
        """A tensor for a look, which does not count as read."""
        file, _, stored = self._files[name]
        tensor: Tensor = file.get_tensor(stored)
        return tensor


@contextmanager
def open_tensors(files: list[Path]) -> Iterator[Tensors]:
    with ExitStack() as stack:
        found: dict[str, tuple[Any, Path]] = {}
        for path in files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise unreadable(path, error) from error
            found |= dict.fromkeys(file.keys(), (file, path))
        yield Tensors(found)


def read_network(artifact: Artifact, *, dtype: torch.dtype = torch.float32) -> Network:
    """The network of a folder, with every head whose weights are in it."""
    with open_tensors(artifact.weight_files()) as tensors:
        description = describe(artifact, tensors)
        family = description.family
        with torch.device("meta"):
            network = Network(description.config)
        expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        if family is None:
            names: Names = {name: (name,) for name in expected}
        else:
            names = as_stored(family.names(description.config), family, tensors)
            _check_twins(family, description.config, tensors)
        state = read_state(names, expected, tensors, artifact.folder, dtype)
        unread = tensors.unread
    network.load_state_dict(state, assign=True)
    warn_of_unread(artifact.folder, unread)
    return network.eval()


def read_state(
    names: Names, expected: dict[str, Shape], tensors: Tensors, folder: Path, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Every tensor that is expected, by our names; one that is missing or has another shape is named."""
    _require_all(names, expected, tensors, folder)
    return {name: _assemble(name, names[name], shape, tensors, folder).to(dtype) for name, shape in expected.items()}


def warn_of_unread(folder: Path, names: Iterable[str], why: str = "") -> None:
    """Tensors that lie in a folder and are no part of the model are told, never dropped in silence."""
    unread = sorted(names)
    if unread:
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        warnings.warn(f"{folder}: no use for {', '.join(unread[:3])}{more}{why}", stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """How far above the function that warns the first line outside this package lies."""
    # From Python 3.12 on, warnings.warn(skip_file_prefixes=…) does this.
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    return level


def _check_twins(family: Family, config: ModelConfig, tensors: Tensors) -> None:
    """Tensors that repeat another are done with. A decoder of other values is untied, whatever config.json says."""
    for twin, original in family.tied.items():
        original = as_stored({"": (original,)}, family, tensors)[""][0]
        if twin not in tensors or original not in tensors or twin == original:
            continue
        if torch.equal(tensors.peek(twin).float(), tensors.peek(original).float()):
            tensors.unread.discard(twin)
        elif config.head("masked_lm"):
            raise Inexpressible(f"{UNTIED}: {twin} and {original} differ")


def _require_all(names: Names, expected: dict[str, Shape], tensors: Tensors, folder: Path) -> None:
    assert set(names) == set(expected), set(names) ^ set(expected)
    missing = [(theirs, ours) for ours, parts in names.items() for theirs in parts if theirs not in tensors]
    if missing:
        theirs, ours = missing[0]
        more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        wanted = _stored_shape(ours, names[ours], expected[ours])
        raise ArtifactError(f"{folder} has no tensor {theirs} (expected: {wanted}){more}; the weights are incomplete")


def _stored_shape(ours: str, theirs: tuple[str, ...], shape: Shape) -> Shape:
    """The shape each of their tensors must have to make up one of ours."""
    if _is_transposed(ours, theirs):
        return tuple(reversed(shape))
    return (shape[0] // len(theirs), *shape[1:])


def _is_transposed(ours: str, theirs: tuple[str, ...]) -> bool:
    return ours in TRANSPOSED and theirs != (ours,)


def _assemble(ours: str, theirs: tuple[str, ...], shape: Shape, tensors: Tensors, folder: Path) -> Tensor:
    wanted = _stored_shape(ours, theirs, shape)
    for name in theirs:
        if tensors.shape(name) != wanted:
            raise ArtifactError(
                f"{folder}: tensor {name} has shape {tensors.shape(name)}, expected {wanted}; "
                "config.json and the weights do not belong together"
            )
        tensors.require_floats(name)
    parts = [tensors.read(name) for name in theirs]
    if _is_transposed(ours, theirs):
        return parts[0].t().contiguous()
    return parts[0] if len(parts) == 1 else torch.cat(parts)
