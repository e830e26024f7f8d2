"""Data sets of the Hub, as `datasets` loads them, with the names of labels in place of their numbers.

The Hub is asked once before anything is loaded: where it cannot be reached, `datasets` is told so, looks at once into
its cache, and does not try again and again for half a minute.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa

from halfpint.data.delimited import DataError, reason


def read_hub(name: str) -> dict[str, pa.Table]:
    """The splits of `repository` or `repository:config`, by the names that they have there; none without rows."""
    datasets = _require_datasets(name)
    repository, _, config = name.partition(":")
    reachable = _is_reachable(repository)
    try:
        with _offline(datasets, not reachable):
            found = datasets.load_dataset(repository, config or None)
    # RuntimeError is for data sets that are scripts.
    except (_http_error(), datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        why = f"cannot be had from the Hub ({reason(error)})" if reachable else "the Hub cannot be reached"
        raise DataError(f"{name} is no file or folder here, and {why}; check the name, or give a file") from error
    splits = {str(split): with_label_names(part) for split, part in found.items() if len(part)}
    if not splits:
        raise DataError(f"{name} has no rows on the Hub; check the name")
    return splits


def stream_hub(name: str) -> Iterator[dict[str, Any]]:
    """The rows of the train split of `repository` or `repository:config`; nothing is stored but what is being read."""
    datasets = _require_datasets(name)
    repository, _, config = name.partition(":")
    if not _is_reachable(repository):
        raise DataError(
            f"{name} is no file or folder here, and the Hub cannot be reached; check the name, or give a file"
        )
    try:
        yield from datasets.load_dataset(repository, config or None, split="train", streaming=True)
    except (_http_error(), datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} cannot be had from the Hub ({reason(error)}); check the name, or give a file"
        ) from error


def _require_datasets(name: str) -> Any:
    try:
        return importlib.import_module("datasets")  # has no types
    except ImportError as error:
        raise DataError(
            f"there is no file or folder {name} here, and to look on the Hub needs the datasets package; "
            "check the path, or install it with: pip install 'halfpint[train]'"
        ) from error


def _http_error() -> type[Exception]:
    """What the Hub's HTTP library raises; that is not the same library in every version, but always this base."""
    from huggingface_hub.errors import HfHubHTTPError

    return cast(type[Exception], HfHubHTTPError.__bases__[0])


def _is_reachable(repository: str) -> bool:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().dataset_info(repository, timeout=10)
    except (HfHubHTTPError, HFValidationError):  # an answer, if not the one that was hoped for
        return True
    except (_http_error(), OSError):
        return False
    return True


@contextmanager
def _offline(datasets: Any, offline: bool) -> Iterator[None]:
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def with_label_names(part: Any) -> pa.Table:
    """A split of `datasets`, with the names of its labels, or lists of labels; null where the number is -1."""
    table = part.with_format("arrow")[:]
    for index, name in enumerate(table.column_names):
        feature = part.features.get(name)
        listed = getattr(feature, "feature", None)
        labels = getattr(feature, "names", None) or getattr(listed, "names", None)
        if labels:
            named = [_named(value, labels) for value in table.column(index).to_pylist()]
            kind = pa.list_(pa.string()) if listed is not None else pa.string()
            table = table.set_column(index, name, pa.array(named, kind))
    return table


def _named(value: Any, labels: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(each, labels) for each in value]
    return None if value is None or value < 0 else str(labels[value])
