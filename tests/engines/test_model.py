"""What `load` returns: it answers alone as in company, sets lengths itself, and says what it lacks."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import halfpint as hp
from halfpint.engines import model as engine
from tests.checkpoints.folders import make_other, write_bert
from tests.checkpoints.foreign import make_foreign, save_foreign

IDS = [[2, 5, 6, 7, 3], [8], [2, 9, 10, 3], list(range(4, 22)), [11, 12]]
SEGMENTS = [[0, 0, 0, 1, 1], [1], [0, 0, 1, 1], [0] * 18, [0, 1]]

SENTENCES = [
    "A small boat crossed the bay before sunrise.",
    "The recipe asks for two eggs and a cup of flour.",
    "Interest rates were left unchanged for the third month.",
    "She repaired the old radio with parts from a toaster.",
    "Is there a train to the coast on Sundays?",
    "The goalkeeper saved two penalties in the final.",
    "Rain.",
    "Astronomers found a planet that orbits two stars.",
    "My neighbour's cat sleeps on our roof every afternoon.",
    "Version 2.0 fixes 17 bugs, among them the crash at start-up!",
    "The museum is closed while the roof is being renewed.",
    "He could not remember where he had parked the car, so he walked home and looked for it the next day.",
    "Prices for copper fell by 3.5 % in early trading.",
    "Die Brücke über den Fluß wird im Frühjahr geöffnet.",
    "naïve café déjà-vu",
    "What a strange, wonderful, and slightly ridiculous idea :-)",
    "The committee will vote on the proposal tomorrow.",
    "Bees can tell flowers apart by their electric fields.",
    "東京 is the capital of Japan.",
    "",
]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


@pytest.fixture
def bert(tmp_path: Path) -> hp.Model:
    return hp.load(write_bert(tmp_path))


def test_a_model_says_what_it_is(bert: hp.Model) -> None:
    assert isinstance(bert.config, hp.ModelConfig)
    assert (bert.config.encoder.hidden_size, bert.config.heads) == (24, ())
    assert bert.max_length == 18
    assert isinstance(bert.module, torch.nn.Module)
    assert bert.encoder is bert.module.encoder
    assert not bert.module.training


def test_a_model_of_the_adapter_has_no_config_of_ours(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    model = hp.load(tmp_path)
    assert model.config is None
    assert model.max_length == 18
    assert model.encoder is model.module.encoder


def test_states_come_one_array_a_sequence_in_the_order_given(bert: hp.Model) -> None:
    states = bert.encode(IDS)
    assert [each.shape for each in states] == [(len(ids), 24) for ids in IDS]
    assert all(each.dtype == np.float32 for each in states)
    assert_same(states, [bert.encode([ids])[0] for ids in IDS])
    assert_same(states[::-1], bert.encode(IDS[::-1]))


@pytest.mark.parametrize("tokens", [1, 6, 18, 1000])
def test_groups_of_any_size_give_the_same(bert: hp.Model, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    expected = bert.encode(IDS, SEGMENTS)
    monkeypatch.setitem(engine.TOKENS_AT_ONCE, "cpu", tokens)
    assert_same(bert.encode(IDS, SEGMENTS), expected)


@pytest.mark.parametrize("tokens", [1, 6, 18, 1000])
def test_every_sequence_is_in_one_group_and_groups_are_bounded(tokens: int) -> None:
    groups = list(engine._groups(IDS, tokens))
    assert sorted(index for group in groups for index in group) == list(range(len(IDS)))
    assert all(len(group) == 1 or sum(len(IDS[index]) for index in group) <= tokens for group in groups)


def test_segments_are_used(bert: hp.Model) -> None:
    with_them, without = bert.encode(IDS, SEGMENTS), bert.encode(IDS)
    assert_same([with_them[3]], [without[3]])  # the one whose segments are all zero
    assert np.abs(with_them[0] - without[0]).max() > 1e-3


def test_calls_leave_no_trace(bert: hp.Model) -> None:
    expected = bert.encode(IDS)
    bert.module.train()
    bert.encoder.embeddings.eval()  # a part that is frozen
    before = [part.training for part in bert.module.modules()]
    assert_same(bert.encode(IDS), expected, 0)  # dropout must not touch what a call answers
    bert.embed(["w5"])
    with pytest.raises(ValueError, match="token id 40"):
        bert.encode([[5], [40]])
    assert [part.training for part in bert.module.modules()] == before
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_gradients_are_had_from_the_module(bert: hp.Model) -> None:
    from halfpint.model.batch import Batch

    bert.encode(IDS)
    output, _ = bert.module(Batch.from_ids(IDS))
    output.hidden.sum().backward()
    assert bert.module.encoder.embeddings.words.weight.grad is not None


@pytest.mark.parametrize(
    ("class_name", "kind", "shapes"),
    [
        ("BertForSequenceClassification", "sequence", [(5,)] * 5),
        ("BertForTokenClassification", "token", [(len(ids), 5) for ids in IDS]),
        ("BertForQuestionAnswering", "span", [(len(ids), 2) for ids in IDS]),
        ("BertForMaskedLM", "masked_lm", [(len(ids), 40) for ids in IDS]),
        ("BertForMultipleChoice", "choice", [()] * 5),
    ],
)
def test_logits_come_one_array_a_sequence(class_name: str, kind: str, shapes: list, tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path, class_name))
    logits = model.logits(IDS, SEGMENTS)
    assert [each.shape for each in logits] == shapes
    assert_same(logits, [model.logits([ids], [types])[0] for ids, types in zip(IDS, SEGMENTS, strict=True)])
    assert_same(model.logits(IDS, SEGMENTS, head=kind), logits)


def test_logits_of_a_token_head_where_sequences_are_as_many_as_tokens(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path, "BertForTokenClassification"))
    assert [each.shape for each in model.logits([[5], [6]])] == [(1, 5), (1, 5)]
    model = hp.load(write_bert(tmp_path, "BertForSequenceClassification"))
    assert [each.shape for each in model.logits([[5], [6]])] == [(5,), (5,)]


def test_logits_equal_transformers(tmp_path: Path) -> None:
    theirs = make_foreign("bert", "BertForSequenceClassification")
    ours = hp.load(save_foreign(theirs, tmp_path)).logits(IDS, SEGMENTS)
    with torch.no_grad():
        expected = [
            theirs(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].numpy()
            for ids, types in zip(IDS, SEGMENTS, strict=True)
        ]
    assert_same(ours, expected)


def test_a_head_is_chosen_by_its_kind(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path, "BertForPreTraining"))
    assert [each.shape for each in model.logits(IDS[:2], head="order")] == [(2,), (2,)]
    assert [each.shape for each in model.logits(IDS[:2], head="masked_lm")] == [(5, 40), (1, 40)]
    with pytest.raises(ValueError, match=r"no token head \(it has: masked_lm, order\)"):
        model.logits(IDS, head="token")


def test_of_several_heads_none_is_picked_unasked(tmp_path: Path) -> None:
    model = hp.load(write_bert(tmp_path, "BertForPreTraining"))
    with pytest.raises(ValueError, match=r"several heads \(masked_lm, order\); say which: head='masked_lm', for one"):
        model.logits(IDS)


def test_without_a_head_there_are_no_logits(bert: hp.Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"this model has no head \(it has: only the encoder\)"):
        bert.logits(IDS)
    make_other("mpnet").save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"this model has no head \(it has: only the encoder\)"):
        hp.load(tmp_path / "other").logits(IDS)


def test_texts_are_the_mean_of_their_states_at_length_one(bert: hp.Model) -> None:
    vectors = bert.embed(["w5 w6 w7", "w9 w10"])
    assert (vectors.shape, vectors.dtype) == ((2, 24), np.float32)
    means = [states.mean(axis=0) for states in bert.encode([[2, 5, 6, 7, 3], [2, 9, 10, 3]])]
    assert_same(list(vectors), [mean / np.linalg.norm(mean) for mean in means])


@pytest.mark.parametrize("newer", [False, True], ids=["by flags", "by name (5.2)"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_folder_of_sentence_transformers_pools_as_it_says(
    pooling: str, normalize: bool, newer: bool, tmp_path: Path
) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": paths[index], "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    flags = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean",
             "pooling_mode_max_tokens": False, "include_prompt": True}  # fmt: skip
    write_bert(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    settings = {"pooling_mode": pooling, "include_prompt": True} if newer else flags
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **settings}))
    model = hp.load(tmp_path)
    states = model.encode([[2, 5, 6, 3]])[0]
    vector = states[0] if pooling == "cls" else states.mean(axis=0)
    assert_same(list(model.embed(["w5 w6"])), [vector / np.linalg.norm(vector) if normalize else vector])


def test_a_pooling_that_is_not_known_is_refused(tmp_path: Path) -> None:
    write_bert(tmp_path)
    modules = [{"idx": 0, "name": "0", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ValueError, match="pools by pooling_mode_max_tokens; known are pooling_mode_mean_tokens"):
        hp.load(tmp_path)


def test_a_tokenizer_s_own_truncation_and_padding_are_ignored(tmp_path: Path) -> None:
    write_bert(tmp_path)
    own = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    own.enable_truncation(4)
    own.enable_padding(length=10)
    own.save(str(tmp_path / "tokenizer.json"))
    model = hp.load(tmp_path)
    assert model.tokenizer(["w5 w6 w7 w8 w9"], 18).ids == [[2, 5, 6, 7, 8, 9, 3]]
    mean = model.encode([[2, 5, 6, 7, 8, 9, 3]])[0].mean(axis=0)
    assert_same(list(model.embed(["w5 w6 w7 w8 w9"])), [mean / np.linalg.norm(mean)])


def test_pairs_have_segments(bert: hp.Model) -> None:
    tokenized = bert.tokenizer([("w5", "w6 w7")], 18)
    assert (tokenized.ids, tokenized.segments) == ([[2, 5, 3, 6, 7, 3]], [[0, 0, 0, 1, 1, 1]])


def test_cut_texts_are_counted_and_told(bert: hp.Model) -> None:
    long = " ".join(["w5"] * 17)
    with pytest.warns(UserWarning, match="1 of 2 texts have more than 18 tokens and were cut"):
        vectors = bert.embed([long, "w6"])
    mean = bert.encode([[2, *[5] * 16, 3]])[0].mean(axis=0)
    assert_same([vectors[0]], [mean / np.linalg.norm(mean)])


def test_texts_that_just_fit_are_not_told(bert: hp.Model, recwarn: pytest.WarningsRecorder) -> None:
    bert.embed([" ".join(["w5"] * 16)])
    assert not recwarn.list


def test_a_tokenizer_s_size_is_one_more_than_its_largest_id(bert: hp.Model) -> None:
    assert bert.tokenizer.size == 40
    bert.tokenizer.backend.add_tokens(["new"])
    assert bert.tokenizer.size == 41


def test_what_is_no_list_of_texts_is_refused(bert: hp.Model) -> None:
    with pytest.raises(
        ValueError, match="embed takes a list of texts, and was given a str; put the one text in a list"
    ):
        bert.embed("w5 w6")
    with pytest.raises(ValueError, match="text 1 is nan, a float; embed takes strings"):
        bert.embed(["w5", float("nan")])


def test_texts_where_ids_belong_are_sent_to_embed(bert: hp.Model) -> None:
    with pytest.raises(ValueError, match="takes token ids, one list a sequence; texts go to embed"):
        bert.encode(["w5 w6"])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], r"ids are \[1, 2\]; give one list of whole numbers a sequence"),
        (None, "ids are None; give one list"),
        ([[None]], r"ids hold None \(NoneType\); give whole numbers"),
        ([[10**30]], r"ids hold 10{30} \(int\); give whole numbers of 64 bits at most"),
        ([[1.5, 2]], r"ids hold 1\.5 \(float\); give whole numbers"),
        ([[5], []], "sequence 1 is empty"),
    ],
    ids=str,
)
def test_ids_that_are_none_are_refused(bert: hp.Model, ids: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bert.encode(ids)


def test_half_a_character_is_refused(bert: hp.Model) -> None:
    with pytest.raises(ValueError, match=r"text 1 has half a character, '\\ud800', at 2; read the text as UTF-8"):
        bert.embed(["w5", "w6\ud800"])


@pytest.mark.parametrize("segments", [[], SEGMENTS[:-1], [*SEGMENTS, [0]]], ids=["none", "too few", "too many"])
def test_segments_for_other_sequences_are_refused(bert: hp.Model, segments: list) -> None:
    with pytest.raises(ValueError, match=rf"{len(segments)} lists of segments for 5 sequences"):
        bert.encode(IDS, segments)


def test_segments_of_another_length_are_refused(bert: hp.Model) -> None:
    with pytest.raises(ValueError, match="segments must have the same lengths as ids"):
        bert.encode([[5, 6]], [[0]])


def test_without_a_tokenizer_there_are_only_ids(tmp_path: Path) -> None:
    model = hp.load(save_foreign(make_foreign("bert", "BertModel"), tmp_path))
    assert model.tokenizer is None
    with pytest.raises(ValueError, match=r"no tokenizer\.json, so it takes ids \(encode\), not texts"):
        model.embed(["w5"])


def test_a_model_loads_and_answers_in_bf16(tmp_path: Path) -> None:
    folder = write_bert(tmp_path)
    half, full = hp.load(folder, dtype=torch.bfloat16), hp.load(folder)
    assert {parameter.dtype for parameter in half.module.parameters()} == {torch.bfloat16}
    assert_same(half.encode(IDS), full.encode(IDS), tolerance=0.05)
    assert half.embed(["w5 w6"]).dtype == np.float32
    assert_same(full.to(dtype=torch.bfloat16).encode(IDS), half.encode(IDS))


def test_packed_weights_answer_the_same_and_stay_where_they_are(tmp_path: Path) -> None:
    folder = write_bert(tmp_path, "BertForSequenceClassification")
    packed, plain = hp.load(folder).pack(), hp.load(folder)
    assert_same(packed.encode(IDS), plain.encode(IDS))
    assert_same(packed.logits(IDS), plain.logits(IDS))
    with pytest.raises(ValueError, match="packed weights cannot be moved or cast; load the model again"):
        packed.to(dtype=torch.bfloat16)


def test_arrays_of_numpy_are_ids_too(bert: hp.Model) -> None:
    assert_same(bert.encode(np.array([[5, 6], [7, 8]])), bert.encode([[5, 6], [7, 8]]))


def test_minilm_embeds_as_transformers_does(reference_data: Path) -> None:
    folder = reference_data / "models" / "all-MiniLM-L6-v2"
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = []
    with torch.no_grad():
        for sentence in SENTENCES:
            mean = theirs(**tokenizer([sentence], return_tensors="pt")).last_hidden_state[0].mean(dim=0)
            expected.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    model = hp.load(folder)
    assert_same(list(model.embed(SENTENCES)), expected)
    assert np.abs(model.embed(SENTENCES) - np.stack(expected)).max() < 1e-5


def test_minilm_s_file_cuts_at_128_and_halfpint_does_not(reference_data: Path) -> None:
    model = hp.load(reference_data / "models" / "all-MiniLM-L6-v2")
    text = "one word after another " * 60
    assert len(model.tokenizer([text], model.max_length).ids[0]) == 242
    with pytest.warns(UserWarning, match="1 of 1 texts have more than 512 tokens and were cut"):
        model.embed([text * 3])


@pytest.mark.parametrize("name", hp.__all__)
def test_public_names_are_there(name: str) -> None:
    home = importlib.import_module(hp._HOMES[name])
    assert getattr(hp, name) is getattr(home, name)
    assert name in dir(hp)


def test_other_names_are_not() -> None:
    assert set(dir(hp)) == {*hp.__all__, "__version__"} == {*hp._HOMES, "__version__"}
    with pytest.raises(AttributeError, match="halfpint has no 'lode'; it has PRESETS"):
        _ = hp.lode


@pytest.mark.parametrize("texts", [{"a": 1}, {"w5": "w6"}, {"w5"}, "w5", 3], ids=str)
def test_texts_that_are_no_list_are_refused(bert: hp.Model, texts: Any) -> None:
    with pytest.raises(ValueError, match=f"embed takes a list of texts, and was given a {type(texts).__name__}; "):
        bert.embed(texts)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_weights_are_read_in_the_dtype_asked_for(name: str, tmp_path: Path) -> None:
    folder = write_bert(tmp_path)
    for given in (name, getattr(torch, name)):
        assert {each.dtype for each in hp.load(folder, dtype=given).module.parameters()} == {getattr(torch, name)}


@pytest.mark.parametrize("dtype", ["bf16", "int8", torch.int8, torch.bool, None, 16, float], ids=str)
def test_a_dtype_that_weights_cannot_have_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError) as caught:
        hp.load("no-such-model", dtype=dtype)
    assert str(caught.value).startswith(f"dtype is {dtype!r}; weights are of float32, bfloat16, float16: give one")
