"""What all tests share: the reference data, hypothesis' profiles, threads and seeds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks import reference

# Draws are the same every time in continuous integration, so that a failure there is a failure here.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# Workers of pytest-xdist share the cores: one thread each. Read by torch when it is first imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Without a GPU, Triton's kernels run in its interpreter. Read by triton when it is first imported.
if not list(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of real data and weights; tests that need it are skipped where it is not."""
    folder = reference.reference_data()
    if not folder.is_dir():
        pytest.skip("no reference data: set HALFPINT_DATA to its folder")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is encoded in tests stays out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HALFPINT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    """Random weights of a test do not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
