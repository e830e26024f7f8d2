"""What a model costs on this machine: load time, memory, latency, throughput. Measured, never estimated.

Every model is measured in a process of its own (`measure_cost` starts it, `python -m halfpint.measure.cost`
is it), so that neither leaves anything behind for the next, and warmed up before the clock starts.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

MIXED = "mixed"
"""The set of lengths that texts have in life: log-normal around 50 tokens, no longer than asked."""

WARM_UP = 3
LOADS = 3
THROUGHPUT_ROUNDS = 3
LATENCY_RUNS = 40
THOROUGH_RUNS = 400
LATENCY_SECONDS = 4.0

DEVICES = ("cpu", "cuda")
PRECISIONS = ("fp32", "bf16")
BAD_INPUT = 65
"""Exit code of the measuring process after a user's mistake; the message is what it printed. Python has no such."""


@dataclass(frozen=True)
class Spread:
    """A measured figure: its median, and the lowest and highest of its rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(float(np.median(values)), float(min(values)), float(max(values)))


@dataclass(frozen=True)
class Latency:
    """Milliseconds for one text, by percentile; p99 only where enough texts were timed."""

    p50: float
    p90: float
    p99: float | None
    runs: int


@dataclass(frozen=True)
class Cost:
    """What one model costs here."""

    load_ms: Spread
    memory_mb: float
    """Resident memory that loading and running the model added to a process that had torch loaded."""
    process_mb: float
    """Resident memory of the whole process at its highest."""
    latency_ms: Latency
    throughput: dict[str, Spread]
    """Texts a second, by length in tokens and for `mixed` lengths."""
    batch: int
    length: int
    threads: int
    device: str
    precision: str


@dataclass(frozen=True)
class CostRequest:
    """What to measure."""

    folder: str
    batch: int = 32
    length: int = 128
    device: str = "cpu"
    precision: str = "fp32"
    thorough: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        for name, known in (("device", DEVICES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it is one of {', '.join(known)}")


class CostFailed(RuntimeError):
    """The measuring process died; its last words are the message."""


def measure_cost(request: CostRequest) -> Cost:
    """Measure a folder in a fresh process."""
    command = [sys.executable, "-m", "halfpint.measure.cost", json.dumps(asdict(request))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == BAD_INPUT:
        raise ValueError(done.stdout.strip())
    if done.returncode != 0:
        raise CostFailed(f"measuring {request.folder} failed: {_last_words(done)}")
    return _read_cost(json.loads(done.stdout.splitlines()[-1]))


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        killed = signal.Signals(-done.returncode).name
        return f"the process was ended by {killed}{', as it is when memory runs out' if killed == 'SIGKILL' else ''}"
    return next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")


def _read_cost(values: dict[str, Any]) -> Cost:
    return Cost(
        **{
            **values,
            "load_ms": Spread(**values["load_ms"]),
            "latency_ms": Latency(**values["latency_ms"]),
            "throughput": {name: Spread(**each) for name, each in values["throughput"].items()},
        }
    )


def draw_lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    """Lengths as texts have them, the same for every model."""
    drawn = np.random.default_rng(seed).lognormal(np.log(50), 0.4, count)
    return [int(each) for each in np.clip(drawn, 1, longest)]


def _measure_here(request: CostRequest) -> Cost:
    import torch

    from halfpint.engines.model import load

    if request.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', and torch finds no CUDA device here; give cpu, or see: halfpint doctor")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[request.precision]
    before = _resident_mb()
    load_ms = []
    model = None
    for _ in range(LOADS):
        del model
        gc.collect()
        start = time.perf_counter()
        model = load(Path(request.folder)).to(request.device, dtype)
        if request.device == "cpu":
            model.pack()
        load_ms.append(1e3 * (time.perf_counter() - start))
    assert model is not None
    length = min(request.length, model.max_length)
    vocabulary = model.limits.vocab_size

    def run(lengths: Sequence[int]) -> Callable[[], object]:
        rng = np.random.default_rng(len(lengths))
        ids = [rng.integers(0, vocabulary, each).tolist() for each in lengths]
        return lambda: model.encode(ids)

    latency = _latency(run([length]), THOROUGH_RUNS if request.thorough else LATENCY_RUNS)
    sets = {str(each): [each] * request.batch for each in _lengths(length)}
    sets[MIXED] = draw_lengths(request.batch, length)
    throughput = {name: _throughput(run(lengths), len(lengths)) for name, lengths in sets.items()}
    return Cost(
        load_ms=Spread.of(load_ms),
        memory_mb=_resident_mb() - before,
        process_mb=_peak_mb(),
        latency_ms=latency,
        throughput=throughput,
        batch=request.batch,
        length=length,
        threads=torch.get_num_threads(),
        device=request.device,
        precision=request.precision,
    )


def _lengths(longest: int) -> list[int]:
    return sorted({min(longest, each) for each in (16, 64, longest)})


def _latency(run: Callable[[], object], runs: int) -> Latency:
    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < runs and (
        len(times) < 10 or time.perf_counter() - begin < LATENCY_SECONDS or runs > LATENCY_RUNS
    ):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    p50, p90, p99 = (float(each) for each in np.percentile(times, [50, 90, 99]))
    return Latency(p50, p90, p99 if len(times) >= 100 else None, len(times))


def _throughput(run: Callable[[], object], count: int) -> Spread:
    run()
    rates = []
    for _ in range(THROUGHPUT_ROUNDS):
        start = time.perf_counter()
        run()
        rates.append(count / (time.perf_counter() - start))
    return Spread.of(rates)


def _resident_mb() -> float:
    """Resident memory now; where the system does not say, its peak so far."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return _peak_mb()


def _peak_mb() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def main() -> None:
    try:
        cost = _measure_here(CostRequest(**json.loads(sys.argv[1])))
    except ValueError as error:
        print(error)
        sys.exit(BAD_INPUT)
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
