"""In which precision a run computes, unless told otherwise."""

from __future__ import annotations

import torch

from halfpint.config import Precision
from halfpint.doctor import processor_facts


def usual_precision(device: torch.device) -> Precision:
    """bf16 where the hardware computes in it: on a GPU, and on processors with instructions for it."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    flags = processor_facts().get("flags", "").split()
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"
