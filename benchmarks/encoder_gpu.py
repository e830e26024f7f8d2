"""Bulk inference in bf16 on one GPU: our encoder and `transformers`, same weights, same texts, interleaved.

AG-News-like lengths, groups of 256 texts in random order. Ours fills each group to one `BatchShape`, compiled once
and replayed as a CUDA graph; the peer pads each group to its longest text and runs eagerly, as its users do. Both
sides start from lists of ids on the host and end with the states on the device. Before the clock starts, both are
compared on one group.

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
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.network import Network
from halfpint.presets import preset

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4", "minilm-6")
LONGEST = 128


def shape_for(groups: list[Texts]) -> BatchShape:
    """One shape that every group fits, with the slots its filler needs."""
    tokens = max(sum(map(len, group)) for group in groups)
    tokens = -(-tokens // 256) * 256
    spare = tokens - min(sum(map(len, group)) for group in groups)
    return BatchShape(tokens=tokens, sequences=len(groups[0]) + spare // LONGEST + 1, longest=LONGEST)


def ours(network: Network, device: str, groups: list[Texts]) -> tuple[Callable[[Texts], torch.Tensor], float]:
    """Runs one group to its states; and the share of filler that the shape costs."""
    shape = shape_for(groups)
    mode = "reduce-overhead" if device == "cuda" else "default"
    encoder = torch.compile(network.encoder, mode=mode, fullgraph=True, dynamic=False)

    def run(group: Texts) -> torch.Tensor:
        return encoder(Batch.from_ids(group).fill(shape).to(device)).hidden

    return run, 1 - sum(len(text) for group in groups for text in group) / (shape.tokens * len(groups))


def peers(model: torch.nn.Module, device: str) -> Callable[[Texts], torch.Tensor]:
    def run(group: Texts) -> torch.Tensor:
        ids = torch.zeros(len(group), max(map(len, group)), dtype=torch.long)
        for row, text in enumerate(group):
            ids[row, : len(text)] = torch.tensor(text)
        mask = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in group])
        return model(input_ids=ids.to(device), attention_mask=mask.long().to(device)).last_hidden_state

    return run


def difference(run_ours: Callable, run_peer: Callable, group: Texts) -> float:
    """The largest difference of the states, relative to the largest state."""
    mine, theirs = run_ours(group).float(), run_peer(group).float()
    real = torch.cat([theirs[row, : len(text)] for row, text in enumerate(group)])
    return float((mine[: len(real)] - real).abs().max() / real.abs().max())


def rate(run: Callable, groups: list[Texts], device: str) -> float:
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
        peer = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    network.to(device, torch.bfloat16)
    texts = draw_texts(batch * num_groups)
    groups = [texts[start : start + batch] for start in range(0, len(texts), batch)]
    run_ours, filler = ours(network, device, groups)
    run_peer = peers(peer, device)
    for group in groups[:3]:  # compile, record the graph, replay it
        run_ours(group)
        run_peer(group)
    error = difference(run_ours, run_peer, groups[0])
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(rounds):
        rates["ours"].append(rate(run_ours, groups, device))
        rates["peer"].append(rate(run_peer, groups, device))
    case = f"{name} bf16, batch {batch}"
    return [
        compared(case, "throughput", "texts/s", rates["ours"], rates["peer"], higher_is_better=True),
        measured(case, "filler", "share of tokens", [filler]),
        measured(case, "difference of states", "relative", [error]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", default="cuda", help="cpu runs the same script, for trying it out")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write results/encoder_gpu.json")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with torch.inference_mode():
        for name in arguments.models.split(","):
            for row in measure(name, arguments.device, arguments.batch, arguments.groups, arguments.rounds):
                rows.append(row)
                against = "" if row.peer is None else f", peer {row.peer:.4g}, ratio {row.ratio:.2f}"
                print(f"{row.case:30} {row.metric}: {row.ours:.4g} {row.unit}{against}", flush=True)
    if arguments.save:
        write_results("encoder_gpu", "python -m benchmarks.encoder_gpu --save", rows)


if __name__ == "__main__":
    main()
