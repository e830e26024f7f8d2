"""Why our linear layers do not call `torch.nn.functional.linear` on the CPU: the rates of both, interleaved.

`plain` is oneDNN on ordinary weights, `packed` on weights in its own layout, each with the bias and the erf GELU
in the same pass; the peer is `F.gelu(F.linear(…))`. Shapes are those of bert-base's and minilm-6's FFNs, for a batch
of 32 texts and for one text.

    python -m benchmarks.linear_cpu [--rounds 15] [--save]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.results import Row, compared, write_results

SHAPES = [(1600, 768, 3072), (1600, 384, 1536), (50, 768, 3072), (50, 384, 1536)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def gflops(run: Callable[[], object], operations: int, seconds: float = 0.05) -> float:
    """The rate over at least so many seconds of calls."""
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        run()
        count += 1
    return operations * count / elapsed / 1e9


def measure(tokens: int, inputs: int, outputs: int, precision: str, rounds: int) -> list[Row]:
    dtype = DTYPES[precision]
    x, bias = torch.randn(tokens, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    weight = torch.randn(outputs, inputs, dtype=dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    fused = torch.ops.mkldnn._linear_pointwise
    runs: dict[str, Callable[[], object]] = {
        "peer": lambda: F.gelu(F.linear(x, weight, bias)),
        "plain": lambda: fused(x, weight, bias, "gelu", [], "none"),
        "packed": lambda: fused(x, packed, bias, "gelu", [], "none"),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            rates[name].append(gflops(run, 2 * tokens * inputs * outputs))
    case = f"{tokens} × {inputs} → {outputs}, {precision}"
    return [
        compared(f"{case}, {name}", "rate", "GFLOP/s", rates[name], rates["peer"], higher_is_better=True)
        for name in ("plain", "packed")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write results/linear_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[Row] = []
    with torch.inference_mode():
        for shape in SHAPES:
            for precision in DTYPES:
                rows += measure(*shape, precision, arguments.rounds)
                for row in rows[-2:]:
                    print(
                        f"{row.case:40} {row.ours:7.0f} {row.unit}, peer {row.peer:7.0f}, ratio {row.ratio:.2f}",
                        flush=True,
                    )
    if arguments.save:
        write_results("linear_cpu", "python -m benchmarks.linear_cpu --save", rows)


if __name__ == "__main__":
    main()
