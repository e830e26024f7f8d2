"""Make `results/README.md` from `results/*.json`: `make results`, or `python -m benchmarks.tables`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS

_INTRODUCTION = """\
# Results

Made by `make results` from the JSON files beside it; do not edit it by hand. Each section names the command that
makes its figures again. A ratio above 1 means that Halfpint is better than the peer, measured in the same run;
the spread is the lowest and the highest over the rounds, of the ratio, or of our figure where there is no peer.
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page."""
    sections = [_section(path) for path in sorted(folder.glob("*.json"))]
    return "\n".join([_INTRODUCTION, *(sections or ["Nothing has been measured yet.\n"])])


def _section(path: Path) -> str:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"## {path.stem}",
        "",
        f"`{result['command']}`, commit {result['commit']}, {result['date']}  ",
        f"on {result['hardware']}",
        "",
        "| case | metric | unit | ours | peer | ratio | spread |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        spread = "" if row["spread"] is None else " to ".join(_figure(bound) for bound in row["spread"])
        figures = [_figure(row[name]) for name in ("ours", "peer", "ratio")]
        cells = [row["case"], row["metric"], row["unit"], *figures, spread]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _figure(value: float | None) -> str:
    """Counts in full, measures to three significant digits or the unit; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:#.3g}"


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(), encoding="utf-8")
