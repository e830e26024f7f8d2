"""Encoded data on disk: made once for the same texts, tokenizer and lengths, whoever asks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from halfpint.data.encoded import Encoded

VERSION = 1
"""One more whenever the same texts are encoded differently."""


def cache_folder() -> Path:
    """Where Halfpint keeps what it can make again: HALFPINT_CACHE, or the user's own cache folder."""
    if own := os.environ.get("HALFPINT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfpint"


def fingerprint(table: pa.Table, *facts: Any) -> str:
    """A hash of a table's content, however it lies in memory, and of what else decides the encoding."""
    digest = hashlib.blake2b(json.dumps([VERSION, table.num_rows, *facts]).encode(), digest_size=16)
    for name in table.column_names:
        digest.update(json.dumps([name, str(table.schema.field(name).type)]).encode())
        for chunk in table[name].chunks:
            for value in chunk.to_pylist():
                # Kinds and lengths go in, too, so that null is not "null", and no two rows can trade characters.
                is_text = isinstance(value, str)
                raw = (value if is_text else json.dumps(value, default=str)).encode("utf-8", "surrogatepass")
                digest.update(len(raw).to_bytes(8, "little") + bytes([is_text]))
                digest.update(raw)
    return digest.hexdigest()


def cached(key: str, make: Callable[[], Encoded], folder: Path | None = None) -> Encoded:
    """What was made under this key before, or now. A full or read-only disk costs the cache, not the run."""
    root = (folder or cache_folder()) / "encoded"
    place = root / key
    if os.path.lexists(place):
        with suppress(Exception):  # whatever is wrong with an entry, it is made again
            return Encoded.read(place)
        shutil.rmtree(place, ignore_errors=True)
    encoded = make()
    with suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=root))
        try:
            encoded.write(staging)
            # Where another process was quicker, its folder stands and holds the same.
            staging.rename(place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return encoded
