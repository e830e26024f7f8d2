"""What a fine-tuning run does, with every setting resolved: the content of its `run.toml`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from halfpint.config import EncoderConfig
from halfpint.data.task import Task
from halfpint.data.text_task import TextTask
from halfpint.train.prepare import DataOptions
from halfpint.train.settings import Settings, SettingsError

ClassWeights = Literal["none", "balanced"]

IN_MEMORY = "(in memory)"
"""Where data came from that no run.toml can name."""

FLAGS = ("epochs", "batch", "lr", "seed", "precision")
"""Settings that have a flag of their own; all others go by `set`."""

LEAST_ROWS = 30_000
MOST_EPOCHS = 10
FEWEST_EPOCHS = 3
SCRATCH_LR = 5e-4
LRS = ((1024, 2e-5), (768, 3e-5), (512, 5e-5), (0, 1e-4))
"""The usual rate from a width on: narrower encoders take larger steps."""


@dataclass(frozen=True)
class Recipe:
    """One run over its seeds."""

    data: str
    model: str
    settings: Settings
    """Its seed is the first one."""
    max_length: int
    device: str
    options: DataOptions = field(default_factory=DataOptions)
    seeds: int = 1
    from_scratch: bool = False
    encoder: Mapping[str, float] | None = None
    """Fields of the encoder's config that are set otherwise than its folder says."""
    class_weights: ClassWeights = "none"
    abstain: float | None = None
    """The precision that answers must reach on dev; rows of less confidence get none."""
    allow_weak: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise SettingsError(f"seeds is {self.seeds}; it must be at least 1")
        if self.class_weights not in get_args(ClassWeights):
            raise SettingsError(
                f"class_weights is {self.class_weights!r}; it is one of {', '.join(get_args(ClassWeights))}"
            )
        if self.abstain is not None and not 0 < self.abstain <= 1:
            raise SettingsError(f"abstain is {self.abstain}; it is a precision above 0 and at most 1")

    def require_fit(self, task: Task) -> None:
        """Refuse what this task cannot do, before anything takes time."""
        one_label = isinstance(task, TextTask) and task.problem == "single_label"
        for flag, asked in (("abstain", self.abstain is not None), ("class_weights", self.class_weights != "none")):
            if asked and not one_label:
                raise SettingsError(f"{flag} is for tasks of one label a row, and this is {task.form}; leave it out")

    def of_seed(self, index: int) -> Settings:
        return replace(self.settings, seed=self.settings.seed + index)

    def to_values(self) -> dict[str, Any]:
        """For run.toml, under the names of the flags."""
        settings = asdict(self.settings)
        return {
            "data": self.data,
            "model": self.model,
            **asdict(self.options),
            **{name: settings.pop(name) for name in FLAGS},
            "max_length": self.max_length,
            "device": self.device,
            "seeds": self.seeds,
            "from_scratch": self.from_scratch,
            "class_weights": self.class_weights,
            "abstain": self.abstain,
            "allow_weak": self.allow_weak,
            "set": {**settings, **(self.encoder or {})},
        }


def split_changes(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """What `--set` was given, as fields of the settings and fields of the encoder's config; values from their text."""
    of_settings = {each.name: each.type for each in fields(Settings) if each.name not in FLAGS}
    found: tuple[dict[str, Any], dict[str, float]] = ({}, {})
    for name, value in changes.items():
        if name in of_settings:
            found[0][name] = _read(name, value, str(of_settings[name]))
        elif name in ENCODER_FIELDS:
            found[1][name] = _read(name, value, "float")
        else:
            known = [*of_settings, *ENCODER_FIELDS]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            flag = f"; it has a flag: --{name}" if name in FLAGS else f"; known are {', '.join(known)}"
            raise SettingsError(f"there is no field {name!r} to set{hint}{flag}")
    return found


ENCODER_FIELDS = ("dropout", "attention_dropout")
"""What may differ from the folder that a model comes from without making it another model."""


def _read(name: str, value: Any, kind: str) -> Any:
    if kind not in ("int", "float") or isinstance(value, bool):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} is {value!r}; it must be a{'n' if kind == 'int' else ''} {kind}") from error


def usual_settings(num_rows: int, width: int, *, from_scratch: bool) -> dict[str, Any]:
    """Epochs and rate where none are given: small data is seen more often, narrow encoders take larger steps."""
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, -(-LEAST_ROWS // num_rows)))
    rate = SCRATCH_LR if from_scratch else next(rate for least, rate in LRS if width >= least)
    return {"epochs": epochs * (2 if from_scratch else 1), "batch": 32, "lr": rate}


def changed_encoder(config: EncoderConfig, changes: Mapping[str, float]) -> EncoderConfig:
    """The encoder as it trains: without attention dropout, which no fast attention has, unless it is asked for."""
    return config.replace(**{"attention_dropout": 0.0, **changes})
