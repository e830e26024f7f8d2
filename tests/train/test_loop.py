"""The loop: it learns, it resumes to the bit, it is the same on several processes, and it fails aloud."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.data.loader import Loader
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.train.checkpoint import steps_of
from halfpint.train.failures import TrainingFailed
from halfpint.train.loop import train
from halfpint.train.settings import Settings, SettingsError
from tests.train.processes import SETTINGS, run, weights
from tests.train.samples import HEADS, LONGEST, VOCABULARY, draw_rows

ROOT = Path(__file__).parents[2]
STEPS = SETTINGS.epochs * 15
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def kill_when(process: subprocess.Popen[str], checkpoints: Path, step: int) -> None:
    """SIGKILL, as soon as a checkpoint of this step or a later one is there."""
    deadline = time.monotonic() + 60
    while not any(each >= step for each in steps_of(checkpoints)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_twice_and_resumed_the_weights_are_the_same(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.train.processes", str(tmp_path))
    for step in (4, 17):
        kill_when(start(*command), tmp_path / "checkpoints", step)
    assert not (tmp_path / "end.safetensors").exists()
    process = start(*command)
    assert process.wait() == 0, process.communicate()[1]
    torch.set_num_threads(1)
    whole, _ = run(None)
    assert equal(load_file(tmp_path / "end.safetensors"), weights(whole))


def test_two_processes_equal_one(tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29517")
    process = start(sys.executable, *launch, "-m", "tests.train.processes", str(tmp_path))
    assert process.wait() == 0, process.communicate()[1]
    alone, _ = run(None, dropout=0.0)
    ours, theirs = load_file(tmp_path / "end.safetensors"), weights(alone)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5


def test_a_run_that_was_finished_is_not_run_again(tmp_path: Path) -> None:
    network, outcome = run(tmp_path)
    again, second = run(tmp_path)
    assert (outcome.steps, second.steps) == (STEPS, 0)
    assert equal(weights(network), weights(again))
    assert second.state == outcome.state


def test_a_broken_checkpoint_is_passed_over(tmp_path: Path) -> None:
    network, _ = run(tmp_path)
    last = sorted((tmp_path / "checkpoints").iterdir())[-1]
    with (last / "model-000.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with pytest.warns(UserWarning, match=r"was changed or is incomplete.*going on from the checkpoint before it"):
        again, outcome = run(tmp_path)
    assert outcome.steps == 1
    assert equal(weights(network), weights(again))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(SettingsError, match=r"of another run: its rows is 200, not 100; give another --out"):
        run(tmp_path, num_rows=100)


def small_network(kind: str) -> Network:
    torch.manual_seed(0)
    encoder = EncoderConfig.uniform(
        vocab_size=VOCABULARY, num_layers=2, hidden_size=24, num_heads=3, ffn_size=40, num_positions=LONGEST
    )
    return Network(ModelConfig(encoder, (HEADS[kind],)))


@pytest.mark.parametrize("kind", HEADS)
def test_every_kind_of_task_is_learnt(kind: str) -> None:
    losses: list[float] = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            losses.append(event["loss"])

    loader = Loader(draw_rows(kind), rows=20)
    settings = Settings(epochs=12, batch=20, lr=3e-3)
    train(small_network(kind), [(TaskObjective(HEADS[kind]), 1.0)], loader, settings, watchers=[watch])
    assert losses[-1] < 0.5 * losses[0]


def test_the_best_evaluation_is_what_is_kept() -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def evaluate(network: Network) -> dict[str, float]:
        assert not network.training
        seen.append(weights(network))
        return {"score": [0.1, 0.9, 0.5, 0.2][len(seen) - 1]}

    network, loader = small_network("sequence"), Loader(draw_rows("sequence"), rows=50)
    settings = Settings(epochs=4, batch=50)
    outcome = train(network, [(TaskObjective(HEADS["sequence"]), 1.0)], loader, settings, evaluate=evaluate)
    assert equal(weights(network), seen[1])
    assert (outcome.state.best_step, outcome.state.best_score) == (8, 0.9)


def test_patience_ends_a_run() -> None:
    scores = iter([0.5, 0.4, 0.3, 0.9])
    network, loader = small_network("sequence"), Loader(draw_rows("sequence"), rows=50)
    settings = Settings(epochs=4, batch=50, patience=2)
    objective = (TaskObjective(HEADS["sequence"]), 1.0)
    outcome = train(network, [objective], loader, settings, evaluate=lambda _: {"score": next(scores)})
    assert outcome.steps == 12


def test_a_loss_that_is_no_number_fails(tmp_path: Path) -> None:
    network, loader = small_network("sequence"), Loader(draw_rows("sequence"), rows=50)
    with torch.no_grad():
        network.encoder.embeddings.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingFailed, match="the loss is nan at step 1; nothing was saved as a model"):
        train(network, [(TaskObjective(HEADS["sequence"]), 1.0)], loader, Settings(epochs=1, batch=50))


def test_the_callers_random_numbers_stay_as_they_were() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    network, loader = small_network("sequence"), Loader(draw_rows("sequence"), rows=100)
    torch.manual_seed(7)
    train(network, [(TaskObjective(HEADS["sequence"]), 1.0)], loader, Settings(epochs=1, batch=100))
    assert torch.equal(torch.rand(3), expected)


def test_ctrl_c_stops_between_two_steps_and_loses_nothing(tmp_path: Path) -> None:
    process = start(sys.executable, "-m", "tests.train.processes", str(tmp_path))
    while not steps_of(tmp_path / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    process.wait()
    if not (tmp_path / "end.safetensors").exists():  # else it was quicker
        assert process.returncode != 0
    torch.set_num_threads(1)
    again, _ = run(tmp_path)
    whole, _ = run(None)
    assert equal(weights(again), weights(whole))
