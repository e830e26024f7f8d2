"""The README's map lists every file of the package, once, with one line of what it is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "halfpint"


def read_map(text: str) -> dict[str, str]:
    """Path inside src/halfpint → its line, from the tree under the heading `The map`."""
    section = text.split("\n## The map\n", 1)[1]
    tree = re.search(r"^```text\nsrc/halfpint/\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert tree, "no tree of src/halfpint/ under the heading `The map`"
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in tree[1].splitlines():
        entry = re.fullmatch(r"((?:  )+)(\S+)(?: +(\S.*))?", line)
        assert entry, f"not a line of the map: {line!r}"
        depth, name, description = len(entry[1]) // 2, entry[2], entry[3] or ""
        folders = folders[: depth - 1]
        if name.endswith("/"):
            folders.append(name)
            continue
        path = "".join(folders) + name
        assert path not in found, f"{path} is in the map twice"
        found[path] = description
    return found


def listed_files() -> set[str]:
    """Every module; of the packages' own files only that of the public API says more than its folder."""
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    return {name for name in files if not name.endswith("/__init__.py")}


def test_the_map_is_the_package() -> None:
    found = read_map((ROOT / "README.md").read_text(encoding="utf-8"))
    missing, gone = sorted(listed_files() - set(found)), sorted(set(found) - listed_files())
    assert not missing, f"add to the README's map: {', '.join(missing)}"
    assert not gone, f"in the README's map, but not in src/halfpint: {', '.join(gone)}"
    silent = sorted(name for name, description in found.items() if not description)
    assert not silent, f"say in the README's map what these are: {', '.join(silent)}"


def test_the_reader_of_maps_knows_folders() -> None:
    text = "\n## The map\n```text\nsrc/halfpint/\n  a.py  A\n  b/    B\n    c.py  C\n  d.py\n```\n"
    assert read_map(text) == {"a.py": "A", "b/c.py": "C", "d.py": ""}
