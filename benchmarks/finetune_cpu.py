"""Fine-tuning on the CPU (`training.py` says what is compared), in bf16 where the processor has it, and in fp32.

Rows are those of AG News, cut at 128 tokens, where the reference data is there; else of such lengths, with random ids.

    python -m benchmarks.finetune_cpu [--models minilm-6-384] [--batch 32] [--rounds 5] [--save]
"""

from __future__ import annotations

import argparse
import os

import numpy as np

from benchmarks.encoder_cpu import Texts, draw_texts
from benchmarks.reference import reference_data
from benchmarks.results import Row, compared, write_results
from benchmarks.training import LABELS, contenders, ours, peer, rate
from halfpint.artifact import read_artifact
from halfpint.data.sources import read
from halfpint.data.tokenizer import read_tokenizer

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = ("minilm-6-384", "tinybert-4")
MAX_LENGTH = 128
WARM_UP = 3


def read_texts(count: int) -> tuple[str, Texts, list[int]]:
    """What the rows are, and their ids and labels."""
    data = reference_data()
    if not data.is_dir():
        return "lengths of AG News", draw_texts(count), np.random.default_rng(1).integers(0, 4, count).tolist()
    table = read(data / "ag_news" / "train.csv").tables["train"].slice(0, count)
    tokenizer = read_tokenizer(read_artifact(data / "models" / "all-MiniLM-L6-v2"))
    assert tokenizer is not None
    names = sorted(set(table["label"].to_pylist()))
    ids = tokenizer(table["text"].to_pylist(), MAX_LENGTH).ids
    return "AG News", [list(each) for each in ids], [names.index(label) for label in table["label"].to_pylist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="bf16,fp32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a round, for each side")
    parser.add_argument("--texts", type=int, default=8000)
    parser.add_argument("--save", action="store_true", help="write results/finetune_cpu.json")
    arguments = parser.parse_args()
    kind, texts, labels = read_texts(arguments.texts)
    assert max(labels) < len(LABELS)
    rows: list[Row] = []
    for name in arguments.models.split(","):
        for precision in arguments.precisions.split(","):
            network, theirs = contenders(name)
            sides = {
                "ours": ours(network, texts, labels, arguments.batch, "cpu", precision),
                "peer": peer(theirs, texts, labels, arguments.batch, "cpu", precision),
            }
            for advance in sides.values():
                for _ in range(WARM_UP):
                    advance()
            rates: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, advance in sides.items():
                    rates[side].append(rate(advance, arguments.batch, arguments.seconds, "cpu"))
            case = f"{name}, {kind}, batch {arguments.batch}, {precision}"
            row = compared(case, "fine-tuning", "rows/s", rates["ours"], rates["peer"], higher_is_better=True)
            rows.append(row)
            print(f"{row.case}: {row.ours:.4g} {row.unit}, peer {row.peer:.4g}, ratio {row.ratio:.2f}", flush=True)
    if arguments.save:
        write_results("finetune_cpu", "python -m benchmarks.finetune_cpu --save", rows)


if __name__ == "__main__":
    main()
