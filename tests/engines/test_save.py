"""What `Model.save` writes is the whole model: for us, for transformers and for sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors import safe_open

import halfpint as hp
from halfpint.artifact import read_artifact
from halfpint.checkpoints.random import write_random
from halfpint.checkpoints.sentence import write_embedding_head
from halfpint.config import EmbeddingHead, EncoderConfig, ModelConfig, SequenceHead
from tests.checkpoints.folders import OTHERS, make_other, write_bert, write_tokenizer
from tests.engines.test_model import IDS, SENTENCES, assert_same

TEXTS = ["w5 w6 w7", "w9", ""]
OWN_SHAPE = EncoderConfig.uniform(
    vocab_size=40, hidden_size=24, num_layers=2, num_heads=2, ffn_size=20, num_positions=18
).replace(num_heads=(2, 1))


@pytest.fixture(scope="module")
def minilm(reference_data: Path) -> hp.Model:
    return hp.load(reference_data / "models" / "all-MiniLM-L6-v2")


@pytest.fixture(scope="module")
def saved(minilm: hp.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm.save(
        tmp_path_factory.mktemp("saved") / "minilm",
        title="A sentence encoder",
        base_model="sentence-transformers/all-MiniLM-L6-v2",
        license="apache-2.0",
        facts={"corpus": "none"},
        metadata={"seed": 3},
    )


def test_what_was_saved_embeds_the_same_to_the_bit(minilm: hp.Model, saved: Path) -> None:
    assert np.array_equal(hp.load(saved).embed(SENTENCES), minilm.embed(SENTENCES))


def test_transformers_opens_what_was_saved(minilm: hp.Model, saved: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    model = transformers.AutoModel.from_pretrained(saved).eval()
    long = "one word after another " * 60
    assert len(tokenizer(long)["input_ids"]) == 242  # its own file cut at 128
    ids = tokenizer(SENTENCES[:3])["input_ids"]
    with torch.no_grad():
        theirs = [model(torch.tensor([each])).last_hidden_state[0].numpy() for each in ids]
    assert_same(minilm.encode(ids), theirs)


def test_the_tokenizer_is_saved_without_truncation_and_padding(saved: Path) -> None:
    stored = json.loads((saved / "tokenizer.json").read_text())
    assert (stored["truncation"], stored["padding"]) == (None, None)


def test_all_that_belongs_to_it_is_there(saved: Path, reference_data: Path) -> None:
    names = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert names == {
        "config.json", "model.safetensors", "README.md", "halfpint.json", "LICENSE", "NOTICE",
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
        "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
    }  # fmt: skip
    for name in ("LICENSE", "NOTICE", "vocab.txt", "special_tokens_map.json"):
        assert (saved / name).read_bytes() == (reference_data / "models" / "all-MiniLM-L6-v2" / name).read_bytes()


def test_sentence_transformers_is_told_how_it_pools(saved: Path) -> None:
    kinds = [each["type"].rsplit(".", 1)[-1] for each in json.loads((saved / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    assert json.loads((saved / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True


def test_the_card_and_halfpint_json_say_what_was_given(saved: Path) -> None:
    card = ModelCard.load(saved / "README.md")
    assert (card.data.base_model, card.data.license) == ("sentence-transformers/all-MiniLM-L6-v2", "apache-2.0")
    assert "# A sentence encoder\n" in card.text
    assert "| corpus | none |" in card.text and "| parameters | 22,713,216 |" in card.text
    metadata = read_artifact(saved).metadata
    assert metadata["seed"] == 3
    assert metadata["written"]["format"] == "bert"
    assert {"tokenizer.json", "model.safetensors", "modules.json"} <= set(metadata["files"])


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ("---\nlicense: mit\nbase_model: org/base\n---\n# A card\n", ("mit", "org/base")),
        ("---\nlicense: [mit\n---\n", ("gpl", None)),
        ("no front matter\n", ("gpl", None)),
        ("---\n- license\n---\n", ("gpl", None)),
        ("---\nlicense:\n- mit\n- gpl\n---\n", ("gpl", None)),
    ],
    ids=["said", "broken", "without", "a list", "several"],
)
def test_licence_and_base_are_passed_on_unless_given(card: str, told: tuple, tmp_path: Path) -> None:
    write_bert(tmp_path / "old")
    (tmp_path / "old" / "README.md").write_text(card)
    model = hp.load(tmp_path / "old")
    given = {"license": "gpl"} if told[0] == "gpl" else {}
    data = ModelCard.load(model.save(tmp_path / "new", **given) / "README.md").data
    assert (data.license, data.base_model) == told
    data = ModelCard.load(model.save(tmp_path / "other", license="apache-2.0", base_model="me") / "README.md").data
    assert (data.license, data.base_model) == ("apache-2.0", "me")


def test_a_folder_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "old")
    model = hp.load(folder)
    with pytest.raises(ValueError, match=r"old is not empty; give another --out, or --overwrite \(overwrite=True\)"):
        model.save(folder)
    expected = model.embed(TEXTS)
    assert np.array_equal(hp.load(model.save(folder, overwrite=True)).embed(TEXTS), expected)


def test_packed_weights_are_not_saved_and_nothing_is_left(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path / "old")).pack()
    with pytest.raises(ValueError, match="packed weights cannot be saved; load the model again"):
        model.save(tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"old"}


def test_a_classifier_keeps_its_head_and_gets_no_pooling(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path / "old", "BertForSequenceClassification"))
    again = hp.load(model.save(tmp_path / "new"))
    assert again.config == model.config
    assert np.array_equal(again.logits(IDS), model.logits(IDS))
    assert not (tmp_path / "new" / "modules.json").exists()


@pytest.mark.parametrize("embedding", [EmbeddingHead("cls"), EmbeddingHead("mean", normalize=False)], ids=str)
@pytest.mark.parametrize("kind", ["encoder", "classifier", "own"])
def test_pooling_that_is_not_the_usual_is_kept(kind: str, embedding: EmbeddingHead, tmp_path: Path) -> None:
    if kind == "own":
        folder = write_random(ModelConfig(OWN_SHAPE, (SequenceHead(("a", "b")),)), tmp_path / "old")
        tokenizer = hp.load(write_bert(tmp_path / "bert")).tokenizer
    else:
        folder = write_bert(tmp_path / "old", "BertModel" if kind == "encoder" else "BertForSequenceClassification")
        tokenizer = hp.load(folder).tokenizer
    model = hp.Model(hp.load(folder).module, tokenizer, embedding)
    again = hp.load(model.save(tmp_path / "new"))
    assert again.embedding == embedding
    assert np.array_equal(again.embed(TEXTS), model.embed(TEXTS))


def test_a_vocabulary_that_says_something_else_is_not_copied(tmp_path: Path) -> None:
    write_bert(tmp_path / "old")
    (tmp_path / "old" / "vocab.txt").write_text("[PAD]\n")
    model = hp.load(tmp_path / "old")
    assert (model.save(tmp_path / "same") / "vocab.txt").exists()
    model.tokenizer.backend.add_tokens(["w5w6"])
    changed = model.save(tmp_path / "changed")
    assert not (changed / "vocab.txt").exists()
    assert "w5w6" in (changed / "tokenizer.json").read_text()


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_of_the_adapter_is_saved_and_opened_again(name: str, tmp_path: Path) -> None:
    make_other(name).save_pretrained(tmp_path / "old")
    write_tokenizer(tmp_path / "old")
    model = hp.load(tmp_path / "old")
    folder = model.save(tmp_path / "new")
    assert np.array_equal(hp.load(folder).embed(TEXTS), model.embed(TEXTS))
    opened = transformers.AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    encoder = opened.get_encoder() if name == "bart" else opened
    with torch.no_grad():
        assert_same(model.encode(IDS[:1]), [encoder(torch.tensor(IDS[:1])).last_hidden_state[0].numpy()])
    assert (folder / "README.md").is_file() and (folder / "halfpint.json").is_file()


def test_a_pooler_of_random_numbers_is_not_saved_as_a_trained_one(tmp_path: Path) -> None:
    make_other("mpnet").save_pretrained(tmp_path / "old")
    with safe_open(tmp_path / "old" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("pooler.")}  # noqa: SIM118
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "old" / "model.safetensors", {"format": "pt"})
    folder = hp.load(tmp_path / "old").save(tmp_path / "new")
    assert not hp.load(folder).encoder.pools


def test_the_adapter_s_pooling_is_kept(tmp_path: Path) -> None:
    make_other("mpnet").save_pretrained(tmp_path / "old")
    write_tokenizer(tmp_path / "old")
    write_embedding_head(tmp_path / "old", EmbeddingHead("cls", normalize=False), OWN_SHAPE)
    model = hp.load(tmp_path / "old")
    again = hp.load(model.save(tmp_path / "new"))
    assert again.embedding == EmbeddingHead("cls", normalize=False)
    assert np.array_equal(again.embed(TEXTS), model.embed(TEXTS))


def test_a_source_that_is_gone_is_told(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path / "old"))
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(ValueError, match="old, the folder that this model was loaded from, is gone"):
        model.save(tmp_path / "new")


def test_files_are_added_by_their_names_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("{}")
    model = hp.load(write_bert(tmp_path / "old"))
    folder = model.save(tmp_path / "new", files={"runs/scores.json": tmp_path / "scores.json"})
    assert (folder / "runs" / "scores.json").read_text() == "{}"
    assert "runs/scores.json" in read_artifact(folder).metadata["files"]


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("../evil", "here", r"'\.\./evil' is no name inside"),
        ("/evil", "here", "'/evil' is no name inside"),
        *((name, "here", f"files has '{name}', which the model itself writes") for name in (
            "config.json", "./config.json", "model.safetensors", "README.md", "halfpint.json"
        )),
        ("mine", "nowhere", "files has '.*nowhere' for 'mine', and there is no such file"),
    ],
)  # fmt: skip
def test_files_stay_in_the_folder_and_replace_nothing(name: str, source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    model = hp.load(write_bert(tmp_path / "old"))
    with pytest.raises(ValueError, match=words):
        model.save(tmp_path / "new", files={name: tmp_path / source})
    assert {path.name for path in tmp_path.iterdir()} == {"here", "old"}


@pytest.mark.parametrize("out", [None, 3, b"model"], ids=str)
def test_what_is_no_path_is_refused(out: object, tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path))
    with pytest.raises(ValueError, match=rf"the folder to save in is {out!r} \({type(out).__name__}\); give its path"):
        model.save(out)
