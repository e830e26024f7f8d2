"""`doctor` says what is here and what is missing, from this machine's own files, and needs no torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from halfpint.doctor import FOR_WHAT, Extra, diagnose, processor_facts, usable_cores
from tests.command import run_command
from tests.test_core_imports import IMPORT_WITHOUT, beyond_core


def test_a_diagnosis_is_of_this_machine() -> None:
    found = diagnose()
    assert found.python == platform.python_version()
    assert found.versions["halfpint"] == importlib.metadata.version("halfpint")
    assert found.versions["torch"] == importlib.metadata.version("torch")
    assert 1 <= found.cores == usable_cores() <= os.cpu_count()
    assert found.torch["threads"] == torch.get_num_threads()
    assert (found.torch["accelerator"] is not None) == torch.cuda.is_available()
    assert found.disk_free_gb > 0
    assert found.processor


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the kernel does not say")
def test_instruction_sets_are_those_of_the_kernel() -> None:
    flags = processor_facts().get("flags", "").split()
    instructions = diagnose().instructions
    assert ("AVX2" in instructions) == ("avx2" in flags)
    assert ("AVX-512 VNNI (int8)" in instructions) == ("avx512_vnni" in flags)


def test_extras_are_those_of_the_package_and_what_is_missing_is_really_missing() -> None:
    extras = {extra.name: extra for extra in diagnose().extras}
    provided = set(importlib.metadata.metadata("halfpint").get_all("Provides-Extra"))
    assert set(extras) == set(FOR_WHAT) == provided - {"dev"}
    installed = {each.metadata["Name"].lower() for each in importlib.metadata.distributions()}
    for extra in extras.values():
        assert not {name.lower() for name in extra.missing} & installed
    assert "torch" not in extras["train"].missing


def test_a_missing_extra_names_its_remedy() -> None:
    assert Extra("serve", "the HTTP server", ("starlette",)).remedy == "pip install 'halfpint[serve]'"
    assert Extra("serve", "the HTTP server", ()).remedy is None


def test_the_cache_is_weighed_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert (diagnose().cache, diagnose().cache_mb) == (str(tmp_path / "hub"), 0.0)
    repository = tmp_path / "hub" / "models--me--tiny"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots" / "1").mkdir(parents=True)
    (repository / "blobs" / "a").write_bytes(bytes(3_000_000))
    (repository / "snapshots" / "1" / "model.safetensors").symlink_to("../../blobs/a")
    assert diagnose().cache_mb == 3.0


def test_json_has_the_fields_of_a_diagnosis() -> None:
    done = run_command("doctor", "--json")
    assert (done.code, done.err) == (0, "")
    printed, expected = json.loads(done.out), json.loads(json.dumps(diagnose().to_dict()))
    moving = {"disk_free_gb": 0, "cache_mb": 0}
    assert {**printed, **moving} == {**expected, **moving}
    assert {extra["name"] for extra in printed["extras"]} == set(FOR_WHAT)


def test_doctor_prints_every_row() -> None:
    done = run_command("doctor")
    assert (done.code, done.err) == (0, "")
    rows = [line[:13].strip() for line in done.out.splitlines()]
    extras = [f"[{name}]" for name in FOR_WHAT]
    expected = ["installed", "processor", "instructions", "torch", "accelerator", *extras, "Hub cache"]
    assert [row for row in rows if row] == expected


def test_doctor_works_without_torch() -> None:
    script = IMPORT_WITHOUT + "\nfrom halfpint.cli import app\napp(['doctor'])\n"
    missing = ",".join(sorted(beyond_core()))
    done = subprocess.run([sys.executable, "-c", script, missing], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    printed = " ".join(done.stdout.split())
    assert "not installed: counting works, loading and training do not (pip install 'halfpint[train]')" in printed
    assert "none that torch can use" in printed


def test_doctor_tells_a_torch_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open\\nshared object file')")
    command = [sys.executable, "-m", "halfpint.cli", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    for options in ((), ("--json",)):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        told = "libtorch_cpu.so: cannot open shared object file"
        assert ("torch is installed but does not import: " * (not options) + told) in done.stdout
