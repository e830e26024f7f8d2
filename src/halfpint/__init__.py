"""Full-strength text encoders, half-pint size.

The public names. They are imported when first used, so that `import halfpint` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from halfpint.engines.requirements import require_torch

if TYPE_CHECKING:
    from halfpint.config import EncoderConfig, ModelConfig, Sharing
    from halfpint.engines.model import Model, load
    from halfpint.measure.profile import Profile, profile
    from halfpint.presets import PRESETS, preset

_HOMES = {
    "EncoderConfig": "halfpint.config",
    "Model": "halfpint.engines.model",
    "ModelConfig": "halfpint.config",
    "PRESETS": "halfpint.presets",
    "Profile": "halfpint.measure.profile",
    "Sharing": "halfpint.config",
    "load": "halfpint.engines.model",
    "preset": "halfpint.presets",
    "profile": "halfpint.measure.profile",
}

_NEED_TORCH = ("halfpint.engines.model",)

__all__ = [
    "PRESETS",
    "EncoderConfig",
    "Model",
    "ModelConfig",
    "Profile",
    "Sharing",
    "load",
    "preset",
    "profile",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"halfpint has no {name!r}; it has {', '.join(__all__)}")
    if _HOMES[name] in _NEED_TORCH:
        require_torch(f"halfpint.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
