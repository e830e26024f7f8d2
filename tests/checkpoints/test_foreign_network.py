"""Encoders of the transformers adapter under our heads: they learn, answer alone as in company, and are saved whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import halfpint as hp
from halfpint.checkpoints.adapter import adapt
from halfpint.checkpoints.foreign_network import KINDS, ForeignNetwork, foreign_head
from halfpint.config import ChoiceHead, EmbeddingHead, HeadConfig, SequenceHead, SpanHead
from halfpint.data.loader import Loader
from halfpint.engines.scoring import score_rows
from halfpint.model.batch import IGNORED, Batch, BatchShape
from halfpint.objectives.task import TaskObjective
from halfpint.train.loop import train
from halfpint.train.settings import Settings
from tests.checkpoints.folders import OTHERS, make_other
from tests.checkpoints.test_adapter import alone, assert_close, draw_ids
from tests.train.samples import HEADS, draw_rows

LABELS = ("sad", "glad", "mad")
SHAPE = BatchShape(tokens=50, sequences=8, longest=16)
"""Two sequences of filler and two empty slots."""


def make_network(name: str, *kinds: str) -> ForeignNetwork:
    encoder = adapt(make_other(name))
    return ForeignNetwork(encoder, [foreign_head(kind, encoder, LABELS) for kind in kinds or KINDS]).eval()


def save(network: ForeignNetwork, folder: Path, **options: Any) -> Path:
    return hp.Model(network, None, None).save(folder, **options)


@pytest.mark.parametrize("name", OTHERS)
def test_answers_do_not_depend_on_the_company(name: str) -> None:
    network, ids = make_network(name), draw_ids()
    batch = Batch.from_ids(ids)
    with torch.no_grad():
        _, together = network(batch)
        _, filled = network(batch.fill(SHAPE))
        singly = [network(Batch.from_ids([each]))[1] for each in ids]
    for kind in KINDS:
        expected = torch.cat([each[kind] for each in singly])
        assert_close(together[kind], expected)
        assert_close(filled[kind][: len(expected)], expected)


@pytest.mark.parametrize("name", OTHERS)
def test_heads_read_the_token_that_stands_for_a_sequence(name: str) -> None:
    theirs = make_other(name)
    encoder = adapt(theirs)
    heads = (
        SequenceHead(LABELS, dense="tanh"),
        ChoiceHead("relu"),
        SpanHead(no_answer=True),
        EmbeddingHead("cls", False),
    )
    network, ids = ForeignNetwork(encoder, heads).eval(), draw_ids()
    with torch.no_grad():
        _, answers = network(Batch.from_ids(ids))
    place = -1 if name == "xlnet" else 0  # XLNet's tokenizer puts <cls> at the end
    states = torch.stack([alone(theirs, each).last_hidden_state[0, place] for each in ids])
    sequence, choice, span = (network.heads[kind] for kind in ("sequence", "choice", "span"))
    assert_close(answers["sequence"], sequence.classifier(torch.tanh(sequence.dense(states))))
    assert_close(answers["choice"], choice.classifier(torch.relu(choice.dense(states)))[:, 0])
    starts = torch.tensor([0, *map(len, ids)]).cumsum(0)[:-1]
    assert_close(answers["span"][starts, 2], span.no_answer(states)[:, 0])
    assert_close(answers["embedding"], states)


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_reach_encoder_and_heads_and_none_come_from_filler(name: str) -> None:
    network, batch = make_network(name, "sequence", "token"), Batch.from_ids(draw_ids())

    def gradients(batch: Batch, tokens: int, slots: int) -> dict[str, Tensor]:
        network.zero_grad()
        _, answers = network(batch)
        (answers["token"][:tokens].square().sum() + answers["sequence"][:slots].square().sum()).backward()
        return {key: each.grad.clone() for key, each in network.named_parameters() if each.grad is not None}

    plain = gradients(batch, batch.num_tokens, batch.num_slots)
    filled = gradients(batch.fill(SHAPE), batch.num_tokens, batch.num_slots)
    reached = {key for key, each in plain.items() if each.abs().max() > 0}
    assert {f"heads.{key}" for key, _ in network.heads.named_parameters()} <= reached
    assert any("embed" in key and key.startswith("encoder.") for key in reached)
    assert plain.keys() == filled.keys()
    scale = max(float(each.abs().max()) for each in plain.values())
    assert all(float((plain[key] - filled[key]).abs().max()) < 1e-5 * scale for key in plain)


def test_no_head_reads_the_pooler() -> None:
    network = make_network("mpnet")
    network(Batch.from_ids(draw_ids()))[1]["sequence"].sum().backward()
    assert all(each.grad is None for each in network.encoder.model.pooler.parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_saved_answers_the_same_and_transformers_opens_the_encoder(name: str, tmp_path: Path) -> None:
    network, ids = make_network(name), draw_ids()
    folder = save(network, tmp_path / "m")
    again = hp.load(folder)
    assert again.module.head_configs == network.head_configs
    for kind in ("sequence", "token", "span", "choice"):
        ours = hp.Model(network, None, None).logits(ids, head=kind)
        assert all(np.array_equal(*pair) for pair in zip(ours, again.logits(ids, head=kind), strict=True))
    opened = transformers.AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    assert_close(again.encode(ids[:1])[0], alone(opened, ids[0]).last_hidden_state[0])


def test_without_heads_there_is_no_file_of_heads(tmp_path: Path) -> None:
    folder = save(ForeignNetwork(adapt(make_other("electra"))), tmp_path / "m")
    assert not (folder / "heads.safetensors").exists()
    assert "heads" not in json.loads((folder / "halfpint.json").read_text())


def sample_head(kind: str) -> HeadConfig:
    head = HEADS[kind]
    return replace(head, dense="tanh") if isinstance(head, SequenceHead | ChoiceHead) else head


@pytest.mark.parametrize("kind", ["sequence", "token"])
@pytest.mark.parametrize("name", ["xlnet", "bart", "mpnet", "deberta-v2"])
def test_a_foreign_encoder_learns(name: str, kind: str, tmp_path: Path) -> None:
    rows = draw_rows(kind)
    network = ForeignNetwork(adapt(make_other(name)), [sample_head(kind)])
    losses, scores = run(network, kind, epochs=6)
    assert losses[-1] < 0.6 * losses[0]
    assert scores[-1] > scores[0]
    assert not network.training
    labels = {"sequence": rows.per_sequence, "token": rows.per_token}[kind]["label"]
    again = hp.load(save(network, tmp_path / "m")).module
    assert accuracy(score_rows(again, rows, kind), labels) == max(scores)


@pytest.mark.parametrize("kind", ["span", "choice", "embedding"])
def test_every_kind_of_task_is_learnt(kind: str) -> None:
    losses, _ = run(ForeignNetwork(adapt(make_other("xlnet")), [sample_head(kind)]), kind, epochs=4)
    assert losses[-1] < 0.9 * losses[0]


def run(network: ForeignNetwork, kind: str, *, epochs: int, **more: Any) -> tuple[list[float], list[float]]:
    """The losses that a watcher is told, and the accuracies of labelled kinds."""
    rows = draw_rows(kind)
    losses: list[float] = []
    labels = {"sequence": rows.per_sequence, "token": rows.per_token}.get(kind, {}).get("label")
    scores: list[float] = []

    def evaluate(network: Any) -> dict[str, float]:
        scores.append(0.0 if labels is None else accuracy(score_rows(network, rows, kind), labels))
        return {"score": scores[-1]}

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            losses.append(event["loss"])

    objective = TaskObjective(sample_head(kind))
    settings = Settings(epochs=epochs, batch=20, lr=3e-3)
    train(network, [(objective, 1.0)], Loader(rows, rows=20), settings, evaluate=evaluate, watchers=[watch], **more)
    return losses, scores


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    known = labels != IGNORED
    return float((scores.argmax(axis=1) == labels)[known].mean())
