"""Imports go up the layout of DESIGN's list, never down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "halfpint"

# A module may import what stands on its own line or above it.
ORDER = [
    "config",
    "presets",
    "artifact",
    "model",
    "checkpoints",
    "data",
    "objectives",
    "engines",
    "measure",
    "doctor",
    "train",
    "compress",
    "search",
    "report",
    "serve",
]
EXEMPT = ["__init__", "cli"]

PARTS = sorted({path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")})


def imported_parts(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str]]:
    """Line and part of every import of Halfpint, those inside functions too; `package` resolves relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parent, *filter(None, [node.module])])
            # `from halfpint import presets` names the part in the list; from deeper it stands in the module.
            modules = [f"{module}.{alias.name}" for alias in node.names] if module == "halfpint" else [module]
        else:
            continue
        for module in modules:
            top, _, rest = module.partition(".")
            if top == "halfpint":
                part = rest.partition(".")[0]
                # What is no part is a public name, and those live in __init__.
                yield node.lineno, part if part in ORDER + EXEMPT else "__init__"


def downward_imports(part: str, source: str, package: list[str]) -> list[str]:
    allowed = ORDER[: ORDER.index(part) + 1]
    found = imported_parts(ast.parse(source), package)
    return [f"line {line}: {part} imports {other}" for line, other in found if other not in allowed]


@pytest.mark.parametrize("part", PARTS)
def test_every_module_has_its_place(part: str) -> None:
    assert part in ORDER + EXEMPT, (
        f"src/halfpint/{part} has no place in the layout: put it into the package it belongs to, "
        "or, if the layout should change, into ORDER of this test (and say so in the commit)"
    )


@pytest.mark.parametrize("part", [part for part in PARTS if part in ORDER])
def test_imports_go_up(part: str) -> None:
    files = sorted((SOURCE / part).rglob("*.py")) if (SOURCE / part).is_dir() else [SOURCE / f"{part}.py"]
    wrong = []
    for path in files:
        package = ["halfpint", *path.relative_to(SOURCE).parent.parts]
        wrong += [f"{path.relative_to(SOURCE)}, {it}" for it in downward_imports(part, path.read_text(), package)]
    assert not wrong, f"allowed are {', '.join(ORDER[: ORDER.index(part) + 1])}: {'; '.join(wrong)}"


@pytest.mark.parametrize(
    "source",
    [
        "from halfpint.engines.torch import run",
        "import halfpint.engines",
        "from halfpint import engines",
        "from ..engines import torch",
        "from .. import engines",
        "def later():\n    from halfpint.cli import main",
        "from halfpint import load_model",
        "import halfpint",
    ],
)
def test_a_downward_import_is_found(source: str) -> None:
    assert downward_imports("model", source, ["halfpint", "model"])


@pytest.mark.parametrize(
    "source",
    [
        "from halfpint.config import EncoderConfig",
        "from halfpint import config, presets",
        "from . import attention",
        "from .attention import attend",
        "import torch.nn.functional",
    ],
)
def test_an_upward_import_is_none(source: str) -> None:
    assert not downward_imports("model", source, ["halfpint", "model"])
