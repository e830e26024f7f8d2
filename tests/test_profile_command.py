"""`halfpint profile` refuses what it would otherwise ignore, and all of a line before any of it takes long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import halfpint as hp
from halfpint.measure import profile as measuring
from halfpint.measure.cost import Cost, CostRequest
from tests.checkpoints.folders import edit_config, write_bert
from tests.command import assert_refused, run_command


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(request: CostRequest) -> Cost:
        raise AssertionError(f"{request.folder} was measured")

    monkeypatch.setattr(measuring, "measure_cost", measure)


@pytest.mark.usefixtures("nothing_is_measured")
def test_every_model_is_found_before_one_is_measured(tmp_path: Path) -> None:
    done = run_command("profile", "bert-tiny", tmp_path / "gone", "--measure")
    assert_refused(done, f"there is no folder {tmp_path / 'gone'}")


@pytest.mark.usefixtures("nothing_is_measured")
def test_every_model_is_counted_before_one_is_measured(tmp_path: Path) -> None:
    edit_config(write_bert(tmp_path), model_type="no-such-family")
    assert_refused(run_command("profile", "bert-tiny", tmp_path, "--measure"), "transformers cannot open")


@pytest.mark.parametrize(
    "option", [("--thorough",), ("--device", "cuda"), ("--device", "cpu"), ("--precision", "bf16")]
)
def test_an_option_for_measuring_is_refused_where_nothing_is_measured(option: tuple) -> None:
    words = f"{option[0]} is for measuring, and nothing is measured; add --measure, or leave it out"
    assert_refused(run_command("profile", "bert-tiny", *option), words)


def test_options_for_counting_are_used() -> None:
    done = run_command("profile", "bert-tiny", "--batch", 8, "--length", 64, "--json")
    assert json.loads(done.out) == [hp.profile("bert-tiny", batch=8, length=64).to_dict()]
