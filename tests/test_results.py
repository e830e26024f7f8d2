"""Committed figures keep their contract, and the page of tables is made from them."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

from benchmarks.results import RESULTS, Row, compared, measured, write_results
from benchmarks.tables import page


def check(path: Path) -> None:
    result = json.loads(path.read_text(encoding="utf-8"))
    assert list(result) == ["command", "commit", "date", "hardware", "rows"]
    assert all(isinstance(result[name], str) and result[name] for name in ("command", "commit", "date", "hardware"))
    date.fromisoformat(result["date"])
    assert result["rows"]
    for row in result["rows"]:
        assert list(row) == ["case", "metric", "unit", "ours", "peer", "ratio", "spread"]
        assert all(isinstance(row[name], str) for name in ("case", "metric", "unit"))
        assert isinstance(row["ours"], int | float)
        assert (row["peer"] is None) == (row["ratio"] is None)
        if row["spread"] is not None:
            low, high = row["spread"]
            assert low <= (row["ours"] if row["ratio"] is None else row["ratio"]) <= high


def test_committed_results_have_the_schema() -> None:
    for path in RESULTS.glob("*.json"):
        check(path)


def test_page_is_what_the_generator_makes() -> None:
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == page(), "run `make results`"


def test_written_results_keep_the_contract_and_stand_in_the_page(tmp_path: Path) -> None:
    rows = [
        compared("a", "throughput", "texts/s", [200, 220, 210], [100, 100, 120], higher_is_better=True),
        measured("b", "load time", "s", [0.5, 0.4]),
        Row("c", "size", "bytes", 1234567),
    ]
    path = write_results("name", "python -m benchmarks.name", rows, folder=tmp_path)
    check(path)
    text = page(tmp_path)
    assert "| a | throughput | texts/s | 210 | 100 | 2.00 | 1.75 to 2.20 |" in text
    assert "| b | load time | s | 0.450 |  |  | 0.400 to 0.500 |" in text
    assert "| c | size | bytes | 1,234,567 |  |  |  |" in text


def test_a_ratio_above_one_means_better() -> None:
    slower_peer = compared("a", "latency", "ms", [2.0], [3.0], higher_is_better=False)
    assert slower_peer.ratio == 1.5
