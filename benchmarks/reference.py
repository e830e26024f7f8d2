"""Where the reference data lies: one place for tests and benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def reference_data() -> Path:
    """The folder that HALFPINT_DATA names, or `../shared/data` beside the repository; it need not exist."""
    return Path(os.environ.get("HALFPINT_DATA", ROOT.parent / "shared" / "data"))
