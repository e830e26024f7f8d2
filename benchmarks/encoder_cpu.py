"""Inference on two CPU threads: our encoder and `transformers`, same weights, same texts, interleaved.

Lengths are AG-News-like (log-normal around 50 tokens, at most 128). Both sides start from lists of ids.
`random`: batches of 32 as the texts come; `sorted`: the peer's texts are sorted by length beforehand, which
takes most padding away (ours are not: it makes no difference to ragged batches); `single`: one text alone.

    python -m benchmarks.encoder_cpu [--models bert-base,tinybert-4] [--precisions fp32,bf16] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.results import Row, compared, write_results
from halfpint.checkpoints.write import write_network
from halfpint.config import ModelConfig
from halfpint.model.batch import Batch
from halfpint.model.linear import pack_for_inference
from halfpint.model.network import Network
from halfpint.presets import preset

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4", "minilm-6")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BATCH = 32

Texts = list[list[int]]


def draw_texts(count: int, seed: int = 0) -> Texts:
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(50), 0.4, count).astype(int), 8, 128)
    return [rng.integers(1000, 20000, length).tolist() for length in lengths]


def run_ours(network: Network, texts: Texts, batch_size: int) -> None:
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            # By length within the batch: neighbours of equal length share one call of attention.
            network.encoder(Batch.from_ids(sorted(texts[start : start + batch_size], key=len)))


def run_peer(model: torch.nn.Module, texts: Texts, batch_size: int) -> None:
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            group = texts[start : start + batch_size]
            ids = torch.zeros(len(group), max(map(len, group)), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, text in enumerate(group):
                ids[row, : len(text)] = torch.tensor(text)
                mask[row, : len(text)] = 1
            model(input_ids=ids, attention_mask=mask)


def seconds(run, *arguments) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def measure(name: str, precision: str, num_texts: int, rounds: int) -> list[Row]:
    from transformers import AutoModel

    torch.manual_seed(0)
    network = Network(ModelConfig(preset(name).config)).eval()
    with tempfile.TemporaryDirectory() as folder:
        write_network(network, Path(folder))
        peer = AutoModel.from_pretrained(folder, dtype=DTYPES[precision]).eval()
    network.to(DTYPES[precision])
    pack_for_inference(network)
    texts = draw_texts(num_texts)
    by_length = sorted(texts, key=len)
    singles = texts[:16]
    for run, model in ((run_ours, network), (run_peer, peer)):
        run(model, texts[:BATCH], BATCH)
        run(model, singles, 1)
    times: dict[str, list[float]] = {key: [] for key in ("ours", "peer", "peer sorted", "ours single", "peer single")}
    for _ in range(rounds):
        times["ours"].append(seconds(run_ours, network, texts, BATCH))
        times["peer"].append(seconds(run_peer, peer, texts, BATCH))
        times["peer sorted"].append(seconds(run_peer, peer, by_length, BATCH))
        times["ours single"].append(seconds(run_ours, network, singles, 1))
        times["peer single"].append(seconds(run_peer, peer, singles, 1))
    rates = {key: [num_texts / each for each in times[key]] for key in ("ours", "peer", "peer sorted")}
    latencies = {key: [1e3 * each / len(singles) for each in times[key]] for key in ("ours single", "peer single")}
    case = f"{name} {precision}"
    return [
        compared(f"{case}, random order", "throughput", "texts/s", rates["ours"], rates["peer"], higher_is_better=True),
        compared(
            f"{case}, peer sorted", "throughput", "texts/s", rates["ours"], rates["peer sorted"], higher_is_better=True
        ),
        compared(
            f"{case}, one text",
            "latency",
            "ms",
            latencies["ours single"],
            latencies["peer single"],
            higher_is_better=False,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write results/encoder_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[Row] = []
    for name in arguments.models.split(","):
        for precision in arguments.precisions.split(","):
            for row in measure(name, precision, arguments.texts, arguments.rounds):
                rows.append(row)
                sides = f"ours {row.ours:8.2f}  peer {row.peer:8.2f} {row.unit:8}"
                print(f"{row.case:40} {sides} ratio {row.ratio:.2f}", flush=True)
    if arguments.save:
        write_results("encoder_cpu", "python -m benchmarks.encoder_cpu --save", rows)


if __name__ == "__main__":
    main()
