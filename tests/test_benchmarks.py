"""Every benchmark runs to its end, at a size that takes seconds, and saves nothing unasked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_benchmark(name: str, *options: str) -> str:
    saved = {path: path.read_bytes() for path in (ROOT / "results").glob("*.json")}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in (ROOT / "results").glob("*.json")} == saved
    return done.stdout


def test_encoder_cpu() -> None:
    options = ("--models", "bert-tiny", "--precisions", "fp32", "--texts", "4", "--rounds", "1")
    out = run_benchmark("encoder_cpu", *options)
    for case in ("random order", "peer sorted", "one text"):
        assert f"bert-tiny fp32, {case}" in out


@pytest.mark.slow  # compiling for a CPU takes its time
def test_encoder_gpu_on_a_cpu() -> None:
    options = ("--models", "bert-tiny", "--device", "cpu", "--batch", "8", "--groups", "2", "--rounds", "1")
    out = run_benchmark("encoder_gpu", *options)
    assert "bert-tiny bf16, batch 8, peer in autocast" in out
    difference = next(line for line in out.splitlines() if "difference of states" in line)
    assert float(difference.split(": ")[1].split()[0]) < 0.05


def test_linear_cpu() -> None:
    out = run_benchmark("linear_cpu", "--rounds", "1")
    assert out.count("packed") == out.count("plain") == 8


def test_family() -> None:
    out = run_benchmark("family", "--models", "bert-tiny")
    assert "stored parameters" in out
    assert "time to measure them all" in out


def test_finetune_cpu() -> None:
    options = ("--models", "bert-tiny", "--precisions", "fp32", "--texts", "64", "--rounds", "1", "--seconds", "0.1")
    assert "batch 32, fp32: " in run_benchmark("finetune_cpu", *options)


def test_finetune_gpu_on_a_cpu() -> None:
    options = ("--models", "bert-tiny", "--device", "cpu", "--batches", "16", "--texts", "64", "--rounds", "1")
    assert "bert-tiny, batch 16" in run_benchmark("finetune_gpu", *options, "--seconds", "0.1")


def test_the_loader_on_a_cpu() -> None:
    options = ("--part", "loader", "--device", "cpu", "--model", "bert-tiny", "--batches", "16", "--texts", "64")
    assert "bert-tiny, batch 16, an epoch of 64 rows" in run_benchmark("data", *options, "--rounds", "1")


def test_tokenizing(reference_data: Path) -> None:
    assert "AG News, 128 tokens" in run_benchmark("data", "--tasks", "AG News", "--rounds", "1")


def test_corpus(reference_data: Path) -> None:
    assert "books: " in run_benchmark("corpus", "--megabytes", "0.5", "--rounds", "1")
