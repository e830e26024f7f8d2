"""What the README and the docs show is run: their commands, their Python, their links and their tables.

The blocks of a page run in order, in an empty folder, and share their names:
- `console`: lines that begin with `$ halfpint` are run and must succeed;
- `python`: executed; `pycon`: executed, and what it prints must be what the page says.
"""

from __future__ import annotations

import dataclasses
import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from halfpint.cli import app
from halfpint.config import EncoderConfig
from halfpint.measure.counts import count
from halfpint.presets import PRESETS
from halfpint.train.settings import Settings

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("console", "python", "pycon")

NOT_RUN = ("git", "make", "pip", "python")
"""Programs that a page may show without their being run here."""

REAL_WEIGHTS = "sentence-transformers/all-MiniLM-L6-v2"
"""The one Hub name that pages may load: a folder of that name is laid out for them."""


def blocks(page: Path) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(kind, text) for kind, text in found if kind in RUN]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_commands(text: str) -> None:
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        program, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
        if program in NOT_RUN:
            continue
        assert program == "halfpint", f"the docs show a command that no test runs: {line}"
        command = [str(Path(sys.executable).with_name("halfpint")), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def run_session(text: str, names: dict[str, Any], page: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    assert not report, "".join(report)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    if any(REAL_WEIGHTS in text for _, text in blocks(page)):
        data: Path = request.getfixturevalue("reference_data")
        shutil.copytree(data / "models" / Path(REAL_WEIGHTS).name, tmp_path / REAL_WEIGHTS)
    names: dict[str, Any] = {}
    for kind, text in blocks(page):
        if kind == "console":
            run_commands(text)
        elif kind == "pycon":
            run_session(text, names, page.name)
        else:
            exec(compile(text, str(page), "exec"), names)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    broken = [target for target in local if not (page.parent / target).exists()]
    assert not broken, f"broken links: {', '.join(broken)}"


def table(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables whose first cell is code, by that code."""
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {first: [cell.strip() for cell in rest.split("|")] for first, rest in rows}


def test_every_preset_is_listed_with_its_counts() -> None:
    listed = {row: (cells[0], *cells[-2:]) for row, cells in table("reference/presets.md").items()}
    counts = {row: count(it.config) for row, it in PRESETS.items()}
    assert listed == {
        row: (f"`{PRESETS[row].hub}`", f"{it.stored_parameters:,}", f"{it.effective_parameters:,}")
        for row, it in counts.items()
    }


def test_every_field_of_the_config_is_explained() -> None:
    assert list(table("reference/config.md")) == [field.name for field in dataclasses.fields(EncoderConfig)]


def test_every_setting_of_a_run_is_explained() -> None:
    assert list(table("reference/settings.md")) == [field.name for field in dataclasses.fields(Settings)]


def test_every_command_is_listed() -> None:
    listed = re.findall(
        r"^\| `halfpint (\w+)", (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(listed) == set(typer.main.get_command(app).commands)
