"""`rerun`: a run again, from its `run.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from os import PathLike
from pathlib import Path

from halfpint.train.finetune import Finetuned, finetune
from halfpint.train.loop import Watcher
from halfpint.train.recipe import IN_MEMORY
from halfpint.train.run import HASHES, read_toml
from halfpint.train.settings import SettingsError

VERBS = {"finetune": finetune}


def rerun(
    settings: str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    watchers: Sequence[Watcher] = (),
) -> Finetuned:
    """Do again what a `run.toml` says; into `out`, or where it went the first time."""
    path = Path(settings)
    values = read_toml(path / "run.toml" if path.is_dir() else path)
    verb = values.pop("verb", None)
    if verb not in VERBS:
        raise SettingsError(f"{settings} is of the verb {verb!r}; expected one of {', '.join(VERBS)}")
    if values.get("data") == IN_MEMORY:
        raise SettingsError(f"{settings} is of data that a Python program held; only runs on files can be done again")
    first = values.pop("out", None)
    for name in ("start_hash", HASHES):
        values.pop(name, None)
    strange = sorted(set(values) - set(signature(VERBS[verb]).parameters))
    if strange:
        raise SettingsError(f"{settings} does not fit this version of Halfpint: there is no {strange[0]}; give flags")
    return VERBS[verb](out=out or first, overwrite=overwrite, watchers=watchers, **values)
