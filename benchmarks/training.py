"""A step of fine-tuning, ours and a plain loop's over `transformers`: who runs in `finetune_gpu` and `finetune_cpu`.

Both sides: fused AdamW over float32 weights, gradients clipped, the same activation, token types and hidden dropout, no
attention dropout. The peer pads each batch to its longest text and runs eagerly, from lists of ids. Ours is the real
loader and the real step, from encoded rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.encoder_cpu import Texts
from halfpint.checkpoints.registry import default_head
from halfpint.checkpoints.write import write_network
from halfpint.config import ModelConfig, Precision
from halfpint.data.encoded import encode_sequences
from halfpint.data.loader import Loader, prefetch
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.presets import preset
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings
from halfpint.train.step import Step

LABELS = ("a", "b", "c", "d")
RATE = 1e-5

Advance = Callable[[], None]
"""One step."""


def contenders(name: str) -> tuple[Network, torch.nn.Module]:
    """A preset's shape with the same random weights, as our network and as that of `transformers`."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    encoder = preset(name).config.replace(attention_dropout=0.0)
    network = Network(ModelConfig(encoder, (default_head("sequence", encoder, LABELS),)))
    with tempfile.TemporaryDirectory() as folder:
        write_network(network, Path(folder))
        theirs = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return network, theirs.train()


def ours(network: Network, texts: Texts, labels: list[int], rows: int, device: str, precision: Precision) -> Advance:
    encoded = encode_sequences(texts, None, vocab_size=30522, per_sequence={"label": np.array(labels)})
    on_gpu = device == "cuda"
    loader = Loader(encoded, rows, mixing="balanced").fit(2) if on_gpu else Loader(encoded, rows)
    head = network.config.head("sequence")
    assert head is not None
    settings = Settings(precision=precision, lr=RATE)
    step = Step(network, [(TaskObjective(head), 1.0)], settings, Ranks(), graphed=on_gpu)

    def steps() -> Iterator[list[Batch]]:
        epoch = 0
        while True:
            yield from prefetch(loader.steps(epoch % 2), pinned=on_gpu)
            epoch += 1

    source = steps()
    return lambda: step(next(source), RATE) and None


def peer(
    model: torch.nn.Module, texts: Texts, labels: list[int], rows: int, device: str, precision: Precision
) -> Advance:
    parameters = [
        {"params": [each for each in model.parameters() if each.dim() > 1], "weight_decay": 0.01},
        {"params": [each for each in model.parameters() if each.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)

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
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
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
