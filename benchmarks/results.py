"""How a benchmark writes what it measured: `results/NAME.json`, one contract for all of them.

    {"command", "commit", "date", "hardware", "rows": [{"case", "metric", "unit", "ours", "peer", "ratio", "spread"}]}

`peer` and `ratio` are null where there is no peer; a ratio above 1 always means better. `spread` is the lowest and
the highest over the rounds: of the ratio, or of `ours` where there is no peer; null for what was measured once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.reference import ROOT
from halfpint.doctor import describe_hardware

RESULTS = ROOT / "results"


@dataclass(frozen=True)
class Row:
    """One figure, and the peer's where there is one."""

    case: str
    metric: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None


def measured(case: str, metric: str, unit: str, ours: Sequence[float]) -> Row:
    """The median of several rounds without a peer."""
    return Row(case, metric, unit, statistics.median(ours), spread=(min(ours), max(ours)))


def compared(
    case: str, metric: str, unit: str, ours: Sequence[float], peer: Sequence[float], *, higher_is_better: bool
) -> Row:
    """Interleaved rounds of both sides: medians of each, and the median of the rounds' ratios."""
    pairs = list(zip(ours, peer, strict=True))
    ratios = [mine / theirs if higher_is_better else theirs / mine for mine, theirs in pairs]
    return Row(
        case,
        metric,
        unit,
        ours=statistics.median(ours),
        peer=statistics.median(peer),
        ratio=statistics.median(ratios),
        spread=(min(ratios), max(ratios)),
    )


def write_results(name: str, command: str, rows: Sequence[Row], folder: Path = RESULTS) -> Path:
    """Write `NAME.json`. `command` is what makes it again, from the root of the repository."""
    path = folder / f"{name}.json"
    content = {
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": describe_hardware(),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The commit that was measured, marked where files other than results differ from it."""
    found = _git("rev-parse", "--short", "HEAD")
    if found is None:
        return "unknown"
    return f"{found}-dirty" if _git("status", "--porcelain", "--", ".", ":!results") else found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
