"""Fine-tuning on one GPU in bf16 (`training.py` says what is compared), with the memory that each side takes.

Rows have AG-News-like lengths (log-normal around 50 tokens, at most 128) and four classes. Memory is what the allocator
reserves at its highest, CUDA graphs included.

    python -m benchmarks.finetune_gpu [--models bert-base,tinybert-4] [--batches 16,256] [--rounds 3] [--save]
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.encoder_cpu import draw_texts
from benchmarks.results import Row, compared, write_results
from benchmarks.training import LABELS, Advance, contenders, ours, peer, rate, synchronize

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4")
WARM_UP = 5


def reserved(make: Callable[[], Advance], device: str) -> tuple[Advance, float]:
    """A contender that is warm, and the GB that it made the allocator reserve."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved() if device == "cuda" else 0
    advance = make()
    for _ in range(WARM_UP):
        advance()
    synchronize(device)
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else 0
    return advance, (peak - before) / 1e9


def measure(name: str, rows: int, device: str, rounds: int, seconds: float, num_texts: int) -> list[Row]:
    network, theirs = contenders(name)
    texts = draw_texts(num_texts)
    labels = np.random.default_rng(1).integers(0, len(LABELS), num_texts).tolist()
    # The peer goes first, so that neither inherits what the other has freed.
    run_peer, peer_gb = reserved(lambda: peer(theirs.to(device), texts, labels, rows, device, "bf16"), device)
    run_ours, our_gb = reserved(lambda: ours(network.to(device), texts, labels, rows, device, "bf16"), device)
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(rounds):
        rates["ours"].append(rate(run_ours, rows, seconds, device))
        rates["peer"].append(rate(run_peer, rows, seconds, device))
    case = f"{name}, batch {rows}"
    found = [compared(case, "fine-tuning", "rows/s", rates["ours"], rates["peer"], higher_is_better=True)]
    if device == "cuda":
        found.append(compared(case, "memory reserved", "GB", [our_gb], [peer_gb], higher_is_better=False))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="256,16")
    parser.add_argument("--device", default="cuda", help="cpu runs the same script, for trying it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round, for each side")
    parser.add_argument("--texts", type=int, default=16_000)
    parser.add_argument("--save", action="store_true", help="write results/finetune_gpu.json")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            found = measure(name, batch, arguments.device, arguments.rounds, arguments.seconds, arguments.texts)
            for row in found:
                rows.append(row)
                print(
                    f"{row.case:24} {row.metric}: {row.ours:.4g} {row.unit}, peer {row.peer:.4g}, ratio {row.ratio:.2f}"
                )
            torch._dynamo.reset()
    if arguments.save:
        write_results("finetune_gpu", "python -m benchmarks.finetune_gpu --save", rows)


if __name__ == "__main__":
    main()
