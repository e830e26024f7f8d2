"""The command line: its contract, its exit codes, and what it prints."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from rich.console import Console

import halfpint as hp
from halfpint.checkpoints.random import write_random
from halfpint.cli import frame
from halfpint.cli.frame import TimeLeft, app
from halfpint.config import EncoderConfig, ModelConfig
from tests.checkpoints.folders import make_other, write_bert
from tests.command import assert_refused, run_command

TINY = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20, num_positions=32)

# Names and flags stay; more may come, and come into this list.
CONTRACT = {
    "profile": {"MODEL…", "--measure", "--batch", "--length", "--device", "--precision", "--thorough", "--json"},
    "doctor": {"--json"},
    "finetune": {
        "DATA", "--model", "--out", "--task", "--text", "--label", "--pair", "--columns", "--seeds", "--seed",
        "--epochs", "--batch", "--lr", "--max-length", "--device", "--precision", "--from-scratch", "--class-weights",
        "--abstain", "--set", "--allow-weak", "--overwrite", "--tensorboard", "--json",
    },
    "evaluate": {
        "ARTIFACT", "DATA", "--against", "--split", "--task", "--text", "--label", "--pair", "--columns",
        "--max-length", "--device", "--precision", "--json",
    },
    "predict": {
        "ARTIFACT", "FILE", "--out", "--columns", "--text", "--pair", "--device", "--precision", "--skip-bad", "--glue",
        "--overwrite", "--json",
    },
    "embed": {
        "ARTIFACT", "FILE", "--out", "--columns", "--text", "--device", "--precision", "--skip-bad", "--overwrite",
        "--json",
    },
    "search": {
        "ARTIFACT", "CORPUS", "[QUERY…]", "-k", "--columns", "--text", "--device", "--precision", "--json",
    },
    "rerun": {"RUN.TOML", "--out", "--overwrite", "--json"},
}  # fmt: skip


def parameters(command: object) -> set[str]:
    return {
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
        for parameter in command.params
    }


def test_commands_and_flags_are_the_contract() -> None:
    commands = typer.main.get_command(app).commands
    assert {name: parameters(command) - {"--help"} for name, command in commands.items()} == CONTRACT


def test_help_lists_the_commands() -> None:
    done = run_command("--help")
    assert done.code == 0
    assert done.out.startswith("Usage: ")
    assert "Full-strength text encoders, half-pint size." in done.out
    for name in CONTRACT:
        assert f"\n  {name} " in done.out


@pytest.mark.parametrize("name", CONTRACT)
def test_help_of_a_command_lists_its_flags(name: str) -> None:
    done = run_command(name, "--help")
    assert done.code == 0
    for flag in CONTRACT[name]:
        assert flag in done.out


def test_the_version_is_printed() -> None:
    done = run_command("--version")
    assert (done.code, done.out, done.err) == (0, f"halfpint {hp.__version__}\n", "")


def test_without_a_command_there_is_help() -> None:
    done = run_command()
    assert done.code == 2
    assert "doctor" in done.out + done.err


@pytest.mark.parametrize(
    "arguments",
    [("profil",), ("profile",), ("profile", "bert-tiny", "--lenght", 3), ("profile", "bert-tiny", "--batch", "many")],
    ids=str,
)
def test_what_cannot_be_parsed_ends_with_2(arguments: tuple) -> None:
    done = run_command(*arguments)
    assert_refused(done, "--help")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", 0), "batch is 0; it must be positive"),
        (("--length", -5), "length is -5; it must be positive"),
        (("--device", "tpu"), "device is 'tpu'; it is one of cpu, cuda"),
        (("", "--length", 8), "the name of the model is empty"),
        (("--precision", "int3"), "precision is 'int3'; it is one of fp32, bf16"),
    ],
    ids=str,
)
def test_impossible_options_end_with_2_and_a_line(options: tuple, message: str) -> None:
    assert_refused(run_command("profile", "bert-tiny", *options), message)


def test_a_missing_accelerator_is_said_by_the_measuring_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run_command("profile", "bert-tiny", "--measure", "--device", "cuda")
    assert_refused(done, "device is 'cuda', and torch finds no CUDA device here; give cpu")


def test_a_measurement_that_broke_ends_with_1_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_command("profile", "bert-tiny", "--measure")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "failed: RuntimeError: a broken installation" in done.err


def test_one_bad_name_among_good_ones_is_refused(tmp_path: Path) -> None:
    assert_refused(run_command("profile", "bert-tiny", tmp_path / "gone"), f"there is no folder {tmp_path / 'gone'}")


def test_profile_prints_a_table() -> None:
    done = run_command("profile", "bert-base", "albert-base", "--length", 64, "--batch", 8)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["bert-base", "albert-base"]
    rows = {line[:18].strip(): line[18:].split() for line in lines}
    assert rows["parameters stored"] == ["109,482,240", "11,683,584"]
    assert rows["effective"] == ["109,482,240", "89,650,176"]
    assert "one text of 64 tokens; training step: activations of 8 such texts" in " ".join(done.out.split())


def test_five_models_fit_a_terminal_of_eighty_columns() -> None:
    names = ["bert-base", "distilbert", "albert-base", "tinybert-4", "mobilebert"]
    done = run_command("profile", *names)
    assert done.out.splitlines()[0].split() == names
    assert max(map(len, done.out.splitlines())) <= 80


def test_more_models_are_printed_below_and_no_figure_is_folded() -> None:
    lines = run_command("profile", *hp.PRESETS).out.splitlines()
    heads = [index - 1 for index, line in enumerate(lines) if line.startswith("parameters stored")]
    assert len(heads) > 1
    assert [name for index in heads for name in lines[index].split()] == list(hp.PRESETS)
    stored = [figure for index in heads for figure in lines[index + 1].split()[2:]]
    assert stored == [f"{hp.profile(name).stored_parameters:,}" for name in hp.PRESETS]
    assert max(map(len, lines)) <= 80


def test_profile_prints_json_in_the_order_asked(tmp_path: Path) -> None:
    folder = write_random(ModelConfig(TINY), tmp_path / "model")
    names = ["tinybert-4", str(folder), "bert-tiny"]
    done = run_command("profile", *names, "--json", "--length", 20)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == [hp.profile(name, length=20).to_dict() for name in names]


def test_profile_measures(tmp_path: Path) -> None:
    folder = write_random(ModelConfig(TINY), tmp_path / "m")
    done = run_command("profile", folder, "--measure", "--batch", 2, "--length", 100)
    assert (done.code, done.err) == (0, "")
    rows = [line[:18].strip() for line in done.out.splitlines()]
    measured = ["load, ms", "RAM, MB", "latency p50, ms", "p90", "texts/s, 16", "texts/s, 32", "texts/s, mixed"]
    assert [row for row in rows if row in measured] == measured
    assert "p99" not in done.out
    assert "one text of 32 tokens" in done.out


def test_lengths_beyond_the_positions_are_cut_and_told(tmp_path: Path) -> None:
    folder = write_random(ModelConfig(TINY), tmp_path / "model")
    done = run_command("profile", "bert-tiny", folder, "--length", 100)
    printed = " ".join(done.out.split())
    assert "one text of 100 tokens" in printed
    assert f"{folder}: figures are for 32 tokens, the longest text it takes, not 100" in printed
    assert "bert-tiny: figures" not in printed


def test_a_foreign_architecture_is_profiled_with_a_note(tmp_path: Path) -> None:
    make_other("bart").save_pretrained(tmp_path)
    done = run_command("profile", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "through the transformers adapter: the architecture 'bart'" in " ".join(done.out.split())


@pytest.mark.parametrize("name", ["[red]x", "[", "[/]", "x[/red]", ":smile:", "[bold]y\\"])
def test_a_name_that_looks_like_markup_is_printed_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bert(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    done = run_command("profile", name)
    assert done.code == 0
    assert done.out.splitlines()[0].strip() == name
    assert f"{name}: figures are for 18 tokens" in done.out


def test_a_bad_name_that_looks_like_markup_is_printed_as_it_is() -> None:
    assert_refused(run_command("profile", "[red]x[/]"), "'[red]x[/]'")


def is_alive(process: str) -> bool:
    """Whether it still runs; one that is dead and was not yet buried does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def measuring(scratch: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command whose measuring process runs already, and the number of that; it must be gone at the end."""
    command = [sys.executable, "-m", "halfpint.cli", "profile", "bert-tiny", "--measure"]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not children.read_text().split():
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    (child,) = children.read_text().split()
    yield running, child
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")


# The user presses Ctrl-C: the signal goes to all processes of the terminal.
@needs_proc
def test_interrupted_ends_with_130_and_leaves_nothing_running(tmp_path: Path) -> None:
    with measuring(tmp_path) as (running, _):
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted\n")
    assert not list(tmp_path.glob("halfpint-*"))


# A supervisor ends the command alone.
@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_ended_it_takes_the_measuring_process_and_the_weights_with_it(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with measuring(tmp_path) as (running, _):
        assert list(tmp_path.glob("halfpint-*/bert-tiny/model.safetensors"))
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (code, "", "")
    assert not list(tmp_path.glob("halfpint-*"))


# Files may grow to 20 kB.
FULL = """
import resource
from halfpint.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main()
"""


def test_a_full_temporary_folder_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, "profile", "bert-tiny", "--measure"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"halfpint: random weights of bert-tiny cannot be written to {tmp_path}: ")
    assert done.stderr.endswith("free some space there, or set TMPDIR to a place that has some\n")


def test_the_time_left_is_an_estimate_until_the_first_is_done() -> None:
    column = TimeLeft(15)
    assert column.seconds_left(total=4, done=0, elapsed=10) == 50
    assert column.seconds_left(total=4, done=0, elapsed=100) == 0
    assert column.seconds_left(total=4, done=1, elapsed=30) == 90
    assert column.seconds_left(total=4, done=1, elapsed=40) == 80
    assert column.seconds_left(total=4, done=4, elapsed=200) == 0


def test_a_measurement_shows_how_far_it_is_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(frame, "err", Console(file=screen, force_terminal=True, width=120))
    with frame.show_progress(15) as progress:
        task = progress.add_task("measuring bert-tiny", total=4, completed=1)
        progress.refresh()
        progress.advance(task)
    assert "measuring bert-tiny" in screen.getvalue()
    assert "1/4" in screen.getvalue()
    assert re.search(r"about \d+ s left", screen.getvalue())


def test_the_installed_command_is_this_one() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("halfpint"), "profile", "bert-tiny", "--batch", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "halfpint: batch is 0; it must be positive\n")
