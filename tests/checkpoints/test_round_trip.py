"""What is read is written back bit for bit, and what is written opens in `transformers` without a remark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from safetensors.torch import load_file, save_file

from halfpint.artifact import read_artifact
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.registry import FAMILIES
from halfpint.checkpoints.write import write_network
from halfpint.config import EmbeddingHead, EncoderConfig, ModelConfig, SpanHead, TokenHead
from halfpint.model.network import Network
from tests.checkpoints.foreign import CLASSES, make_foreign, save_foreign
from tests.checkpoints.test_parity import ODD
from tests.strategies import model_configs


def same_state(one: Network, other: Network, dropped: tuple[str, ...] = ()) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    for part in dropped:
        theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith(f"encoder.{part}.")}
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def open_in_transformers(folder: Path, class_name: str):
    """The model, and what `transformers` found missing, unexpected or misshapen."""
    model, info = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
    return model, [item for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for item in info[key]]


def _both_ways(family: str, class_name: str, folder: Path, **changes) -> None:
    model = make_foreign(family, class_name, **changes)
    network = read_network(read_artifact(save_foreign(model, folder / "theirs")))
    (folder / "ours").mkdir()
    written = write_network(network, folder / "ours")
    assert written.format == family, written.reason
    again = read_network(read_artifact(folder / "ours"))
    assert again.config == network.config
    assert same_state(again, network)
    opened, complaints = open_in_transformers(folder / "ours", class_name)
    assert not complaints
    theirs = model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in opened.state_dict().items())


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_every_class_goes_both_ways(family: str, class_name: str, tmp_path: Path) -> None:
    _both_ways(family, class_name, tmp_path)


@pytest.mark.filterwarnings("ignore:.*no use for")
@pytest.mark.parametrize(("family", "changes"), ODD, ids=str)
def test_odd_members_go_both_ways(family: str, changes: dict, tmp_path: Path) -> None:
    _both_ways(family, next(iter(FAMILIES[family].classes)), tmp_path, **changes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_exactly_and_written_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_foreign("bert", "BertModel").to(dtype)
    network = read_network(read_artifact(save_foreign(model, tmp_path / "theirs")))
    assert network.encoder.pooler.weight.dtype == torch.float32
    (tmp_path / "ours").mkdir()
    write_network(network, tmp_path / "ours", dtype=dtype)
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    rewritten = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(stored[name], rewritten[name]) for name in stored)


def test_sharded_files_are_read(tmp_path: Path) -> None:
    model = make_foreign("bert", "BertForPreTraining")
    whole = read_network(read_artifact(save_foreign(model, tmp_path / "whole")))
    folder = save_foreign(model, tmp_path / "shards", max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert same_state(read_network(read_artifact(folder)), whole)


def test_gamma_and_beta_of_old_checkpoints_are_read(tmp_path: Path) -> None:
    model = make_foreign("bert", "BertForPreTraining")
    folder = save_foreign(model, tmp_path)
    whole = read_network(read_artifact(folder))
    path = folder / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    save_file(old, path, {"format": "pt"})
    assert same_state(read_network(read_artifact(folder)), whole)


def test_pretraining_heads_that_the_class_does_not_name_are_read(tmp_path: Path) -> None:
    """bert-base-uncased calls itself BertForMaskedLM and holds a pooler and a next-sentence head too."""
    folder = save_foreign(make_foreign("bert", "BertForPreTraining"), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "architectures": ["BertForMaskedLM"]}))
    network = read_network(read_artifact(folder))
    assert [head.kind for head in network.config.heads] == ["masked_lm", "order"]
    assert network.config.encoder.pooler


def test_labels_survive(tmp_path: Path) -> None:
    labels = {0: "world", 1: "sports", 2: "“odd” ü"}
    model = make_foreign("bert", "BertForSequenceClassification", num_labels=3, id2label=labels)
    network = read_network(read_artifact(save_foreign(model, tmp_path / "theirs")))
    assert network.config.head("sequence").labels == tuple(labels.values())
    (tmp_path / "ours").mkdir()
    write_network(network, tmp_path / "ours")
    opened, _ = open_in_transformers(tmp_path / "ours", "BertForSequenceClassification")
    assert opened.config.id2label == labels


@settings(max_examples=40)
@given(config=model_configs())
def test_any_config_is_written_and_read(config: ModelConfig, tmp_path_factory) -> None:
    network = Network(config)
    folder = tmp_path_factory.mktemp("any")
    written = write_network(network, folder)
    again = read_network(read_artifact(folder))
    assert again.encoder.config.sharing == network.encoder.config.sharing
    assert same_state(again, network, written.dropped)


def test_what_no_family_expresses_says_so_and_keeps_its_config(tmp_path: Path) -> None:
    encoder = EncoderConfig.uniform(
        vocab_size=40, hidden_size=24, num_layers=3, num_heads=2, ffn_size=20, sharing="attention"
    )
    config = ModelConfig(encoder, (SpanHead(no_answer=True),))
    network = Network(config)
    written = write_network(network, tmp_path)
    assert written.format == "halfpint"
    assert "albert: " in written.reason
    again = read_network(read_artifact(tmp_path))
    assert again.config == config
    assert same_state(again, network)


def test_a_pruned_encoder_is_written_as_our_own(tmp_path: Path) -> None:
    encoder = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=4, ffn_size=20)
    network = Network(ModelConfig(encoder.replace(num_heads=(3, 1), ffn_size=(7, 20)), (TokenHead(("O", "B")),)))
    assert write_network(network, tmp_path).format == "halfpint"
    assert same_state(read_network(read_artifact(tmp_path)), network)


@pytest.mark.parametrize("head", [EmbeddingHead(), EmbeddingHead("cls", normalize=False)], ids=str)
def test_pooling_is_kept_beside_a_foreign_class(head: EmbeddingHead, tmp_path: Path) -> None:
    encoder = EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=2, num_heads=4, ffn_size=20)
    network = Network(ModelConfig(encoder, (head,)))
    assert write_network(network, tmp_path).format == "bert"
    assert read_network(read_artifact(tmp_path)).config.head("embedding") == head


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "distilbert", "albert-base", "roberta-base", "mobilebert", "tinybert-4"])
def test_the_real_sizes_answer_as_transformers_or_nearer_to_float64(name: str, tmp_path: Path) -> None:
    from halfpint.model.batch import Batch
    from halfpint.presets import PRESETS

    torch.manual_seed(0)
    network = Network(ModelConfig(PRESETS[name].config)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    written = write_network(network, tmp_path)
    model, complaints = open_in_transformers(
        tmp_path, json.loads((tmp_path / "config.json").read_text())["architectures"][0]
    )
    assert written.format == PRESETS[name].family
    assert not complaints
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1000, 20000, (length,), generator=generator).tolist() for length in (40, 1, 128, 17)]
    with torch.no_grad():
        ours = network.encoder(Batch.from_ids(ids)).hidden.double()
        theirs = torch.cat([model(torch.tensor([each])).last_hidden_state[0] for each in ids]).double()
        exact = torch.cat([model.double()(torch.tensor([each])).last_hidden_state[0] for each in ids])
    scale = exact.abs().max()
    our_error, their_error = (ours - exact).abs().max() / scale, (theirs - exact).abs().max() / scale
    print(f"{name}: from float64, ours {our_error:.1e}, theirs {their_error:.1e}")
    assert (ours - theirs).abs().max() / scale < 1e-5 or our_error <= 2 * their_error
