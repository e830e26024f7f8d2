"""Where the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifact.samples import write_sample


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model"


@pytest.fixture
def old(out: Path) -> Path:
    return write_sample(out, "old").folder
