"""What each member of the family costs here, as `halfpint profile --measure` tells it, and how long the telling takes.

python -m benchmarks.family [--models bert-base,tinybert-4] [--save]
"""

from __future__ import annotations

import argparse
import time

from benchmarks.results import Row, write_results
from halfpint.measure.cost import Spread
from halfpint.measure.profile import Profile, profile

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4", "mobilebert")


def rows_of(measured: Profile) -> list[Row]:
    cost = measured.cost
    assert cost is not None

    def row(metric: str, unit: str, value: float) -> Row:
        return Row(measured.model, metric, unit, value)

    def spread(metric: str, unit: str, value: Spread) -> Row:
        return Row(measured.model, metric, unit, value.median, spread=(value.low, value.high))

    return [
        row("stored parameters", "", measured.counts.stored_parameters),
        row("effective parameters", "", measured.counts.effective_parameters),
        spread("load time", "ms", cost.load_ms),
        row("memory of the model", "MB", cost.memory_mb),
        row(f"latency p50, {cost.length} tokens", "ms", cost.latency_ms.p50),
        row(f"latency p90, {cost.length} tokens", "ms", cost.latency_ms.p90),
        *(spread(f"throughput, {name} tokens", "texts/s", each) for name, each in cost.throughput.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--save", action="store_true", help="write results/family.json")
    arguments = parser.parse_args()
    start, rows = time.perf_counter(), []
    names = arguments.models.split(",")
    for name in names:
        rows += rows_of(profile(name, measure=True))
    rows.append(Row(f"{len(names)} models", "time to measure them all", "s", time.perf_counter() - start))
    for row in rows:
        print(f"{row.case:12} {row.metric:32} {row.ours:16,.1f} {row.unit}")
    if arguments.save:
        write_results("family", "python -m benchmarks.family --save", rows)


if __name__ == "__main__":
    main()
