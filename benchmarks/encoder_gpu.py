"""Bulk inference in bf16 on one GPU: our encoder and `transformers`, same weights, same texts, interleaved.

AG-News-like lengths in random order. The peer takes groups of 256 texts, pads each to its longest and runs eagerly,
as its users do: under bf16 autocast, and with its weights in bf16, which is faster. Ours fills one `BatchShape` of as
many tokens as 256 texts have on average, compiled once and replayed as a CUDA graph. All start from lists of ids on
the host and end with the states on the device. Before the clock starts, they are compared on some texts.

    python -m benchmarks.encoder_gpu [--models bert-base,tinybert-4] [--rounds 5] [--save]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.encoder_cpu import Texts, draw_texts
from benchmarks.results import Row, compared, measured, write_results
from halfpint.checkpoints.write import write_network
from halfpint.config import ModelConfig
from halfpint.data.batching import fill_in_order
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.network import Network
from halfpint.presets import preset

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4", "minilm-6")
LONGEST = 128

Run = Callable[[Texts], torch.Tensor]


def shape_for(texts: Texts, batch: int) -> BatchShape:
    """A shape that holds so many texts of middling length, with slots for texts that are shorter."""
    tokens = -(-batch * sum(map(len, texts)) // len(texts) // 256) * 256
    return BatchShape(tokens=tokens, sequences=batch + batch // 4, longest=LONGEST)


def ours(network: Network, device: str, shape: BatchShape) -> Run:
    mode = "reduce-overhead" if device == "cuda" else "default"
    encoder = torch.compile(network.encoder, mode=mode, fullgraph=True, dynamic=False)

    def run(group: Texts) -> torch.Tensor:
        return encoder(Batch.from_ids(group).fill(shape).to(device)).hidden

    return run


def peers(model: torch.nn.Module, device: str, *, autocast: bool) -> Run:
    def run(group: Texts) -> torch.Tensor:
        ids = torch.zeros(len(group), max(map(len, group)), dtype=torch.long)
        for row, text in enumerate(group):
            ids[row, : len(text)] = torch.tensor(text)
        mask = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in group])
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return model(input_ids=ids.to(device), attention_mask=mask.long().to(device)).last_hidden_state

    return run


def difference(run_ours: Run, run_peer: Run, group: Texts) -> float:
    """The largest difference of the states, relative to the largest state."""
    mine, theirs = run_ours(group).float(), run_peer(group).float()
    real = torch.cat([theirs[row, : len(text)] for row, text in enumerate(group)])
    return float((mine[: len(real)] - real).abs().max() / real.abs().max())


def rate(run: Run, groups: list[Texts], device: str) -> float:
    """Texts a second over all groups."""
    start = time.perf_counter()
    for group in groups:
        run(group)
    if device == "cuda":
        torch.cuda.synchronize()
    return sum(map(len, groups)) / (time.perf_counter() - start)


def measure(name: str, device: str, batch: int, num_groups: int, rounds: int) -> list[Row]:
    from transformers import AutoModel

    torch.manual_seed(0)
    network = Network(ModelConfig(preset(name).config)).eval()
    with tempfile.TemporaryDirectory() as folder:
        write_network(network, Path(folder))
        weights = {dtype: AutoModel.from_pretrained(folder, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
    network.to(device, torch.bfloat16)
    texts = draw_texts(batch * num_groups)
    shape = shape_for(texts, batch)
    groups = {
        "ours": [[texts[each] for each in group] for group in fill_in_order(map(len, texts), shape)],
        "peer": [texts[start : start + batch] for start in range(0, len(texts), batch)],
    }
    groups["peer, bf16 weights"] = groups["peer"]
    runs = {
        "ours": ours(network, device, shape),
        "peer": peers(weights[torch.float32].eval().to(device), device, autocast=True),
        "peer, bf16 weights": peers(weights[torch.bfloat16].eval().to(device), device, autocast=False),
    }
    for side, run in runs.items():
        for group in groups[side][:3]:  # compile, record the graph, replay it
            run(group)
    error = difference(runs["ours"], runs["peer, bf16 weights"], groups["ours"][0])
    rates: dict[str, list[float]] = {side: [] for side in runs}
    for _ in range(rounds):
        for side, run in runs.items():
            rates[side].append(rate(run, groups[side], device))
    case = f"{name} bf16, batch {batch}"
    filler = 1 - sum(map(len, texts)) / (shape.tokens * len(groups["ours"]))
    peer, best = rates["peer"], rates["peer, bf16 weights"]
    return [
        compared(f"{case}, peer in autocast", "throughput", "texts/s", rates["ours"], peer, higher_is_better=True),
        compared(f"{case}, peer's weights bf16", "throughput", "texts/s", rates["ours"], best, higher_is_better=True),
        measured(case, "filler", "share of tokens", [filler]),
        measured(case, "difference of states", "relative", [error]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", default="cuda", help="cpu runs the same script, for trying it out")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--groups", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write results/encoder_gpu.json")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with torch.inference_mode():
        for name in arguments.models.split(","):
            for row in measure(name, arguments.device, arguments.batch, arguments.groups, arguments.rounds):
                rows.append(row)
                against = "" if row.peer is None else f", peer {row.peer:.4g}, ratio {row.ratio:.2f}"
                print(f"{row.case:48} {row.metric}: {row.ours:.4g} {row.unit}{against}", flush=True)
    if arguments.save:
        write_results("encoder_gpu", "python -m benchmarks.encoder_gpu --save", rows)


if __name__ == "__main__":
    main()
