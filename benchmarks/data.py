"""Data against what cannot be avoided: tokenizing against `tokenizers` alone, and, on a GPU, an epoch through the real
loader against the same batches already on the card.

Tokenizing is that of a task, from the rows of a table to the arrays that lie in the cache; the peer is `encode_batch`
on the same texts, with the same truncation, whose result is thrown away. Needs the reference data.

    python -m benchmarks.data [--part tokenizing|loader] [--rounds 5] [--save]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks.encoder_cpu import draw_texts
from benchmarks.reference import reference_data
from benchmarks.results import Row, compared, write_results
from benchmarks.training import LABELS, RATE, synchronize
from halfpint.artifact import read_artifact
from halfpint.checkpoints.registry import default_head
from halfpint.config import ModelConfig
from halfpint.data.encoded import encode_sequences
from halfpint.data.loader import Loader, prefetch
from halfpint.data.sources import Dataset, read
from halfpint.data.tasks import find_task
from halfpint.data.tokenizer import Tokenizer, read_tokenizer
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.presets import preset
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings
from halfpint.train.step import Step

TASKS = {
    "AG News": ("ag_news/train.csv", 128),
    "IMDB": ("imdb/train.parquet", 256),
    "SQuAD": ("squad/dev-v1.1.json", 384),
}
"""The file, and how many tokens a sequence has at most."""
STRIDE = 128


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def tokenizing(data: Path, names: list[str], rounds: int) -> list[Row]:
    tokenizer = read_tokenizer(read_artifact(data / "models" / "all-MiniLM-L6-v2"))
    assert tokenizer is not None
    found = []
    for name in names:
        path, max_length = TASKS[name]
        found.append(tokenizing_of(name, data / path, max_length, tokenizer, rounds))
    return found


def tokenizing_of(name: str, path: Path, max_length: int, tokenizer: Tokenizer, rounds: int) -> Row:
    dataset = read(path)
    ((split, table),) = dataset.tables.items()
    task = find_task(Dataset(dataset.name, {"train": table}, {"train": dataset.origins[split]}))
    texts = raw_texts(table)
    backend = tokenizer.backend

    def alone() -> None:
        if name == "SQuAD":
            backend.enable_truncation(max_length, stride=STRIDE, strategy="only_second")
        else:
            backend.enable_truncation(max_length)
        backend.encode_batch(texts)
        backend.no_truncation()

    def ours() -> None:
        task.encode(table, tokenizer, max_length)

    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds + 1):
        for side, work in (("ours", ours), ("peer", alone)):
            rate = len(table) / seconds(work)
            if number:  # the first round is for warming up
                rates[side].append(rate)
    return compared(
        f"{name}, {max_length} tokens", "tokenizing", "rows/s", rates["ours"], rates["peer"], higher_is_better=True
    )


def raw_texts(table: pa.Table) -> list[str] | list[tuple[str, str]]:
    if "context" in table.column_names:
        return list(zip(table["question"].to_pylist(), table["context"].to_pylist(), strict=True))
    texts: list[str] = table["text"].to_pylist()
    return texts


def loading(device: str, name: str, batch: int, rounds: int, num_texts: int) -> Row:
    """Epochs of training through the loader, and on batches that lie on the device already."""
    torch.manual_seed(0)
    config = preset(name).config.replace(attention_dropout=0.0)
    network = Network(ModelConfig(config, (default_head("sequence", config, LABELS),))).to(device)
    on_gpu = device == "cuda"
    labels = np.random.default_rng(1).integers(0, len(LABELS), num_texts)
    encoded = encode_sequences(draw_texts(num_texts), None, vocab_size=30522, per_sequence={"label": labels})
    loader = Loader(encoded, batch, mixing="balanced").fit(1) if on_gpu else Loader(encoded, batch)
    head = network.config.head("sequence")
    assert head is not None
    settings = Settings(precision="bf16", lr=RATE)
    step = Step(network, [(TaskObjective(head), 1.0)], settings, Ranks(), graphed=on_gpu)
    there = [[each.to(device) for each in batches] for batches in loader.steps(0)]

    def epoch(steps: Iterator[list[Batch]]) -> None:
        for batches in steps:
            step(batches, RATE)
        synchronize(device)

    sides = {"ours": lambda: epoch(prefetch(loader.steps(0), pinned=on_gpu)), "peer": lambda: epoch(iter(there))}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, work in sides.items():
            rate = num_texts / seconds(work)
            if number:
                rates[side].append(rate)
    case = f"{name}, batch {batch}, an epoch of {num_texts:,} rows"
    return compared(case, "loader against batches on the device", "rows/s", *rates.values(), higher_is_better=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tokenizing", "loader"), default="tokenizing")
    parser.add_argument("--tasks", default=",".join(TASKS), help="what is tokenized")
    parser.add_argument("--device", default="cuda", help="of the loader; cpu tries it out")
    parser.add_argument("--model", default="tinybert-4")
    parser.add_argument("--batches", default="256,16")
    parser.add_argument("--texts", type=int, default=64_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write results/data_PART.json")
    arguments = parser.parse_args()
    if arguments.part == "tokenizing":
        data = reference_data()
        if not data.is_dir():
            raise SystemExit("the reference data is not there; name its folder in HALFPINT_DATA")
        rows = tokenizing(data, arguments.tasks.split(","), arguments.rounds)
    else:
        rows = [
            loading(arguments.device, arguments.model, int(batch), arguments.rounds, arguments.texts)
            for batch in arguments.batches.split(",")
        ]
    for row in rows:
        print(f"{row.case}: {row.ours:,.0f} {row.unit}, {row.peer:,.0f} at most, ratio {row.ratio:.2f}")
    if arguments.save:
        write_results(f"data_{arguments.part}", f"python -m benchmarks.data --part {arguments.part} --save", rows)


if __name__ == "__main__":
    main()
