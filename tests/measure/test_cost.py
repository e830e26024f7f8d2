"""Costs are measured in a process of its own, on the real artifact, and what goes wrong there is said here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from halfpint.checkpoints.random import write_random
from halfpint.config import ModelConfig
from halfpint.measure.cost import (
    LATENCY_RUNS,
    MAX_ROUNDS,
    MIXED,
    Cost,
    CostFailed,
    CostRequest,
    Spread,
    draw_lengths,
    measure_cost,
    part_of,
    prepare,
    throughput_of,
)
from halfpint.model.linear import Linear
from halfpint.presets import preset
from tests.artifact.processes import run

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT-tiny with 100 positions."""
    config = preset("bert-tiny").config.replace(num_positions=100)
    return write_random(ModelConfig(config), tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def cost(folder: Path) -> Cost:
    return measure_cost(CostRequest(str(folder), batch=4))


def test_a_cost_repeats_what_was_asked(cost: Cost) -> None:
    assert (cost.batch, cost.device, cost.precision) == (4, "cpu", "fp32")
    assert cost.length == 100  # as long as the model takes
    assert cost.threads >= 1


def test_spreads_are_ordered_and_positive(cost: Cost) -> None:
    for spread in (cost.load_ms, *cost.throughput.values()):
        assert 0 < spread.low <= spread.median <= spread.high


def test_throughput_is_of_short_middling_longest_and_mixed_texts(cost: Cost) -> None:
    assert list(cost.throughput) == ["16", "64", "100", MIXED]


def test_latency_is_ordered_and_has_no_p99_of_few_runs(cost: Cost) -> None:
    assert 0 < cost.latency_ms.p50 <= cost.latency_ms.p90
    assert cost.latency_ms.p99 is None
    assert 10 <= cost.latency_ms.runs <= LATENCY_RUNS


def test_memory_is_at_least_that_of_the_weights(cost: Cost, folder: Path) -> None:
    assert cost.memory_mb > (folder / "model.safetensors").stat().st_size / 2**20
    assert cost.process_mb > cost.memory_mb


def test_a_cost_is_plain_json(cost: Cost) -> None:
    assert json.loads(json.dumps(asdict(cost)))["latency_ms"]["p99"] is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_measured_on_a_cpu_is_packed(folder: Path, precision: str) -> None:
    model = prepare(CostRequest(str(folder), precision=precision))
    layers = [part for part in model.module.modules() if isinstance(part, Linear)]
    assert len(layers) > 4
    assert all(layer.packed is not None for layer in layers)
    assert {each.dtype for each in model.module.parameters()} == {DTYPES[precision]}


def clockwork(seconds: list[float]) -> tuple[Callable[[], None], Callable[[], float]]:
    """A run whose rounds take these times, and the clock that says so."""
    rounds, now = iter(seconds), [0.0]

    def run() -> None:
        now[0] += next(rounds)

    return run, lambda: now[0]


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ([5.0, 4.0], [5.0, 4.0]),  # two rounds at the least, and none is given away
        ([0.4, 5.0, 4.0], [5.0, 4.0]),
        ([0.4, 0.25, 0.25, 0.25, 0.5], [0.25, 0.25, 0.25, 0.5]),  # as many as fit the time
        ([0.2, *[0.01] * MAX_ROUNDS], [0.01] * MAX_ROUNDS),
    ],
)
def test_rounds_are_bounded_by_time_and_the_first_one_only_warms_up(seconds: list[float], kept: list[float]) -> None:
    run, clock = clockwork(seconds)
    expected = Spread.of([8 / each for each in kept])
    assert asdict(throughput_of(run, 8, clock)) == pytest.approx(asdict(expected))
    with pytest.raises(StopIteration):  # all rounds were run
        run()


@pytest.mark.parametrize(("seconds_a_token", "texts"), [(0.0, 32), (4e-4, 32), (9e-4, 16), (1.2e-3, 11), (1.0, 8)])
def test_of_slow_models_a_part_of_the_batch_is_timed(seconds_a_token: float, texts: int) -> None:
    assert part_of([128] * 32, seconds_a_token) == [128] * texts


@pytest.mark.parametrize("lengths", [[16] * 32, [128], [128] * 15, draw_lengths(32, 128)], ids=len)
def test_of_few_tokens_all_are_timed(lengths: list[int]) -> None:
    assert part_of(lengths, 1.0) == sorted(lengths)


def test_a_part_has_lengths_in_their_share() -> None:
    lengths = draw_lengths(128, 128)
    part = part_of(lengths, 1.0)
    assert len(part) < 32
    assert np.mean(part) == pytest.approx(np.mean(lengths), rel=0.05)


def test_thorough_in_bf16(folder: Path) -> None:
    cost = measure_cost(CostRequest(str(folder), batch=1, length=8, precision="bf16", thorough=True))
    assert cost.precision == "bf16"
    assert list(cost.throughput) == ["8", MIXED]
    assert cost.latency_ms.p50 <= cost.latency_ms.p90 <= cost.latency_ms.p99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be positive"),
        ({"length": -1}, "length is -1; it must be positive"),
        ({"device": "tpu"}, "device is 'tpu'; it is one of cpu, cuda"),
        ({"precision": "int3"}, "precision is 'int3'; it is one of fp32, bf16"),
    ],
)
def test_impossible_requests_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CostRequest("folder"), **changes)


def test_a_user_s_mistake_in_the_measuring_process_is_one_here(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^there is no folder {tmp_path}/gone; a model is"):
        measure_cost(CostRequest(str(tmp_path / "gone")))


# A second of processor time is not enough to import torch, load and measure.
KILLED = """
import resource, sys
from halfpint.measure.cost import CostFailed, CostRequest, measure_cost

resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
try:
    measure_cost(CostRequest(sys.argv[1], batch=512, thorough=True))
except CostFailed as error:
    print(error)
"""


def test_a_measuring_process_that_was_killed_is_told_by_its_signal(folder: Path) -> None:
    done = run(KILLED, folder)
    assert done.stdout.startswith(f"measuring {folder} failed: the process was ended by SIG"), done.stderr


def test_what_broke_is_the_last_line_of_the_measuring_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CostFailed, match=rf"measuring {folder} failed: RuntimeError: a broken installation"):
        measure_cost(CostRequest(str(folder)))


def test_a_spread_is_median_lowest_and_highest() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(median=3.0, low=1.0, high=10.0)


def test_drawn_lengths_are_the_same_every_time_and_as_texts_have_them() -> None:
    lengths = draw_lengths(10_000, 128)
    assert lengths == draw_lengths(10_000, 128)
    assert np.median(lengths) == pytest.approx(50, abs=1)
    assert min(lengths) >= 1
    assert max(lengths) == 128
    assert max(draw_lengths(100, 20)) == 20
