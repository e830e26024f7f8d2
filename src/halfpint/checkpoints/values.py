"""The fields of a foreign config.json, each checked as it is read, under the name that it has there.

Whoever reads a folder says before these messages which file they are about.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from halfpint.config import ConfigError

Values = Mapping[str, Any]

POSITIONS = "position_embedding_type"


def misfit(name: str, value: object, expected: str) -> ConfigError:
    """The error of a field whose value cannot be."""
    return ConfigError(f"{name} is {reprlib.repr(value)}; expected {expected}")


def read_count(values: Values, name: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number; without a default it must be there."""
    if default is None and name not in values:
        raise ConfigError(f"no {name!r}; a {values.get('model_type')} config needs it")
    value = values.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise misfit(name, value, f"a whole number, {least} or more")
    return value


def read_share(values: Values, name: str, default: float) -> float:
    """A dropout."""
    value = values.get(name, default)
    if not _is_number(value) or not 0 <= value < 1:
        raise misfit(name, value, "a number in [0, 1)")
    return float(value)


def read_optional_share(values: Values, name: str, default: float) -> float:
    """A dropout that is another one where it is null."""
    return default if values.get(name) is None else read_share(values, name, default)


def read_positive(values: Values, name: str, default: float) -> float:
    value = values.get(name, default)
    if not _is_number(value) or not value > 0:
        raise misfit(name, value, "a positive number")
    return float(value)


def read_switch(values: Values, name: str, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise misfit(name, value, "true or false")
    return value


def read_text(values: Values, name: str, default: str) -> str:
    value = values.get(name, default)
    if not isinstance(value, str):
        raise misfit(name, value, "a name")
    return value


def read_pad_id(values: Values, default: int) -> int:
    """A word of the vocabulary, or null for the default."""
    value = default if values.get("pad_token_id") is None else read_count(values, "pad_token_id", least=0)
    size = read_count(values, "vocab_size")
    if value >= size:
        raise misfit("pad_token_id", value, f"less than vocab_size, {size}")
    return value


def require_divisible(values: Values, width: str, heads: str) -> None:
    """Attention heads fill the width, in every published family."""
    size, count = read_count(values, width), read_count(values, heads)
    if size % count:
        raise ConfigError(f"{width} is {size} and {heads} is {count}; the width must divide into the heads")


def require_absolute_positions(values: Values) -> None:
    """Relative positions are gone from `transformers` too: version 5 runs such weights, wrongly, as absolute."""
    kind = values.get(POSITIONS, "absolute")
    if kind != "absolute":
        raise ConfigError(
            f"{POSITIONS} is {kind!r}, which neither Halfpint nor transformers 5 computes; "
            "take weights with absolute positions"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
