"""Full-strength text encoders, half-pint size.

The public names. They are imported when first used, so that `import halfpint` is quick and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from halfpint.engines.requirements import require_torch

if TYPE_CHECKING:
    from halfpint.config import EncoderConfig, ModelConfig, Sharing
    from halfpint.engines.files import Written, embed, predict
    from halfpint.engines.model import Model, load
    from halfpint.engines.search import Hit, Index, index_texts, search
    from halfpint.measure.profile import Profile, profile
    from halfpint.presets import PRESETS, preset
    from halfpint.train.evaluate import Evaluation, evaluate
    from halfpint.train.finetune import Finetuned, finetune
    from halfpint.train.rerun import rerun

_HOMES = {
    "EncoderConfig": "halfpint.config",
    "Evaluation": "halfpint.train.evaluate",
    "Finetuned": "halfpint.train.finetune",
    "Hit": "halfpint.engines.search",
    "Index": "halfpint.engines.search",
    "Model": "halfpint.engines.model",
    "ModelConfig": "halfpint.config",
    "PRESETS": "halfpint.presets",
    "Profile": "halfpint.measure.profile",
    "Sharing": "halfpint.config",
    "Written": "halfpint.engines.files",
    "embed": "halfpint.engines.files",
    "evaluate": "halfpint.train.evaluate",
    "finetune": "halfpint.train.finetune",
    "index_texts": "halfpint.engines.search",
    "load": "halfpint.engines.model",
    "predict": "halfpint.engines.files",
    "preset": "halfpint.presets",
    "profile": "halfpint.measure.profile",
    "rerun": "halfpint.train.rerun",
    "search": "halfpint.engines.search",
}

_NEED_TORCH = (
    "halfpint.engines.files",
    "halfpint.engines.model",
    "halfpint.engines.search",
    "halfpint.train.evaluate",
    "halfpint.train.finetune",
    "halfpint.train.rerun",
)

__all__ = [
    "PRESETS",
    "EncoderConfig",
    "Evaluation",
    "Finetuned",
    "Hit",
    "Index",
    "Model",
    "ModelConfig",
    "Profile",
    "Sharing",
    "Written",
    "embed",
    "evaluate",
    "finetune",
    "index_texts",
    "load",
    "predict",
    "preset",
    "profile",
    "rerun",
    "search",
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
