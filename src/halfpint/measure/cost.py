"""What a model costs on this machine: load time, memory, latency, throughput. Measured, never estimated.

Every model is measured in a process of its own (`measure_cost` starts it, `python -m halfpint.measure.cost`
is it), so that neither leaves anything behind for the next, and warmed up before the clock starts.
"""

from __future__ import annotations

import gc
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from halfpint.engines.model import Model

MIXED = "mixed"
"""The set of lengths that texts have in life: log-normal around 50 tokens, no longer than asked."""

WARM_UP = 3
LOADS = 3
LATENCY_RUNS = 40
THOROUGH_RUNS = 400
LATENCY_SECONDS = 2.0

FEWEST_TOKENS = 1024
ROUND_SECONDS = 2.0
MIN_ROUNDS = 2
MAX_ROUNDS = 5
THROUGHPUT_SECONDS = 1.5
LONG_ROUND = 0.5
"""Seconds of a round that needs no warming up."""

SECONDS_A_MODEL = 15
"""What measuring one takes, about: seven for tinybert-4, thirty for bert-base, on two quiet cores."""

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
    """Texts a second, by length in tokens and for `mixed` lengths; where that takes long, of a part of the batch."""
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
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r} ({type(value).__name__}); it must be a whole number")
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be positive")
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


def prepare(request: CostRequest) -> Model:
    """The model as it is measured: on its device, in its precision, and laid out for inference on a CPU."""
    import torch

    from halfpint.engines.model import load

    model = load(Path(request.folder)).to(
        request.device, {"fp32": torch.float32, "bf16": torch.bfloat16}[request.precision]
    )
    return model.pack() if request.device == "cpu" else model


def _measure_here(request: CostRequest) -> Cost:
    import torch

    import halfpint.engines.model  # noqa: F401  so that its import is in no time and no memory below

    if request.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', and torch finds no CUDA device here; give cpu, or see: halfpint doctor")
    before = _resident_mb()
    load_ms = []
    model = None
    for _ in range(LOADS):
        del model
        gc.collect()
        start = time.perf_counter()
        model = prepare(request)
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
    throughput = {}
    for name, lengths in sets.items():
        part = part_of(lengths, latency.p50 / 1e3 / length)
        throughput[name] = throughput_of(run(part), len(lengths) * sum(part) / sum(lengths))
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


def part_of(lengths: Sequence[int], seconds_a_token: float) -> list[int]:
    """As many texts of a batch as a round has time for, each length in its share, and 1024 tokens at the least.

    Of so many tokens one costs what it costs in a larger batch, within a tenth; the whole batch takes bert-base four
    seconds on two quiet cores, and much more on busy ones.
    """
    wanted = math.ceil(seconds_a_token * sum(lengths) / ROUND_SECONDS)
    step = max(1, min(wanted, sum(lengths) // FEWEST_TOKENS))
    return sorted(lengths)[step // 2 :: step]


def throughput_of(run: Callable[[], object], count: float, clock: Callable[[], float] = time.perf_counter) -> Spread:
    """Texts a second, where a round is worth `count`: as many rounds as fit the time, and two at the least."""

    def timed() -> float:
        start = clock()
        run()
        return clock() - start

    begin = clock()
    first = timed()
    # What the first round warms up takes milliseconds, which is nothing in a round of seconds.
    times = [first] if first > LONG_ROUND else []
    while len(times) < MIN_ROUNDS or (len(times) < MAX_ROUNDS and clock() - begin < THROUGHPUT_SECONDS):
        times.append(timed())
    return Spread.of([count / each for each in times])


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
