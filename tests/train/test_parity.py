"""Training here gives the losses that a plain loop over `transformers` gives: same weights, same rows, no dropout."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from halfpint.checkpoints.write import write_network
from halfpint.config import EncoderConfig, ModelConfig, Sharing
from halfpint.data.loader import Loader
from halfpint.model.attention import Padding
from halfpint.model.batch import IGNORED, Batch
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.train.loop import train
from halfpint.train.settings import Settings
from tests.train.samples import HEADS, LONGEST, VOCABULARY, draw_rows

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "num_layers": 4, "hidden_size": 24, "num_heads": 3, "ffn_size": 40,
    "num_positions": LONGEST, "dropout": 0.0,
}  # fmt: skip
ENCODERS = {
    "bert": EncoderConfig.uniform(**SIZES),
    "albert": EncoderConfig.uniform(
        **SIZES, sharing=Sharing.groups(4, 2), embedding_size=8, embedding_projection="sum", activation="gelu_tanh"
    ),
}
CLASSES = {
    "sequence": "SequenceClassification",
    "multi_label": "SequenceClassification",
    "regression": "SequenceClassification",
    "token": "TokenClassification",
    "span": "QuestionAnswering",
    "choice": "MultipleChoice",
}
SETTINGS = Settings(epochs=8, batch=16, lr=1e-3, weight_decay=0.01)
STEPS = 100


def their_inputs(batch: Batch, kind: str) -> dict[str, Tensor]:
    padding = Padding.of(batch)
    inputs = {
        "input_ids": padding.pad(batch.ids).masked_fill(~padding.mask, 0),
        "attention_mask": padding.mask.long(),
    }
    if kind == "token":
        labels = padding.pad(batch.per_token["label"]).masked_fill(~padding.mask, IGNORED)
        return {**inputs, "labels": labels}
    labels = batch.per_slot["label"]
    if kind == "span":
        return {**inputs, "start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    if kind == "choice":
        inputs = {name: value.unflatten(0, (-1, 3)) for name, value in inputs.items()}
        labels = labels[::3]
    return {**inputs, "labels": labels.float() if kind == "multi_label" else labels}


def plain_losses(model: Any, loader: Loader, kind: str) -> list[float]:
    """As anyone would write it."""
    vectors = [each for each in model.parameters() if each.dim() < 2]
    matrices = [each for each in model.parameters() if each.dim() > 1]
    groups = [{"params": matrices, "weight_decay": SETTINGS.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=SETTINGS.lr)
    num_steps = SETTINGS.epochs * loader.num_steps
    rising = round(0.1 * num_steps)
    losses: list[float] = []
    model.train()
    for epoch in range(SETTINGS.epochs):
        for (batch,) in loader.steps(epoch):
            step = len(losses)
            for group in optimizer.param_groups:
                group["lr"] = SETTINGS.lr * min((step + 1) / rising, (num_steps - step) / (num_steps - rising))
            loss = model(**their_inputs(batch, kind)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("kind", CLASSES)
def test_a_hundred_steps_give_the_same_losses(kind: str, family: str, tmp_path: Path) -> None:
    head = HEADS[kind]
    reads_pooler = kind not in ("token", "span")
    encoder = ENCODERS[family].replace(pooler="tanh" if reads_pooler else "none")
    network = Network(ModelConfig(encoder, (head,)))
    assert write_network(network, tmp_path).format == family
    model_class = getattr(transformers, f"{family.capitalize()}For{CLASSES[kind]}")
    model = model_class.from_pretrained(tmp_path)
    # `transformers` lets answers begin in the padding, so for spans there is none.
    rows = draw_rows(kind, shortest=LONGEST if kind == "span" else 4)
    loader = Loader(rows, rows=SETTINGS.batch, seed=3)
    assert SETTINGS.epochs * loader.num_steps > STEPS
    ours: list[float] = []
    losses_of(network, loader, TaskObjective(head), ours)
    theirs = plain_losses(copy.deepcopy(model), loader, kind)
    assert ours[:STEPS] == pytest.approx(theirs[:STEPS], abs=1e-4)
    assert sum(theirs[STEPS - 10 : STEPS]) < sum(theirs[:10])


def losses_of(network: Network, loader: Loader, objective: TaskObjective, losses: list[float]) -> None:
    """Every step's loss, not only those that a watcher is told of."""

    class Recording(TaskObjective):
        def losses(self, *arguments: Any) -> dict[str, Tensor]:
            found = super().losses(*arguments)
            losses.append(float((found["task"] / self.counts(arguments[-1])["task"]).detach()))
            return found

    train(network, [(Recording(objective.head), 1.0)], loader, SETTINGS)
