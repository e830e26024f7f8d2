"""Whatever is wrong with a folder or with what a model is given, a ValueError says what, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import halfpint as hp
from halfpint.artifact import ArtifactError, replace_folder
from halfpint.checkpoints.hub import WeightsUnavailable
from halfpint.checkpoints.write import write_network
from halfpint.config import ConfigError, EncoderConfig, ModelConfig
from halfpint.model.network import Network
from tests.artifact.processes import run
from tests.artifact.samples import beside
from tests.checkpoints.folders import edit_config, make_other, write_bert, write_tokenizer
from tests.checkpoints.foreign import CLASSES, make_foreign, save_foreign
from tests.command import assert_refused, run_command

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
QUERY = "encoder.layer.1.attention.self.query.weight"
IDS = [[5, 6, 7], [8]]


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "bert")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    make_foreign("bert", "BertModel").save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    return tmp_path / "shards"


def refusal(name: object) -> str:
    """What `load` says against a model."""
    with pytest.raises(ValueError) as caught:
        hp.load(str(name))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_says(message: str, *words: object) -> None:
    for word in words:
        assert str(word) in message, message


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Other tensors in place of some; None takes one out."""
    tensors = {**load_file(folder / WEIGHTS), **changes}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / WEIGHTS)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    values = json.loads((folder / INDEX).read_text())
    change(values["weight_map"])
    (folder / INDEX).write_text(json.dumps(values))


def test_missing_weights(bert: Path) -> None:
    (bert / WEIGHTS).unlink()
    assert_says(refusal(bert), "no weights in", bert, "expected model.safetensors, or model.safetensors.index.json")


def test_missing_config(bert: Path) -> None:
    (bert / "config.json").unlink()
    assert_says(refusal(bert), "no config.json in", bert)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model_type": "bert"', "\0"])
def test_config_that_is_no_json_object(bert: Path, text: str) -> None:
    (bert / "config.json").write_text(text)
    assert_says(refusal(bert), bert / "config.json", "JSON")


def cuts(path: Path) -> dict[str, int]:
    """Sizes to cut a safetensors file to: within the length of the header, the header, and the tensors."""
    size, header = path.stat().st_size, int.from_bytes(path.read_bytes()[:8], "little")
    return {"nothing": 0, "length": 4, "no header": 8, "header": 100, "no body": 8 + header,
            "body": (8 + header + size) // 2, "last byte": size - 1}  # fmt: skip


@pytest.mark.parametrize("cut", ["nothing", "length", "no header", "header", "no body", "body", "last byte"])
def test_truncated_weights(bert: Path, cut: str) -> None:
    path = bert / WEIGHTS
    path.write_bytes(path.read_bytes()[: cuts(path)[cut]])
    words = (path, "truncated or no safetensors file", "fetch or write it again")
    assert_says(refusal(bert), *words)
    assert_refused(run_command("profile", bert), *map(str, words))


def test_truncated_shard(sharded: Path) -> None:
    last = sorted(sharded.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert_says(refusal(sharded), last, "truncated or no safetensors file")


def test_truncated_weights_of_another_architecture(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-1])
    assert_says(refusal(tmp_path), tmp_path / WEIGHTS, "truncated or no safetensors file")


def test_what_is_no_safetensors_file(bert: Path) -> None:
    (bert / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\n")
    assert_says(refusal(bert), bert / WEIGHTS, "truncated or no safetensors file")


def test_tensor_of_the_wrong_shape(bert: Path) -> None:
    change_tensors(bert, **{QUERY: torch.zeros(24, 23)})
    words = (f"tensor {QUERY} has shape (24, 23), expected (24, 24)", "do not belong together")
    assert_says(refusal(bert), *words)


def test_tensor_of_the_wrong_shape_is_named_by_the_measuring_process_too(bert: Path) -> None:
    change_tensors(bert, **{QUERY: torch.zeros(24, 23)})
    done = run_command("profile", bert, "--measure")
    assert_refused(done, f"tensor {QUERY} has shape (24, 23), expected (24, 24)")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int8, "I8"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.int64, "I64")],
    ids=str,
)
def test_a_tensor_that_is_no_floats_is_named(bert: Path, dtype: torch.dtype, name: str) -> None:
    change_tensors(bert, **{QUERY: torch.ones(24, 24).to(dtype)})
    words = f"{bert / WEIGHTS}: tensor {QUERY} is of {name}, expected one of F64, F32, F16, BF16"
    assert_says(refusal(bert), words, "before it was quantized")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_of_every_width_are_read(bert: Path, dtype: torch.dtype) -> None:
    name = "embeddings.word_embeddings.weight"
    weight = load_file(bert / WEIGHTS)[name].to(dtype)
    change_tensors(bert, **{name: weight})
    read = hp.load(bert).module.state_dict()["encoder.embeddings.words.weight"]
    assert read.dtype == torch.float32 and torch.equal(read, weight.float())


@pytest.mark.parametrize("model_type", ["bert", "electra"])
def test_a_quantized_model_is_refused(bert: Path, model_type: str) -> None:
    edit_config(bert, model_type=model_type, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert_says(refusal(bert), f"{bert}/config.json has a quantization_config, and quantized weights are not read")


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_half_a_pooler_is_an_incomplete_one(bert: Path, part: str) -> None:
    change_tensors(bert, **{f"pooler.dense.{part}": None})
    assert_says(refusal(bert), f"has no tensor pooler.dense.{part}", "the weights are incomplete")


def test_weights_of_another_size(bert: Path) -> None:
    edit_config(bert, hidden_size=48)
    assert_says(refusal(bert), "has shape", "expected", "config.json and the weights do not belong together")


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_every_missing_tensor_is_named(family: str, class_name: str, tmp_path: Path) -> None:
    folder = save_foreign(make_foreign(family, class_name), tmp_path)
    whole = load_file(folder / WEIGHTS)
    ends = ("embeddings.weight", "LayerNorm.weight", "key.bias", "k_lin.bias", "classifier.weight", "out_proj.bias")
    chosen = [name for name in whole if name.endswith(ends)]
    for name in [*chosen[:3], chosen[-1]]:
        save_file({other: value for other, value in whole.items() if other != name}, folder / WEIGHTS)
        shape = tuple(whole[name].shape)
        assert_says(refusal(folder), f"has no tensor {name} (expected: {shape}); the weights are incomplete")


def test_missing_tensors_are_counted(bert: Path) -> None:
    change_tensors(bert, **{QUERY: None, QUERY.replace("weight", "bias"): None})
    assert_says(refusal(bert), f"no tensor {QUERY} (expected: (24, 24)), and 1 more are missing")


def test_missing_layers(bert: Path) -> None:
    edit_config(bert, num_hidden_layers=5)
    assert_says(refusal(bert), "has no tensor encoder.layer.3.", "more are missing")


@pytest.mark.parametrize("name", ["../bert/model.safetensors", "/etc/model.safetensors", "..\\model.safetensors"])
def test_index_that_points_outside(sharded: Path, name: str) -> None:
    change_index(sharded, lambda names: names.update({next(iter(names)): name}))
    assert_says(refusal(sharded), repr(name), "is no name inside", sharded)
    assert_refused(run_command("profile", sharded), "is no name inside")


def test_shard_that_is_a_link_out_of_the_folder(sharded: Path, bert: Path) -> None:
    (sharded / "model-0.safetensors").symlink_to(bert / WEIGHTS)
    change_index(sharded, lambda names: names.update({next(iter(names)): "model-0.safetensors"}))
    assert_says(refusal(sharded), "model-0.safetensors in", "is a link out of it", "is not followed")


def test_index_that_names_a_missing_shard(sharded: Path) -> None:
    first = sorted(sharded.glob("*.safetensors"))[0]
    first.unlink()
    assert_says(refusal(sharded), f"{first.name} missing from {sharded}", "fetch the folder again")


def test_index_that_names_a_pickle(sharded: Path) -> None:
    change_index(sharded, lambda names: names.update({next(iter(names)): "model.bin"}))
    assert_says(refusal(sharded), "'model.bin' as a shard; expected names of .safetensors files")


def test_index_without_a_map(sharded: Path) -> None:
    (sharded / INDEX).write_text('{"metadata": {}}')
    assert_says(refusal(sharded), INDEX, "has no weight_map")


def test_pickled_weights_are_never_opened(bert: Path) -> None:
    (bert / WEIGHTS).unlink()
    (bert / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/opened'\ntR.")
    words = ("only pickled weights (pytorch_model.bin)", "nothing pickled is opened", "convert them to safetensors")
    assert_says(refusal(bert), *words)


def test_pickled_weights_of_another_architecture_are_never_opened(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    assert_says(refusal(tmp_path), "only pickled weights (pytorch_model.bin)")


def test_tokenizer_larger_than_the_embedding(bert: Path) -> None:
    write_tokenizer(bert, num_words=41)
    assert_says(refusal(bert), bert, "the tokenizer has ids up to 40, the embedding only 40 rows")


def test_tokenizer_larger_than_another_architecture_s_embedding(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    write_tokenizer(tmp_path, num_words=41)
    assert_says(refusal(tmp_path), "the tokenizer has ids up to 40, the embedding only 40 rows")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": "1.0", "model"', b"\xff\xfe\x00"])
def test_corrupted_tokenizer(bert: Path, content: bytes) -> None:
    (bert / "tokenizer.json").write_bytes(content)
    assert_says(refusal(bert), bert / "tokenizer.json", "is not a tokenizer")


@pytest.mark.parametrize("model_type", ["no-such-family", None])
def test_unknown_architecture(bert: Path, model_type: Any) -> None:
    edit_config(bert, model_type=model_type)
    assert_says(refusal(bert), "transformers cannot open", bert)
    assert_refused(run_command("profile", bert), "transformers cannot open", str(bert))


@pytest.mark.parametrize("model_type", [7, ["bert"], {"a": 1}])
def test_an_architecture_that_is_no_name(bert: Path, model_type: Any) -> None:
    edit_config(bert, model_type=model_type)
    words = f"{bert}/config.json: model_type is {model_type!r}; expected a name such as bert"
    assert_says(refusal(bert), words)
    assert_refused(run_command("profile", bert), words)


@pytest.mark.parametrize(("typo", "nearest"), [("albrt", "'albert'"), ("robreta", "'roberta'"), ("qwzx", "")])
def test_an_unknown_architecture_is_answered_with_the_nearest(bert: Path, typo: str, nearest: str) -> None:
    edit_config(bert, model_type=typo)
    message = refusal(bert)
    assert_says(message, "transformers cannot open", bert, typo)
    assert ("did you mean" in message) == bool(nearest)
    assert_says(message, nearest)


def test_an_architecture_of_remote_code_is_not_run(bert: Path) -> None:
    (bert / "modeling.py").write_text("raise SystemExit('remote code was run')")
    edit_config(bert, model_type="own", auto_map={"AutoConfig": "modeling.C", "AutoModel": "modeling.M"})
    assert_says(refusal(bert), "transformers cannot open", bert)


@pytest.mark.parametrize(
    "field",
    ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"],
)
def test_config_without_a_needed_field(bert: Path, field: str) -> None:
    edit_config(bert, field)
    words = (f"{bert}/config.json: no '{field}'; a bert config needs it",)
    assert_says(refusal(bert), *words)
    assert_refused(run_command("profile", bert), *words)


def test_labels_with_gaps(tmp_path: Path) -> None:
    folder = write_bert(tmp_path, "BertForSequenceClassification")
    edit_config(folder, id2label={"0": "bad", "2": "good"})
    assert_says(refusal(folder), "id2label numbers its labels [0, 2]; they must be 0, 1, 2")


def test_more_labels_than_the_head_has(tmp_path: Path) -> None:
    folder = write_bert(tmp_path, "BertForSequenceClassification", num_labels=2)
    edit_config(folder, id2label={str(index): str(index) for index in range(3)})
    assert_says(refusal(folder), "tensor classifier.weight has shape (2, 24), expected (3, 24)")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Hub, and nothing in its cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


TYPOS = [("bert-bas", "bert-base"), ("tinybert4", "tinybert-4"), ("albert", "albert-base")]


@pytest.mark.parametrize(("typo", "nearest"), TYPOS)
def test_unknown_preset_is_answered_with_the_nearest(offline: None, typo: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"no preset '{typo}'; did you mean .*{nearest}"):
        hp.preset(typo)
    with pytest.raises(WeightsUnavailable, match=rf"'{typo}' is neither a folder nor a preset .did you.*{nearest}"):
        hp.load(typo)
    assert_refused(run_command("profile", typo), f"'{typo}'", nearest)


def test_a_name_like_no_preset_is_answered_with_all() -> None:
    with pytest.raises(ConfigError, match=r"the presets are bert-tiny, bert-mini, .*, minilm-12-384"):
        hp.preset("zzz")


@pytest.mark.parametrize("name", ["./nowhere", "/no/where", "~/no/where", "a/b/c"])
def test_unknown_folder(name: str) -> None:
    assert_says(refusal(name), f"there is no folder {name}; a model is a folder, a preset")
    assert_refused(run_command("profile", name), f"there is no folder {name}")


def test_a_file_is_no_model(bert: Path) -> None:
    assert_says(refusal(bert / WEIGHTS), WEIGHTS, "is a file; a model is a folder with config.json and its weights")


def test_sequence_longer_than_the_positions(bert: Path) -> None:
    model = hp.load(bert)
    assert model.max_length == 18
    assert model.encode([[5] * 18])[0].shape == (18, 24)
    with pytest.raises(
        ValueError, match="sequence of 19 tokens is longer than the encoder's 18 positions; truncate it"
    ):
        model.encode([[5] * 18, [5] * 19])


def test_nothing_to_encode(bert: Path) -> None:
    model = hp.load(bert)
    with pytest.raises(ValueError, match="an empty batch: give at least one sequence"):
        model.encode([])
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        model.encode([[5], []])
    with pytest.raises(ValueError, match="no texts: give at least one"):
        model.embed([])


def test_an_empty_text_is_embedded_by_its_special_tokens(bert: Path) -> None:
    model = hp.load(bert)
    empty = model.embed(["", "w5"])[0]
    assert np.isfinite(empty).all()
    states = model.encode([[2, 3]])[0].mean(axis=0)
    np.testing.assert_allclose(empty, states / np.linalg.norm(states), atol=1e-6)


@pytest.mark.parametrize("wrong", [-1, 40, 10**9])
def test_ids_out_of_range(bert: Path, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"token id {wrong} is outside the vocabulary of 40"):
        hp.load(bert).encode([[5, wrong]])


def test_segments_out_of_range(bert: Path) -> None:
    with pytest.raises(ValueError, match="segment 2 is outside the encoder's 2 token types"):
        hp.load(bert).encode([[5, 6]], [[0, 2]])


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """One of Halfpint's own, with hashes."""
    encoder = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20)
    with replace_folder(tmp_path / "models" / "model") as staging:
        write_network(Network(ModelConfig(encoder)), staging)
        write_tokenizer(staging)
    return tmp_path / "models" / "model"


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", "config.json"])
def test_a_flipped_byte_is_noticed(artifact: Path, name: str) -> None:
    content = bytearray((artifact / name).read_bytes())
    content[-2] ^= 1
    (artifact / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"{name}.* was changed or is incomplete: its SHA-256|not valid JSON"):
        hp.load(artifact)


def test_a_changed_file_is_taken_only_when_told_so(artifact: Path) -> None:
    write_tokenizer(artifact, num_words=30)
    assert_says(
        refusal(artifact), "tokenizer.json in", "was changed or is incomplete", "verify=False takes it as it is"
    )
    assert hp.load(artifact, verify=False).tokenizer.size == 30


# Files may grow to 20 kB; the new weights are of 24 kB and more.
TOO_LARGE = """
import resource, sys
from pathlib import Path
import torch
from halfpint.artifact import ArtifactError, replace_folder
from halfpint.checkpoints.write import write_network
from halfpint.config import EncoderConfig, ModelConfig
from halfpint.model.network import Network

encoder = EncoderConfig.uniform(vocab_size=60, hidden_size=48, num_layers=3, num_heads=2, ffn_size=20)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with replace_folder(Path(sys.argv[1]), overwrite=True) as staging:
        write_network(Network(ModelConfig(encoder)), staging)
except ArtifactError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_model(artifact: Path) -> None:
    before = hp.load(artifact).encode(IDS)
    done = run(TOO_LARGE, artifact)
    assert_says(done.stdout or done.stderr, "file too large for this disk or limit", "nothing was changed at")
    assert beside(artifact) == set()
    for old, now in zip(before, hp.load(artifact).encode(IDS), strict=True):
        np.testing.assert_array_equal(old, now)
