"""`profile`: one set of figures, as attributes and as fields of the same names."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest

import halfpint as hp
from halfpint.checkpoints.random import write_random
from halfpint.config import EncoderConfig, ModelConfig, SequenceHead, TokenHead
from halfpint.measure.cost import Cost
from halfpint.measure.counts import Counts, count
from halfpint.presets import ALIASES, PRESETS
from tests.checkpoints.folders import write_bert

TINY = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20, num_positions=32)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> hp.Profile:
    folder = write_random(ModelConfig(TINY), tmp_path_factory.mktemp("models") / "tiny")
    return hp.profile(folder, measure=True, batch=2, length=24)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_counted_by_its_config(name: str) -> None:
    counted = hp.profile(name)
    assert counted.model == name
    assert counted.counts == count(PRESETS[name].config)
    assert counted.cost is None
    assert counted.note is None


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_its_preset(alias: str, name: str) -> None:
    assert hp.profile(alias) == hp.profile(name)


def test_every_count_is_an_attribute_and_a_field() -> None:
    counted = hp.profile("albert-base", batch=8, length=64)
    fields = counted.to_dict()
    assert set(fields) == {"model", "note"} | {each.name for each in dataclasses.fields(Counts)}
    for each in dataclasses.fields(Counts):
        assert getattr(counted, each.name) == fields[each.name]
    assert (fields["effective_parameters"], fields["batch"], fields["length"]) == (89_650_176, 8, 64)


def test_every_measured_figure_is_an_attribute_and_a_field(measured: hp.Profile) -> None:
    fields = json.loads(json.dumps(measured.to_dict()))
    names = {each.name for part in (Counts, Cost) for each in dataclasses.fields(part)}
    assert set(fields) == {"model", "note"} | names
    assert fields["throughput"]["mixed"]["median"] == measured.throughput["mixed"].median
    assert fields["latency_ms"]["p50"] == measured.latency_ms.p50
    assert (measured.batch, measured.length) == (2, 24)


def test_what_was_not_measured_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="a profile has no latency_ms; measure=True adds what is measured"):
        _ = hp.profile("bert-tiny").latency_ms


def test_what_is_no_figure_is_no_attribute(measured: hp.Profile) -> None:
    with pytest.raises(AttributeError, match=r"^a profile has no price$"):
        _ = measured.price


def test_a_profile_is_copied_and_pickled() -> None:
    counted = hp.profile("bert-tiny")
    assert copy.deepcopy(counted) == pickle.loads(pickle.dumps(counted)) == counted


def test_a_folder_is_counted_with_its_heads(tmp_path: Path) -> None:
    config = ModelConfig(TINY, (SequenceHead(("a", "b", "c")),))
    folder = write_random(config, tmp_path / "model")
    counted = hp.profile(folder, length=16)
    assert counted.model == str(folder)
    assert counted.counts == count(config, length=16)
    assert counted.parts["head"] == 3 * 24 + 3
    size = (folder / "model.safetensors").stat().st_size
    assert 0 < size - counted.bytes["fp32"] < 10_000  # the header's


def test_a_folder_without_weights_is_counted_by_its_class(tmp_path: Path) -> None:
    folder = write_bert(tmp_path, "BertForTokenClassification")
    whole = hp.profile(folder, length=16)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    counted = hp.profile(folder, length=16)
    assert counted.counts == whole.counts
    assert whole.note is None
    told = "counted without its weights: pooler and heads are those of the class that config.json names"
    assert counted.note == told
    (folder / "pytorch_model.bin").unlink()
    assert hp.profile(folder, length=16).note == told


@pytest.mark.parametrize("config", [TINY, ModelConfig(TINY, (TokenHead(("a", "b")),))], ids=["encoder", "model"])
def test_a_config_is_counted(config: EncoderConfig | ModelConfig) -> None:
    counted = hp.profile(config, length=16)
    assert counted.model == "config"
    assert counted.counts == count(config, length=16)


def test_a_config_is_measured() -> None:
    assert hp.profile(TINY, measure=True, batch=2, length=8).latency_ms.p50 > 0


def test_a_folder_in_halfpint_s_own_format_says_so(tmp_path: Path) -> None:
    config = ModelConfig(TINY.replace(num_heads=(2, 1)), (TokenHead(("a",)),))
    counted = hp.profile(write_random(config, tmp_path / "model"), length=16)
    assert counted.note == "in Halfpint's own format"
    assert counted.counts == count(config, length=16)


def test_a_folder_goes_before_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random(ModelConfig(TINY), tmp_path / "bert-base")
    monkeypatch.chdir(tmp_path)
    assert hp.profile("bert-base", length=16).counts == count(TINY, length=16)


@pytest.mark.parametrize(("length", "used"), [(511, 511), (512, 512), (513, 512), (100_000, 512)])
def test_lengths_beyond_the_positions_are_cut_and_told(length: int, used: int) -> None:
    counted = hp.profile("bert-tiny", length=length)
    assert counted.length == used
    assert counted.counts == count(PRESETS["bert-tiny"].config, length=used)
    told = f"figures are for {used} tokens, the longest text it takes, not {length}"
    assert counted.note == (told if used < length else None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be positive"),
        ({"length": 0}, "length is 0; it must be positive"),
        ({"length": 1.5}, r"length is 1\.5 \(float\); it must be a whole number"),
        ({"batch": "32"}, r"batch is '32' \(str\); it must be a whole number"),
        ({"device": "gpu"}, "device is 'gpu'; it is one of cpu, cuda"),
        ({"precision": "fp8"}, "precision is 'fp8'; it is one of fp32, bf16"),
    ],
)
def test_impossible_options_are_refused_before_any_work(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hp.profile("no-such-model", **options)


def test_fields_are_plain_values() -> None:
    fields = hp.profile("mobilebert").to_dict()
    assert json.loads(json.dumps(fields)) == fields
    assert {**asdict(hp.profile("mobilebert").counts), "model": "mobilebert", "note": None} == fields
