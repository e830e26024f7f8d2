"""Where a run computes, and in which precision, unless told otherwise."""

from __future__ import annotations

import torch

from halfpint.config import Precision
from halfpint.doctor import processor_facts
from halfpint.train.settings import SettingsError


def find_device(name: str | None = None) -> torch.device:
    """The one asked for, or the accelerator where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"device is {name!r}; give cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device is {name!r}; give cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            f"device is {name!r}, and torch finds no CUDA device here; give cpu, or see: halfpint doctor"
        )
    return device


def usual_precision(device: torch.device) -> Precision:
    """bf16 where the hardware computes in it: on a GPU, and on processors with instructions for it."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    flags = processor_facts().get("flags", "").split()
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"
