"""Fine-tuning on one GPU in bf16: our loop and a plain loop over `transformers`, same weights, same rows, interleaved.

Rows have AG-News-like lengths (log-normal around 50 tokens, at most 128) and four classes. Both sides: fused AdamW over
float32 weights under bf16 autocast, gradients clipped, the same activation, token types and hidden dropout, no
attention dropout. The peer pads each batch to its longest text and runs eagerly, from lists of ids. Ours is the real
loader and the real loop, from encoded rows. Memory is what the allocator reserves at its highest, CUDA graphs included.

    python -m benchmarks.finetune_gpu [--models bert-base,tinybert-4] [--batches 16,256] [--rounds 3] [--save]
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.encoder_cpu import Texts, draw_texts
from benchmarks.results import Row, compared, write_results
from halfpint.checkpoints.registry import default_head
from halfpint.checkpoints.write import write_network
from halfpint.config import ModelConfig
from halfpint.data.encoded import encode_sequences
from halfpint.data.loader import Loader, prefetch
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.presets import preset
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings
from halfpint.train.step import Step

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("bert-base", "distilbert", "albert-base", "tinybert-4")
LABELS = ("a", "b", "c", "d")
WARM_UP = 5
SETTINGS = Settings(precision="bf16", lr=1e-5)

Advance = Callable[[], None]
"""One step."""


def ours(network: Network, texts: Texts, labels: list[int], rows: int, device: str) -> Advance:
    encoded = encode_sequences(texts, None, vocab_size=30522, per_sequence={"label": np.array(labels)})
    loader = Loader(encoded, rows, mixing="balanced").fit(2)
    head = network.config.head("sequence")
    assert head is not None
    step = Step(network, [(TaskObjective(head), 1.0)], SETTINGS, Ranks(), graphed=device == "cuda")

    def steps() -> Iterator[list[Batch]]:
        epoch = 0
        while True:
            yield from prefetch(loader.steps(epoch % 2), pinned=device == "cuda")
            epoch += 1

    source = steps()
    return lambda: step(next(source), 1e-5) and None


def peer(model: torch.nn.Module, texts: Texts, labels: list[int], rows: int, device: str) -> Advance:
    parameters = [
        {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.01},
        {"params": [each for each in model.parameters() if each.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        draw = np.random.default_rng(0)
        while True:
            order = draw.permutation(len(texts))
            for start in range(0, len(order) - rows + 1, rows):
                group = [texts[index] for index in order[start : start + rows]]
                ids = torch.zeros(len(group), max(map(len, group)), dtype=torch.long)
                for row, text in enumerate(group):
                    ids[row, : len(text)] = torch.tensor(text)
                mask = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in group])
                yield ids, mask.long(), torch.tensor([labels[index] for index in order[start : start + rows]])

    source = batches()

    def advance() -> None:
        ids, mask, targets = (each.to(device, non_blocking=True) for each in next(source))
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask, labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return advance


def rate(advance: Advance, rows: int, seconds: float, device: str) -> float:
    """Rows a second over about so many seconds."""
    synchronize(device)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(5):
            advance()
        synchronize(device)
        done += 5
    return done * rows / (time.perf_counter() - start)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


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
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    encoder = preset(name).config.replace(attention_dropout=0.0)
    network = Network(ModelConfig(encoder, (default_head("sequence", encoder, LABELS),)))
    with tempfile.TemporaryDirectory() as folder:
        write_network(network, Path(folder))
        theirs = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    texts = draw_texts(num_texts)
    labels = np.random.default_rng(1).integers(0, len(LABELS), num_texts).tolist()
    # The peer goes first, so that neither inherits what the other has freed.
    run_peer, peer_gb = reserved(lambda: peer(theirs.to(device).train(), texts, labels, rows, device), device)
    run_ours, our_gb = reserved(lambda: ours(network.to(device), texts, labels, rows, device), device)
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
