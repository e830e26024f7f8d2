"""`finetune`, `evaluate` and `rerun` as a user calls them: tiny random encoders, made-up words that can be learnt."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import halfpint as hp
from halfpint.data.sources import DataError
from halfpint.train.failures import TooWeak, TrainingFailed
from halfpint.train.recipe import split_changes, usual_settings
from halfpint.train.settings import SettingsError
from tests.checkpoints.folders import make_other, write_bert, write_tokenizer
from tests.command import assert_refused, run_command

TOPICS = {"sea": range(4, 12), "land": range(12, 20), "air": range(20, 28)}
"""Which words a topic is made of; all others say nothing."""
FAST: dict[str, Any] = {"epochs": 4, "batch": 16, "lr": 5e-3, "precision": "fp32", "device": "cpu"}


def draw_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        topic = rng.choice(sorted(TOPICS))
        words = [*rng.choices(TOPICS[topic], k=3), *rng.choices(range(28, 40), k=rng.randint(1, 6))]
        rng.shuffle(words)
        rows.append((" ".join(f"w{word}" for word in words), topic))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str]], names: tuple[str, str] = ("message", "topic")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    return write_bert(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "my.csv", draw_texts(300))


@pytest.fixture(scope="module")
def trained(encoder: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> hp.Finetuned:
    return hp.finetune(data, model=encoder, out=tmp_path_factory.mktemp("out") / "m", seeds=2, **FAST)


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def equal(first: Path, second: Path) -> bool:
    ours, theirs = weights(first), weights(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_csv_of_ones_own_becomes_a_model_that_predicts(encoder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "my.csv", draw_texts(300))
    options = ("--lr", "0.003", "--epochs", "8", "--batch", "8", "--device", "cpu")
    done = run_command("finetune", data, "--model", encoder, "--out", tmp_path / "m", *options)
    assert done.code == 0, done.err
    assert "accuracy" in done.out
    assert "TF-IDF" in done.out
    new = draw_texts(50, seed=1)
    answers = hp.load(tmp_path / "m").predict([text for text, _ in new])
    right = [answer["prediction"] == topic for answer, (_, topic) in zip(answers, new, strict=True)]
    assert np.mean(right) > 0.9
    assert all(abs(sum(answer[f"p({topic})"] for topic in TOPICS) - 1) < 1e-6 for answer in answers)


def test_figures_come_with_intervals_and_what_stands_beside_them(trained: hp.Finetuned) -> None:
    accuracy = trained.metrics["accuracy"]
    assert accuracy.low is not None and accuracy.low <= accuracy.mean <= accuracy.high
    assert accuracy.mean > trained.trivial["accuracy"]
    assert trained.baseline["accuracy"] > trained.trivial["accuracy"]
    assert trained.split == "test"
    assert list(trained.scores) == [0, 1]
    assert trained.notes[0] == "train 240, dev 30, test 30 rows"


def test_the_folder_holds_all_that_is_known_of_the_run(trained: hp.Finetuned) -> None:
    told = json.loads((trained.artifact / "halfpint.json").read_text())
    assert told["metrics"]["accuracy"]["mean"] == pytest.approx(trained.metrics["accuracy"].mean)
    assert told["task"]["labels"] == ["air", "land", "sea"]
    assert told["data"]["hashes"].keys() == {"train", "dev", "test"}
    assert {"run.toml", "log.jsonl", "predictions/test-seed-1.npz"} <= told["files"].keys()
    judged = np.load(trained.artifact / "predictions" / "test-seed-0.npz")
    assert judged["label"].shape == judged["prediction"].shape == (30,)
    events = [json.loads(line) for line in (trained.artifact / "log.jsonl").read_text().splitlines()]
    assert {event["seed"] for event in events} == {0, 1}
    assert not trained.artifact.with_name("m.run").exists()


def test_evaluate_says_what_training_said(encoder: Path, data: Path, tmp_path: Path) -> None:
    rows = draw_texts(300)
    folder = tmp_path / "splits"
    folder.mkdir()
    for name, part in (("train", rows[:200]), ("dev", rows[200:250]), ("test", rows[250:])):
        write_csv(folder / f"{name}.csv", part)
    done = hp.finetune(folder, model=encoder, out=tmp_path / "m", **FAST)
    found = hp.evaluate(tmp_path / "m", folder, precision="fp32", device="cpu")
    assert found.split == "test"
    assert found.metrics["accuracy"].mean == pytest.approx(done.metrics["accuracy"].mean)
    assert found.trivial["accuracy"] == pytest.approx(done.trivial["accuracy"])
    # Other names of columns are found as they are for training.
    other = write_csv(tmp_path / "other.csv", rows[250:], ("text", "label"))
    again = hp.evaluate(tmp_path / "m", other, precision="fp32", device="cpu")
    assert again.metrics["accuracy"].mean == pytest.approx(done.metrics["accuracy"].mean)


def test_evaluate_prints_json_by_the_contract(trained: hp.Finetuned, data: Path) -> None:
    done = run_command("evaluate", trained.artifact, data, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["task"] == "text"
    assert told["metrics"]["accuracy"].keys() == {"mean", "low", "high"}


def test_two_models_are_compared_on_the_same_rows(trained: hp.Finetuned, data: Path, tmp_path: Path) -> None:
    weak = tmp_path / "weak"
    hp.load(trained.artifact).save(weak, metadata=hp.load(trained.artifact).source.metadata)
    other = hp.load(weak)
    with torch.no_grad():
        other.module.heads["sequence"].classifier.weight.mul_(-1)
    done = hp.evaluate(trained.artifact, data, device="cpu", against=other)
    assert done.against is not None and done.against.metric == "accuracy"
    found, ours = done.against.difference, done.metrics["accuracy"].mean
    assert found.mean == pytest.approx(ours - hp.evaluate(other, data, device="cpu").metrics["accuracy"].mean)
    assert found.low > 0 and done.against.wins == 1
    shown = run_command("evaluate", trained.artifact, data, "--against", trained.artifact, "--device", "cpu")
    assert "accuracy against the other model: +0.0000" in shown.out


def test_models_of_different_tasks_are_not_compared(
    trained: hp.Finetuned, encoder: Path, data: Path, tmp_path: Path
) -> None:
    rows = [(text, str(len(text) % 2)) for text, _ in draw_texts(60)]
    hp.finetune(write_csv(tmp_path / "b.csv", rows), model=encoder, out=tmp_path / "b", allow_weak=True, **FAST)
    done = run_command("evaluate", trained.artifact, data, "--against", tmp_path / "b", "--device", "cpu")
    assert_refused(done, "the models were trained for different tasks", "air, land, sea", "0, 1")


def test_every_labelled_split_is_reported(encoder: Path, tmp_path: Path) -> None:
    for number, split in enumerate(("train", "dev_matched", "dev_mismatched")):
        write_csv(tmp_path / "nli" / f"{split}.csv", draw_texts(120, seed=number))
    done = hp.finetune(tmp_path / "nli", model=encoder, out=tmp_path / "m", allow_weak=True, **FAST)
    assert (done.split, list(done.others)) == ("dev", ["dev_mismatched"])
    judged = hp.evaluate(done.artifact, tmp_path / "nli", split="dev_mismatched", device="cpu", precision="fp32")
    assert judged.metrics == done.others["dev_mismatched"]
    assert (done.artifact / "predictions" / "dev_mismatched-seed-0.npz").is_file()
    told = json.loads((done.artifact / "halfpint.json").read_text())
    assert told["others"]["dev_mismatched"]["accuracy"]["mean"] == judged.metrics["accuracy"].mean


def test_checkpoints_come_in_files_of_the_size_that_is_asked(tmp_path: Path) -> None:
    write_csv(tmp_path / "my.csv", draw_texts(60))
    wide = write_bert(tmp_path / "wide", hidden_size=256, intermediate_size=256, num_attention_heads=8)
    files: list[int] = []

    def look(event: dict[str, Any]) -> None:
        found = (tmp_path / "m.run").rglob("model-*.safetensors")
        files.extend(path.stat().st_size for path in found if "staging" not in str(path))

    options = {**FAST, "epochs": 2, "set": {"checkpoint_mb": 1}, "allow_weak": True, "watchers": [look]}
    hp.finetune(tmp_path / "my.csv", model=wide, out=tmp_path / "m", **options)
    assert len(set(files)) > 1
    assert max(files) < 1_010_000  # the header of a file counts, too


def test_a_model_trained_elsewhere_is_judged_by_its_heads_labels(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert", "BertForSequenceClassification", num_labels=3)
    data = write_csv(tmp_path / "my.csv", draw_texts(40))
    found = hp.evaluate(folder, data, device="cpu", precision="fp32")
    assert 0 <= found.metrics["accuracy"].mean <= 1
    with pytest.raises(
        DataError, match=r"the data has the labels air, land, and the model's head LABEL_0, LABEL_1, LABEL_2"
    ):
        hp.evaluate(folder, [{"text": "w4", "label": "air"}, {"text": "w5", "label": "land"}], device="cpu")


def test_rerun_does_the_same_again(encoder: Path, data: Path, tmp_path: Path) -> None:
    hp.finetune(data, model=encoder, out=tmp_path / "m", set={"weight_decay": 0.1, "dropout": 0.0}, **FAST)
    again = hp.rerun(tmp_path / "m" / "run.toml", out=tmp_path / "again")
    assert again.artifact == tmp_path / "again"
    assert equal(tmp_path / "m", tmp_path / "again")
    assert_refused(run_command("rerun", tmp_path / "m" / "run.toml"), "is not empty", "--overwrite")
    assert_refused(run_command("rerun", tmp_path / "m" / "log.jsonl"), "is no TOML")


def test_killed_and_given_again_it_ends_with_the_same_model(encoder: Path, data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halfpint.cli", "finetune", str(data), "--model", str(encoder), "--seeds", "2"]
    command += ["--epochs", "6", "--batch", "16", "--lr", "0.005", "--precision", "fp32", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([*command, "--out", str(tmp_path / "m")], env=environment)
    log = tmp_path / "m.run" / "log.jsonl"
    deadline = time.monotonic() + 60
    # In the middle of the second seed, after its first epoch.
    while not (log.exists() and '"seed": 1, "event": "evaluation"' in log.read_text()):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not (tmp_path / "m").exists()
    for out in ("m", "whole"):
        subprocess.run([*command, "--out", str(tmp_path / out)], env=environment, check=True, capture_output=True)
    assert equal(tmp_path / "m", tmp_path / "whole")
    seeds = [json.loads(line)["seed"] for line in (tmp_path / "m" / "log.jsonl").read_text().splitlines()]
    assert seeds == sorted(seeds), "the first seed was trained twice"


def stop_at_second_evaluation() -> Callable[[dict[str, Any]], None]:
    """By then there is a checkpoint."""
    seen: list[Any] = []

    def watch(event: dict[str, Any]) -> None:
        seen.append(event["event"])
        if seen.count("evaluation") == 2:
            raise KeyboardInterrupt

    return watch


def test_a_run_that_has_nothing_to_lose_makes_way(encoder: Path, data: Path, tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hp.finetune(data, model=encoder, out=tmp_path / "m", watchers=[stop], **FAST)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / ".m.run.lock"])
    hp.finetune(data, model=encoder, out=tmp_path / "m", **{**FAST, "epochs": 1, "lr": 0.02})


def test_other_rows_under_the_same_name_are_another_run(encoder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "my.csv", draw_texts(120))
    with pytest.raises(KeyboardInterrupt):
        hp.finetune(data, model=encoder, out=tmp_path / "m", watchers=[stop_at_second_evaluation()], **FAST)
    write_csv(data, draw_texts(120, seed=9))
    with pytest.raises(SettingsError, match="an unfinished run on other rows: the data has changed since"):
        hp.finetune(data, model=encoder, out=tmp_path / "m", **FAST)


def test_bad_input_leaves_nothing_and_the_corrected_command_works(encoder: Path, tmp_path: Path) -> None:
    rows = draw_texts(120)
    data = write_csv(tmp_path / "my.csv", [*rows[:77], (" ", "sea"), *rows[77:]])
    command = ("finetune", data, "--model", encoder, "--out", tmp_path / "m", "--epochs", 1, "--allow-weak")
    assert_refused(run_command(*command), f"row 78 of {data} has ' ' as its message, expected a text")
    assert not (tmp_path / "m.run").exists()
    write_csv(data, rows)
    assert run_command(*command).code == 0


def test_run_toml_finds_the_data_from_anywhere(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "my.csv", draw_texts(60))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    hp.finetune("my.csv", model=os.path.relpath(encoder), out="m", allow_weak=True, **FAST)
    monkeypatch.chdir(tmp_path / "sub")
    again = hp.rerun("../m/run.toml", out="again")
    assert equal(tmp_path / "m", again.artifact)


def test_a_run_from_scratch_can_be_done_again(data: Path, tmp_path: Path) -> None:
    options = {**FAST, "from_scratch": True, "max_length": 16, "epochs": 1, "allow_weak": True, "seeds": 2}
    first = hp.finetune(data, model="bert-tiny", out=tmp_path / "first", **options)
    assert equal(tmp_path / "first", hp.rerun(tmp_path / "first" / "run.toml", out=tmp_path / "second").artifact)
    assert len(first.scores) == 2
    other = hp.finetune(data, model="bert-tiny", out=tmp_path / "other", **{**options, "seed": 7, "seeds": 1})
    drawn = [
        next(value for name, value in weights(each).items() if "word_embeddings" in name)[:20]
        for each in (tmp_path / "first", other.artifact)
    ]
    assert (drawn[0] - drawn[1]).abs().mean() > 1e-3


def test_the_documented_torchrun_command_trains_one_model(encoder: Path, data: Path, tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29531", "-m", "halfpint.cli")
    options = (
        "--model",
        encoder,
        "--epochs",
        2,
        "--batch",
        16,
        "--precision",
        "fp32",
        "--device",
        "cpu",
        "--allow-weak",
    )
    command = [sys.executable, *launch, "finetune", data, "--out", tmp_path / "m", *options, "--set", "dropout=0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the model is in") == 1
    assert run_command("finetune", data, "--out", tmp_path / "one", *options, "--set", "dropout=0").code == 0
    ours, theirs = weights(tmp_path / "m"), weights(tmp_path / "one")
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-4


def test_an_unfinished_run_of_other_settings_is_refused(encoder: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hp.finetune(data, model=encoder, out=tmp_path / "m", watchers=[stop_at_second_evaluation()], **FAST)
    with pytest.raises(SettingsError, match=r"unfinished run of other settings: its epochs is 4, not 5; give the same"):
        hp.finetune(data, model=encoder, out=tmp_path / "m", **{**FAST, "epochs": 5})
    hp.finetune(data, model=encoder, out=tmp_path / "m", overwrite=True, **{**FAST, "epochs": 1, "lr": 0.02})


def test_a_model_that_is_there_is_not_touched_without_being_told(
    trained: hp.Finetuned, encoder: Path, data: Path
) -> None:
    before = (trained.artifact / "halfpint.json").read_bytes()
    done = run_command("finetune", data, "--model", encoder, "--out", trained.artifact)
    assert_refused(done, "is not empty; give another --out, or --overwrite")
    assert (trained.artifact / "halfpint.json").read_bytes() == before


def test_what_is_no_better_than_a_constant_is_not_saved(encoder: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [(text, rng.choice(["a", "a", "a", "b"])) for text, _ in draw_texts(120)]
    data = write_csv(tmp_path / "noise.csv", rows)
    weak = {**FAST, "epochs": 1, "lr": 1e-6}
    with pytest.raises(TooWeak, match=r"no better than 0\.\d+ of an answer that never looks at the text"):
        hp.finetune(data, model=encoder, out=tmp_path / "m", **weak)
    assert not (tmp_path / "m").exists()
    # What has been trained serves --allow-weak, and other settings may be tried at once.
    trained_at = (tmp_path / "m.run" / "finished" / "seed-0.safetensors").stat().st_mtime_ns
    command = ("finetune", data, "--model", encoder, "--out", tmp_path / "m")
    done = run_command(*command, "--epochs", 1, "--lr", 1e-7, "--device", "cpu")
    assert (done.code, done.err.count("\n")) == (3, 1)
    with pytest.raises(TooWeak):
        hp.finetune(data, model=encoder, out=tmp_path / "m", **weak)
    finished = tmp_path / "m.run" / "finished" / "seed-0.safetensors"
    assert finished.stat().st_mtime_ns > trained_at
    trained_at = finished.stat().st_mtime_ns
    told: list[Any] = []
    saved = hp.finetune(data, model=encoder, out=tmp_path / "m", allow_weak=True, watchers=[told.append], **weak)
    assert told == [], "it was trained again"
    assert "no better than an answer that never looks at the text" in (saved.artifact / "README.md").read_text()


def test_a_loss_that_is_no_number_leaves_no_model(encoder: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="the loss is nan"):
        hp.finetune(data, model=encoder, out=tmp_path / "m", set={"clip": 0}, **{**FAST, "lr": 1e30})
    assert not (tmp_path / "m").exists()


def test_weights_that_are_no_numbers_are_no_model(encoder: Path, data: Path, tmp_path: Path) -> None:
    options = ("--epochs", 1, "--lr", 1e30, "--batch", 300, "--device", "cpu", "--precision", "fp32", "--set", "clip=0")
    done = run_command("finetune", data, "--model", encoder, "--out", tmp_path / "m", *options)
    assert (done.code, done.err.count("\n")) == (3, 1), done.err
    assert not (tmp_path / "m").exists() and not (tmp_path / "m.run").exists()


def test_the_rows_that_were_cut_off_are_judged_again(trained: hp.Finetuned, data: Path) -> None:
    again = hp.evaluate(trained.artifact, data, device="cpu")
    assert (again.split, again.rows) == ("test", 30)
    assert "judged are the rows that were cut off it then" in again.notes[-1]
    assert again.trivial
    seen = hp.evaluate(trained.artifact, data, split="train", device="cpu")
    assert seen.rows == 240 and "those that the model was trained on" in seen.notes[-1]
    other = hp.evaluate(trained.artifact, {"message": ["w4 w5"], "topic": ["sea"]}, device="cpu")
    assert (other.split, other.notes) == ("train", ())


def test_abstention_is_for_one_label_and_is_reported(encoder: Path, data: Path, tmp_path: Path) -> None:
    numbers = write_csv(tmp_path / "n.csv", [(text, f"{len(text) / 7}") for text, _ in draw_texts(60)])
    command = ("finetune", numbers, "--model", encoder, "--out", tmp_path / "n")
    assert_refused(run_command(*command, "--abstain", 0.9), "abstain is for tasks of one label a row")
    assert_refused(
        run_command(*command, "--class-weights", "balanced"), "class_weights is for tasks of one label a row"
    )
    done = hp.finetune(data, model=encoder, out=tmp_path / "m", abstain=0.9, allow_weak=True, **FAST)
    assert 0 < done.metrics["coverage"].mean <= 1
    assert done.metrics["answered_accuracy"].mean >= done.metrics["accuracy"].mean - 1e-9


def test_whole_numbers_are_a_regression_when_told(encoder: Path, tmp_path: Path) -> None:
    stars = write_csv(tmp_path / "stars.csv", [(text, str(len(text) % 5)) for text, _ in draw_texts(80)])
    done = hp.finetune(stars, model=encoder, out=tmp_path / "m", task="regression", allow_weak=True, **FAST)
    assert {"spearman", "pearson"} & set(done.metrics)
    classes = hp.finetune(stars, model=encoder, out=tmp_path / "c", task="classification", allow_weak=True, **FAST)
    assert "accuracy" in classes.metrics


@pytest.mark.parametrize("label", ["", "-1"])
def test_a_test_split_without_public_labels_is_not_judged(encoder: Path, tmp_path: Path, label: str) -> None:
    for split, count in (("train", 100), ("dev", 30), ("test", 30)):
        rows = draw_texts(count, seed=count)
        write_csv(
            tmp_path / "d" / f"{split}.csv", [(text, label if split == "test" else topic) for text, topic in rows]
        )
    done = hp.finetune(tmp_path / "d", model=encoder, out=tmp_path / "m", allow_weak=True, **FAST)
    assert done.split == "dev"


def test_a_preset_without_weights_names_the_ways_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = run_command("finetune", data, "--model", "bert-tiny", "--out", tmp_path / "m")
    assert_refused(done, "give a folder that holds the weights", "--from-scratch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["bert-tiny", pytest.param("albert-base", marks=pytest.mark.slow)])
def test_from_scratch_a_preset_learns_with_a_tokenizer_of_the_data(name: str, data: Path, tmp_path: Path) -> None:
    done = hp.finetune(
        data, model=name, out=tmp_path / "m", from_scratch=True, max_length=32, **{**FAST, "lr": 1e-3, "epochs": 8}
    )
    assert done.metrics["accuracy"].mean > 0.6
    model = hp.load(tmp_path / "m")
    assert model.config.encoder.vocab_size == model.tokenizer.size < 300


def test_data_of_a_program_trains_too(encoder: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(draw_texts(200), columns=["text", "label"])
    hp.finetune(frame, model=hp.load(encoder), out=tmp_path / "m", **FAST)
    with pytest.raises(SettingsError, match="of data that a Python program held"):
        hp.rerun(tmp_path / "m", out=tmp_path / "again")


def test_rare_labels_can_weigh_more_and_the_unsure_abstain(encoder: Path, data: Path, tmp_path: Path) -> None:
    done = hp.finetune(data, model=encoder, out=tmp_path / "m", class_weights="balanced", abstain=0.95, **FAST)
    told = json.loads((done.artifact / "halfpint.json").read_text())["task"]
    assert told["temperature"] != 1.0
    assert 0 <= told["abstain_below"] <= 1


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tagged(rng: random.Random) -> dict[str, Any]:
    words = [rng.randrange(4, 40) for _ in range(rng.randint(2, 8))]
    return {"tokens": [f"w{word}" for word in words], "tags": ["B-X" if word < 16 else "O" for word in words]}


def scored(rng: random.Random) -> dict[str, Any]:
    level = rng.randrange(5)
    words = [f"w{rng.randrange(26, 40)}" for _ in range(2)]
    return {"sentence1": f"{words[0]} w{5 + level}", "sentence2": f"{words[1]} w{20 + level}", "score": level + 0.25}


def chosen(rng: random.Random) -> dict[str, Any]:
    right = rng.randrange(3)
    options = [f"w{rng.randrange(20, 40)} w{'5' if index == right else '6'}" for index in range(3)]
    return {"article": "w7 w8 w9", "question": f"w{rng.randrange(10, 20)}", "options": options, "answer": right}


def asked(rng: random.Random) -> dict[str, Any]:
    words = [f"w{rng.randrange(10, 40)}" for _ in range(6)]
    place = rng.randrange(6)
    words[place] = "w5"
    start = sum(len(word) + 1 for word in words[:place])
    return {"question": "w4", "context": " ".join(words), "answers": [{"text": "w5", "answer_start": start}]}


def alike(rng: random.Random) -> dict[str, Any]:
    word = rng.randrange(4, 40)
    return {"anchor": f"w{word} w{rng.randrange(4, 40)}", "positive": f"w{word} w{word}"}


KINDS: dict[str, tuple[Callable[[random.Random], dict[str, Any]], str]] = {
    "tagging": (tagged, "f1"),
    "regression": (scored, "spearman"),
    "choice": (chosen, "accuracy"),
    "span": (asked, "f1"),
    "pairs": (alike, "mrr"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_is_found_learnt_saved_and_judged(kind: str, encoder: Path, tmp_path: Path) -> None:
    make, metric = KINDS[kind]
    rng = random.Random(0)
    data = write_jsonl(tmp_path / "data.jsonl", [make(rng) for _ in range(240)])
    settings = {**FAST, "lr": 3e-3 if kind == "regression" else 1e-2, "epochs": 8}
    done = hp.finetune(data, model=encoder, out=tmp_path / "m", max_length=18, **settings)
    reached = done.metrics[metric].mean
    assert reached > {"tagging": 0.9, "regression": 0.5, "choice": 0.7, "span": 0.6, "pairs": 0.2}[kind]
    again = hp.evaluate(tmp_path / "m", data, device="cpu", precision="fp32")
    assert again.metrics[metric].mean == pytest.approx(reached, abs=0.35)


@pytest.mark.parametrize("name", ["xlnet", "bart"])
def test_encoders_of_the_adapter_train_and_are_judged(name: str, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / name
    make_other(name).save_pretrained(folder)
    write_tokenizer(folder)
    done = hp.finetune(data, model=folder, out=tmp_path / "m", max_length=16, **FAST)
    assert done.metrics["accuracy"].mean > done.trivial["accuracy"]
    found = hp.evaluate(tmp_path / "m", data, device="cpu", precision="fp32")
    assert found.metrics["accuracy"].mean > 0.6
    with pytest.raises(
        SettingsError, match=f"{name} runs through the transformers adapter, where dropout cannot be set"
    ):
        hp.finetune(data, model=folder, out=tmp_path / "n", set={"dropout": 0.0}, **FAST)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--label", "subject"), "there is no column 'subject' for --label; the columns are message, topic"),
        (("--task", "poem"), "there is no task 'poem'; known are"),
        (("--epochs", "0"), "epochs is 0; it must be at least 1"),
        (("--set", "wieght_decay=0.1"), "did you mean weight_decay?"),
        (("--set", "lr=1"), "it has a flag: --lr"),
        (("--set", "clip"), "expected FIELD=VALUE"),
        (("--set", "clip=much"), "clip is 'much'; it must be a float"),
        (("--max-length", "99"), "max_length is 99; this encoder takes 4 to 18 tokens"),
        (("--device", "tpu"), "device is 'tpu'; give cpu, cuda or cuda:N"),
        (("--precision", "fp8"), "precision is 'fp8'; it is one of fp32, bf16"),
        (("--class-weights", "some"), "class_weights is 'some'; it is one of none, balanced"),
        (("--seeds", "0"), "seeds is 0; it must be at least 1"),
        (("--abstain", "2"), "abstain is 2.0; it is a precision above 0 and at most 1"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(
    options: tuple[str, ...], words: str, encoder: Path, data: Path, tmp_path: Path
) -> None:
    done = run_command("finetune", data, "--model", encoder, "--out", tmp_path / "m", *options)
    assert_refused(done, words)
    assert list(tmp_path.iterdir()) == []


def test_labels_that_training_never_saw_are_refused(encoder: Path, tmp_path: Path) -> None:
    rows = draw_texts(60)
    folder = tmp_path / "splits"
    folder.mkdir()
    write_csv(folder / "train.csv", rows[:50])
    write_csv(folder / "dev.csv", [*rows[50:], ("w4 w5", "space")])
    done = run_command("finetune", folder, "--model", encoder, "--out", tmp_path / "m")
    assert_refused(done, "labels that are not in train: space; known are air, land, sea")


def test_a_full_disk_loses_nothing_that_was_there(encoder: Path, data: Path, tmp_path: Path) -> None:
    command = (
        f"ulimit -f 20; exec {sys.executable} -m halfpint.cli finetune {data} --model {encoder} --out {tmp_path}/m"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "file too large" in done.stderr.lower()
    assert not (tmp_path / "m").exists()


def test_attention_dropout_goes_and_it_is_said(tmp_path: Path, data: Path) -> None:
    folder = write_bert(tmp_path / "bert", attention_probs_dropout_prob=0.1)
    done = hp.finetune(data, model=folder, out=tmp_path / "m", **FAST)
    assert any("attention dropout is 0 in training" in note for note in done.notes)
    kept = hp.finetune(data, model=folder, out=tmp_path / "n", set={"attention_dropout": "0.1"}, **FAST)
    assert not any("attention dropout" in note for note in kept.notes)


def test_small_data_is_seen_more_often_and_narrow_encoders_step_wider() -> None:
    assert usual_settings(2_500, 384, from_scratch=False) == {"epochs": 10, "batch": 32, "lr": 1e-4}
    assert usual_settings(100_000, 768, from_scratch=False)["epochs"] == 3
    assert usual_settings(100_000, 768, from_scratch=False)["lr"] == 3e-5


def test_changes_are_settings_or_fields_of_the_encoder() -> None:
    assert split_changes({"patience": "2", "dropout": "0", "schedule": "cosine"}) == (
        {"patience": 2, "schedule": "cosine"},
        {"dropout": 0.0},
    )
