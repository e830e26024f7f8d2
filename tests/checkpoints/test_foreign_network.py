"""Encoders of the transformers adapter under our heads: they learn, answer alone as in company, and are saved whole."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import processors
from torch import Tensor

import halfpint as hp
from halfpint.checkpoints.adapter import adapt
from halfpint.checkpoints.foreign_network import KINDS, ForeignNetwork, foreign_head
from halfpint.config import ChoiceHead, ConfigError, EmbeddingHead, HeadConfig, SequenceHead, SpanHead, TokenHead
from halfpint.data.loader import Loader
from halfpint.data.sources import read
from halfpint.data.tasks import find_task
from halfpint.engines.scoring import score_rows
from halfpint.model.batch import IGNORED, Batch, BatchShape
from halfpint.objectives.task import TaskObjective
from halfpint.train.loop import train
from halfpint.train.settings import Settings
from tests.checkpoints.folders import OTHERS, make_other, randomize, write_tokenizer
from tests.checkpoints.foreign import make_foreign, save_foreign
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


@torch.no_grad()
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


def test_saving_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = make_network("mpnet")
    capfd.readouterr()
    save(network, tmp_path / "m")
    assert capfd.readouterr() == ("", "")


def test_without_heads_there_is_no_file_of_heads(tmp_path: Path) -> None:
    folder = save(ForeignNetwork(adapt(make_other("electra"))), tmp_path / "m")
    assert not (folder / "heads.safetensors").exists()
    assert "heads" not in json.loads((folder / "halfpint.json").read_text())


def sample_head(kind: str) -> HeadConfig:
    head = HEADS[kind]
    return replace(head, dense="tanh") if isinstance(head, SequenceHead | ChoiceHead) else head


@pytest.mark.parametrize("kind", ["sequence", "token"])
@pytest.mark.parametrize(("name", "epochs"), [("xlnet", 20), ("bart", 5), ("mpnet", 5), ("deberta-v2", 5)])
def test_a_foreign_encoder_learns(name: str, epochs: int, kind: str, tmp_path: Path) -> None:
    # XLNet is the slowest: the label of a sequence shows in its first token, and there the last one is read.
    rows = draw_rows(kind)
    network = ForeignNetwork(adapt(make_other(name)), [sample_head(kind)])
    losses, scores = run(network, kind, epochs=epochs)
    assert losses[-1] < 0.5 * losses[0]
    assert max(scores) > 0.7
    assert not network.training
    labels = {"sequence": rows.per_sequence, "token": rows.per_token}[kind]["label"]
    again = hp.load(save(network, tmp_path / "m")).module
    assert accuracy(score_rows(again, rows, kind), labels) == max(scores)


@pytest.mark.parametrize("kind", ["span", "choice", "embedding"])
def test_every_kind_of_task_is_learnt(kind: str) -> None:
    losses, _ = run(ForeignNetwork(adapt(make_other("bart")), [sample_head(kind)]), kind, epochs=5)
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_that_was_finished_is_not_run_again(tmp_path: Path) -> None:
    states, losses = [], []
    for _ in range(2):
        torch.manual_seed(0)
        network = ForeignNetwork(adapt(make_other("mpnet")), [sample_head("sequence")])
        losses.append(run(network, "sequence", epochs=1, checkpoints=tmp_path / "checkpoints")[0])
        states.append(network.state_dict())
    assert losses[0] and not losses[1]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


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


TEXTS = [{"text": f"w{6 + index % 30} w7 w8", "label": "odd" if index % 2 else "even"} for index in range(120)]


def write_xlnet_tokenizer(folder: Path) -> None:
    """As XLNet's: `[SEP] [CLS]` at the end, the last token of a type of its own."""
    write_tokenizer(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="$A [SEP] [CLS]:2",
        pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    backend.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("name", ["xlnet", "bart"])
def test_a_model_of_a_task_answers_texts(name: str, tmp_path: Path) -> None:
    make_other(name).save_pretrained(tmp_path / "base")
    (write_xlnet_tokenizer if name == "xlnet" else write_tokenizer)(tmp_path / "base")
    model = hp.load(tmp_path / "base")
    dataset = read(TEXTS)
    task = find_task(dataset)
    table = dataset.tables["train"]
    encoded = task.encode(table, model.tokenizer, model.max_length)
    head = foreign_head(task.head, model.encoder, task.labels, task.problem)
    model.module.add_head(head)
    settings = Settings(epochs=15, batch=20, lr=3e-3)
    train(model.module, [(TaskObjective(head), 1.0)], Loader(encoded, rows=20), settings)
    scores = score_rows(model.module, encoded, task.head)
    assert task.measure(task.judge(table, encoded, scores))["accuracy"] > 0.9
    again = hp.load(model.save(tmp_path / "m", metadata={"task": task.to_dict(), "max_length": 18}))
    answers = again.predict([row["text"] for row in TEXTS])
    assert answers == task.answer(table, encoded, scores).to_pylist()


def test_an_embedding_is_described_for_sentence_transformers_too(tmp_path: Path) -> None:
    head = EmbeddingHead("cls", normalize=False)
    folder = save(ForeignNetwork(adapt(make_other("bart")), [head]), tmp_path / "m")
    assert hp.load(folder).embedding == head
    assert json.loads((folder / "1_Pooling" / "config.json").read_text()) == {
        "word_embedding_dimension": 24, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True,
    }  # fmt: skip
    (folder / "modules.json").unlink()
    assert hp.load(folder, verify=False).embedding == head
    assert not (folder / "heads.safetensors").exists()


def test_heads_stay_where_a_family_could_express_the_encoder(tmp_path: Path) -> None:
    """An untied masked LM is left to the adapter; what was made of it has no decoder any more."""
    untied = make_foreign("bert", "BertForMaskedLM", tie_word_embeddings=False)
    save_foreign(randomize(untied), tmp_path / "old")
    with pytest.warns(UserWarning, match="no use for"):
        model = hp.load(tmp_path / "old")
    model.module.add_head(TokenHead(LABELS))
    again = hp.load(model.save(tmp_path / "new"))
    ids = draw_ids()
    assert all(np.array_equal(*pair) for pair in zip(model.logits(ids), again.logits(ids), strict=True))


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    folder = save(make_network("electra"), tmp_path / "m")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    hp.load(folder)
    assert torch.equal(torch.rand(2), expected)


def test_heads_load_in_bf16(tmp_path: Path) -> None:
    model = hp.load(save(make_network("bart", "sequence"), tmp_path / "m"), dtype=torch.bfloat16)
    assert {each.dtype for each in model.module.parameters()} == {torch.bfloat16}
    assert model.logits([[7, 8]])[0].shape == (3,)


def test_a_head_takes_the_place_of_one_of_its_kind() -> None:
    network = make_network("mpnet", "token", "span")
    network.add_head(TokenHead(("a", "b")))
    assert network.head_config("token") == TokenHead(("a", "b"))
    assert network(Batch.from_ids([[7, 8]]))[1]["token"].shape == (2, 2)
    network.drop_heads()
    assert not network.heads and network.head_config("token") is None


@pytest.mark.parametrize(
    ("name", "changes", "dropout"),
    [
        ("xlnet", {"dropout": 0.3}, 0.3),
        ("bart", {"classifier_dropout": 0.2}, 0.2),
        ("mpnet", {"hidden_dropout_prob": 0.25}, 0.25),
        ("electra", {"classifier_dropout": None, "hidden_dropout_prob": 0.15}, 0.15),
    ],
)
def test_a_new_head_drops_out_as_the_config_says(name: str, changes: dict, dropout: float) -> None:
    encoder = adapt(make_other(name))
    encoder.config.update(changes)
    assert foreign_head("sequence", encoder, LABELS, "multi_label") == SequenceHead(
        LABELS, "multi_label", "tanh", dropout
    )
    assert foreign_head("token", encoder, LABELS) == TokenHead(LABELS, dropout)
    assert foreign_head("choice", encoder) == ChoiceHead("tanh", dropout)
    assert foreign_head("span", encoder) == SpanHead()
    assert foreign_head("embedding", encoder) == EmbeddingHead()


@pytest.mark.parametrize("kind", ["masked_lm", "order", "classifier"])
def test_a_kind_that_is_not_possible_is_refused(kind: str) -> None:
    words = (
        rf"^xlnet runs through the transformers adapter and can have no '{kind}' head; possible are sequence, token, "
    )
    with pytest.raises(ConfigError, match=words):
        foreign_head(kind, adapt(make_other("xlnet")), LABELS)


@pytest.mark.parametrize("head", [SequenceHead(LABELS), ChoiceHead()], ids=["sequence", "choice"])
def test_a_head_on_the_pooler_is_refused(head: HeadConfig) -> None:
    with pytest.raises(ConfigError, match=r"head reads a pooler, and .* counts on none; give .* \(dense='tanh'\)$"):
        ForeignNetwork(adapt(make_other("mpnet")), [head])


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_labels_are_needed(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"a {kind} head without labels; give at least one"):
        foreign_head(kind, adapt(make_other("xlnet")))


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ("token", r"halfpint\.json: heads is 'token'; expected a list of objects"),
        (["token"], r"halfpint\.json: heads is \['token'\]; expected a list"),
        ([{"kind": "tree"}], r"halfpint\.json: unknown head 'tree'"),
        ([{"kind": "masked_lm"}], r"halfpint\.json: xlnet runs .* can have no 'masked_lm' head"),
        ([{"kind": "token"}], r"halfpint\.json: TokenHead needs labels"),
        (
            [{"kind": "token", "labels": ["a"]}],
            r"tensor token\.classifier\.weight has shape \(3, 24\), expected \(1, 24\)",
        ),
        ([{"kind": "span"}], r"has no tensor span\.classifier\.weight \(expected: \(2, 24\)\)"),
    ],
    ids=str,
)
def test_heads_that_are_described_wrongly_are_refused(heads: Any, words: str, tmp_path: Path) -> None:
    folder = save(make_network("xlnet", "token"), tmp_path / "m")
    values = json.loads((folder / "halfpint.json").read_text())
    (folder / "halfpint.json").write_text(json.dumps({**values, "heads": heads}))
    with pytest.raises(ValueError, match=words) as caught:
        hp.load(folder)
    assert "\n" not in str(caught.value)


def test_heads_without_their_weights_are_refused(tmp_path: Path) -> None:
    folder = save(make_network("xlnet", "token"), tmp_path / "m")
    (folder / "heads.safetensors").unlink()
    with pytest.raises(ValueError, match=r"m has no heads\.safetensors, though its halfpint\.json has heads; copy"):
        hp.load(folder, verify=False)


def test_weights_of_no_head_are_told(tmp_path: Path) -> None:
    folder = save(make_network("xlnet", "token"), tmp_path / "m")
    tensors = load_file(folder / "heads.safetensors")
    save_file({**tensors, "stray": torch.ones(1)}, folder / "heads.safetensors")
    with pytest.warns(UserWarning, match="no use for stray$"):
        hp.load(folder, verify=False)
    save_file(tensors, folder / "heads.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hp.load(folder, verify=False)
