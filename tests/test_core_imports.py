"""What imports where only some packages are installed.

Each check runs in a process whose import system cannot find the packages that are taken to be missing, just as if
they were not installed.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

SOURCE = Path(__file__).parent.parent / "src" / "halfpint"

# Promised to work after a plain `pip install halfpint`.
CORE_ONLY = [
    "halfpint",
    "halfpint.artifact",
    "halfpint.cli",
    "halfpint.config",
    "halfpint.doctor",
    "halfpint.measure.counts",
    "halfpint.measure.profile",
    "halfpint.presets",
]
# Training must run without these, and no other extra may be needed to import anything.
NEVER_AT_IMPORT = {
    "altair", "datasets", "fastapi", "nncf", "openvino", "optuna", "playwright", "pynvml", "ray", "seqeval",
    "starlette", "uvicorn", "vl_convert", "zeus",
}  # fmt: skip

HIDE = """
import importlib, sys

missing = set(sys.argv[1].split(","))

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
IMPORT_WITHOUT = (
    HIDE
    + """
for module in sys.argv[2:]:
    importlib.import_module(module)
"""
)
COMMAND_WITHOUT = (
    HIDE
    + """
from halfpint.cli import main

sys.argv[:2] = ["halfpint"]
main()
"""
)
LOAD_WITHOUT = (
    HIDE
    + """
import halfpint as hp

try:
    hp.load(sys.argv[2])
except ValueError as error:
    print(error)
"""
)


def import_without(missing: set[str], modules: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_WITHOUT, ",".join(sorted(missing)), *modules]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def core_distributions() -> set[str]:
    """Halfpint, what it depends on without extras, what those depend on, and so on."""
    found: set[str] = set()
    waiting = ["halfpint"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        requirements = map(Requirement, importlib.metadata.requires(name) or [])
        waiting += [it.name for it in requirements if it.marker is None or it.marker.evaluate({"extra": ""})]
    return found


def beyond_core() -> set[str]:
    """Top-level names that only packages outside the core bring."""
    core = core_distributions()
    owners = importlib.metadata.packages_distributions()
    return {
        name
        for name, distributions in owners.items()
        if not any(re.sub(r"[-_.]+", "-", distribution).lower() in core for distribution in distributions)
    }


def all_modules() -> list[str]:
    files = (path.relative_to(SOURCE.parent).with_suffix("") for path in sorted(SOURCE.rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in files]


@pytest.mark.parametrize("module", CORE_ONLY)
def test_core_modules_need_core_dependencies_only(module: str) -> None:
    missing = beyond_core()
    assert {"torch", "transformers", "scipy"} <= missing
    done = import_without(missing, [module])
    assert done.returncode == 0, done.stderr


def test_every_module_imports_without_optional_packages() -> None:
    done = import_without(NEVER_AT_IMPORT, all_modules())
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_missing() -> None:
    done = import_without({"torch"}, ["torch"])
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


REMEDY = "needs torch, which is not installed; install it with: pip install 'halfpint[train]'\n"


def run_without_torch(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, "torch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xlnet")
    (folder / "config.json").write_text('{"model_type": "xlnet"}')
    return folder


def test_without_torch_counting_works() -> None:
    done = run_without_torch(COMMAND_WITHOUT, "profile", "bert-tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert "4,385,920" in done.stdout


def test_without_torch_measuring_names_the_install_command() -> None:
    done = run_without_torch(COMMAND_WITHOUT, "profile", "bert-tiny", "--measure")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"halfpint: measuring {REMEDY}")


def test_without_torch_a_foreign_architecture_names_the_install_command(xlnet: Path) -> None:
    done = run_without_torch(COMMAND_WITHOUT, "profile", xlnet)
    words = f"halfpint: counting an architecture outside the family {REMEDY}"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


def test_without_torch_loading_names_the_install_command(xlnet: Path) -> None:
    done = run_without_torch(LOAD_WITHOUT, xlnet)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"halfpint.load {REMEDY}", "")
