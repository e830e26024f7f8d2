"""Where a model computes, unless told otherwise."""

from __future__ import annotations

from os import PathLike

import torch

from halfpint.config import Precision
from halfpint.engines.model import Model, load


class DeviceError(ValueError):
    """A device that is not here."""


def find_device(name: str | None = None) -> torch.device:
    """The one asked for, or the accelerator where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device is {name!r}; give cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device is {name!r}; give cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device is {name!r}, and torch finds no CUDA device here; give cpu, or see: halfpint doctor")
    return device


def answer_precision(device: torch.device) -> Precision:
    """In which answers are given, unless told otherwise, and so judged: bf16 on a GPU, fp32 on a CPU."""
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def ready(model: Model | str | PathLike[str], device: str | None = None, precision: Precision | None = None) -> Model:
    """A model to be asked. One that is given by its name is loaded, and laid out for the device it goes to.

    A GPU computes in bf16 unless told otherwise. A CPU computes in fp32, so that answers are the same wherever it is.
    """
    if isinstance(model, Model):
        if device is not None or precision is not None:
            raise DeviceError("device and precision are for a model given by its name; a loaded one has its own (to)")
        return model
    place = find_device(device)
    chosen = precision or answer_precision(place)
    if chosen not in DTYPES:
        raise DeviceError(f"precision is {chosen!r}; it is one of {', '.join(DTYPES)}")
    loaded = load(str(model)).to(place, DTYPES[chosen])
    return loaded.pack() if place.type == "cpu" else loaded


DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
