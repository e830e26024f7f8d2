"""Architectures outside the family answer as `transformers` does on each sequence alone, and are counted by running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

import halfpint as hp
from halfpint.artifact import ArtifactError, read_artifact
from halfpint.checkpoints.adapter import ForeignEncoder, make_foreign, read_foreign
from halfpint.checkpoints.sentence import write_embedding_head
from halfpint.config import EmbeddingHead
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.taps import Taps
from tests.checkpoints.folders import OTHERS, SIZES, make_other, randomize, write_tokenizer

LENGTHS = (5, 1, 16, 9)
SEGMENTED = ("xlnet", "deberta-v2", "electra")
NUM_LAYERS = {name: 4 if name == "modernbert" else 2 for name in OTHERS}


def draw_ids(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Without the ids that pad (MPNet numbers its positions by them)."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(6, 40, (length,), generator=generator).tolist() for length in lengths]


def draw_segments(ids: list[list[int]]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 2, (len(each),), generator=generator).tolist() for each in ids]


def encoder_of(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model


def alone(model: Any, ids: list[int], segments: list[int] | None = None, **options: bool) -> Any:
    """What `transformers` answers to one sequence."""
    more = {} if segments is None else {"token_type_ids": torch.tensor([segments])}
    with torch.no_grad():
        return encoder_of(model)(input_ids=torch.tensor([ids]), **more, **options)


def assert_close(ours: Any, theirs: torch.Tensor) -> None:
    ours = torch.as_tensor(ours).detach()
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-5


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A tiny random model of another architecture, and the folder it was saved in."""
    model = make_other(request.param)
    model.save_pretrained(tmp_path)
    return model, tmp_path


def test_states_equal_transformers_alone_and_in_company(other: tuple[Any, Path]) -> None:
    theirs, folder = other
    model = hp.load(folder)
    ids = draw_ids()
    for each, together in zip(ids, model.encode(ids), strict=True):
        expected = alone(theirs, each).last_hidden_state[0]
        assert_close(together, expected)
        assert_close(model.encode([each])[0], expected)


@pytest.mark.parametrize("name", SEGMENTED)
def test_segments_are_given_where_there_are_some(name: str, tmp_path: Path) -> None:
    theirs = make_other(name)
    theirs.save_pretrained(tmp_path)
    ids = draw_ids()
    segments = draw_segments(ids)
    model = hp.load(tmp_path)
    for each, types, ours in zip(ids, segments, model.encode(ids, segments), strict=True):
        assert_close(ours, alone(theirs, each, types).last_hidden_state[0])
    assert not np.allclose(model.encode(ids)[2], model.encode(ids, segments)[2], atol=1e-4)


def test_xlnet_s_last_token_has_a_segment_of_its_own(tmp_path: Path) -> None:
    theirs = make_other("xlnet")
    theirs.save_pretrained(tmp_path)
    ids, segments = [[7, 8, 9, 10]], [[0, 0, 1, 2]]
    assert_close(hp.load(tmp_path).encode(ids, segments)[0], alone(theirs, ids[0], segments[0]).last_hidden_state[0])


def test_hidden_states_are_tapped_as_transformers_numbers_them(other: tuple[Any, Path]) -> None:
    theirs, folder = other
    encoder = read_foreign(read_artifact(folder))
    ids = draw_ids()
    layers = tuple(range(NUM_LAYERS[encoder.name] + 1))
    assert encoder.num_layers == layers[-1]
    batch = Batch.from_ids(ids)
    tapped = encoder(batch, Taps(hidden=layers)).tapped.hidden
    expected = [alone(theirs, each, output_hidden_states=True).hidden_states for each in ids]
    for layer in layers:
        assert_close(tapped[layer], torch.cat([each[layer][0] for each in expected]))


def test_attention_is_tapped_and_zero_where_no_token_is(other: tuple[Any, Path]) -> None:
    theirs, folder = other
    encoder = read_foreign(read_artifact(folder))
    fast = encoder.config._attn_implementation
    ids = draw_ids()
    layers = tuple(range(1, NUM_LAYERS[encoder.name] + 1))
    tapped = encoder(Batch.from_ids(ids), Taps(probabilities=layers)).tapped.probabilities
    assert encoder.config._attn_implementation == fast  # other calls keep the fast one
    encoder_of(theirs).set_attn_implementation("eager")
    for slot, each in enumerate(ids):
        attentions = alone(theirs, each, output_attentions=True).attentions
        for layer in layers:
            length = len(each)
            assert_close(tapped[layer][slot, :, :length, :length], attentions[layer - 1][0])
            assert not tapped[layer][slot, :, length:].any()
            assert not tapped[layer][slot, :, :, length:].any()


@pytest.mark.parametrize("taps", [Taps(scores=(1,)), Taps(vectors=(1,))], ids=["scores", "vectors"])
def test_taps_that_transformers_does_not_show_are_refused(taps: Taps, other: tuple[Any, Path]) -> None:
    _, folder = other
    encoder = read_foreign(read_artifact(folder))
    with pytest.raises(ValueError, match=r"adapter, which shows .* but neither scores before the softmax nor queries"):
        encoder(Batch.from_ids([[7]]), taps)


def test_layers_that_are_not_there_are_refused(other: tuple[Any, Path]) -> None:
    _, folder = other
    encoder = read_foreign(read_artifact(folder))
    with pytest.raises(ValueError, match=r"taps.hidden asks for layer 9; this encoder has layers 0 to"):
        encoder(Batch.from_ids([[7]]), Taps(hidden=(9,)))


def test_filler_changes_nothing(other: tuple[Any, Path]) -> None:
    _, folder = other
    encoder = read_foreign(read_artifact(folder))
    batch = Batch.from_ids(draw_ids())
    filled = batch.fill(BatchShape(tokens=50, sequences=8, longest=16))
    with torch.no_grad():
        assert_close(encoder(filled).hidden[: batch.num_tokens], encoder(batch).hidden)


def test_texts_are_embedded_by_the_folder_s_pooling(tmp_path: Path) -> None:
    theirs = make_other("mpnet")
    theirs.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    sizes = hp.EncoderConfig.uniform(vocab_size=40, hidden_size=24, num_layers=1, num_heads=1, ffn_size=1)
    write_embedding_head(tmp_path, EmbeddingHead("cls", normalize=False), sizes)
    vector = hp.load(tmp_path).embed(["w7 w8 w9"])
    assert_close(vector, alone(theirs, [2, 7, 8, 9, 3]).last_hidden_state[:, 0])


def test_of_an_encoder_decoder_there_is_the_encoder(tmp_path: Path) -> None:
    theirs = make_other("bart")
    theirs.save_pretrained(tmp_path)
    encoder = hp.load(tmp_path).encoder
    assert sum(each.numel() for each in encoder.parameters()) == sum(
        each.numel() for each in theirs.get_encoder().parameters()
    )
    assert not any("decoder" in name for name, _ in encoder.named_parameters())


def test_positions_are_as_many_as_the_table_allows() -> None:
    # MPNet counts from the padding id + 1; BART's table has two rows more than its config says.
    for name in ("mpnet", "bart", "electra"):
        assert ForeignEncoder(encoder_of(make_other(name)), pad_id=0).num_positions == 18


def test_xlnet_s_positions_are_endless(tmp_path: Path) -> None:
    make_other("xlnet").save_pretrained(tmp_path)
    assert hp.load(tmp_path).encode(draw_ids((200,)))[0].shape == (200, 24)


def test_loading_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_other("electra").save_pretrained(tmp_path)
    capfd.readouterr()
    hp.load(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_tensors_of_foreign_heads_are_told(tmp_path: Path) -> None:
    randomize(transformers.ElectraForPreTraining(OTHERS["electra"])).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"no use for discriminator_predictions\.dense\.bias"):
        hp.load(tmp_path)


def test_a_missing_pooler_is_not_made_up(tmp_path: Path) -> None:
    theirs = randomize(transformers.MPNetForMaskedLM(OTHERS["mpnet"]))
    theirs.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no use for"):
        encoder = hp.load(tmp_path).encoder
    output = encoder(Batch.from_ids([[7, 8]]))
    assert output.pooled is None
    assert_close(output.hidden, alone(theirs.mpnet, [7, 8]).last_hidden_state[0])


def test_a_pooler_that_is_there_pools(tmp_path: Path) -> None:
    theirs = make_other("mpnet")
    theirs.save_pretrained(tmp_path)
    ids = draw_ids()
    pooled = hp.load(tmp_path).encoder(Batch.from_ids(ids)).pooled
    assert_close(pooled, torch.cat([alone(theirs, each).pooler_output for each in ids]))


def test_nothing_missing_is_filled_with_random_numbers(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("weight", "bias"):
        del tensors[f"encoder.layer.1.output.dense.{part}"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ArtifactError, match=r"no tensor encoder\.layer\.1\.output\.dense\.bias \(expected: .24,.*, and 1 more"
    ):
        hp.load(tmp_path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    make_other("electra").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"] = torch.zeros(23)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ArtifactError, match=r"layer\.1\.output\.dense\.bias has shape \(23,\), expected \(24,\)"):
        hp.load(tmp_path)


def test_what_is_no_text_encoder_is_refused(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match="vit is no text encoder"):
        hp.load(tmp_path)


def counted_flops(model: Any, length: int) -> int:
    encoder = encoder_of(model)
    encoder.set_attn_implementation("eager")
    inputs = {"input_ids": torch.full((1, length), 5), "attention_mask": torch.ones(1, length)}
    if model.config.model_type == "xlnet":  # compares segments when it is given some, as its tokenizer does
        inputs["token_type_ids"] = torch.zeros(1, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        encoder(**inputs)
    return counter.get_total_flops()


def test_counts_are_those_of_the_model_run_by_transformers(other: tuple[Any, Path]) -> None:
    theirs, folder = other
    counted = hp.profile(folder, length=16, batch=4)
    size = sum(parameter.numel() for parameter in encoder_of(theirs).parameters())
    assert counted.stored_parameters == counted.effective_parameters == sum(counted.parts.values()) == size
    assert counted.bytes["fp32"] == 4 * size
    assert counted.flops == counted_flops(theirs, 16) > 0
    assert (counted.length, counted.batch) == (16, 4)
    assert counted.note.startswith("through the transformers adapter: the architecture")


def test_activations_grow_by_the_sequence(other: tuple[Any, Path]) -> None:
    _, folder = other
    one, two, nine = (hp.profile(folder, length=16, batch=batch).activation_bytes for batch in (1, 2, 9))
    assert 0 < one < two
    assert nine == one + 8 * (two - one)


def shared_albert(**changes: Any) -> Any:
    """ALBERT with an activation that Halfpint's own encoder does not have."""
    config = transformers.AlbertConfig(**SIZES, embedding_size=8, num_hidden_layers=5, hidden_act="silu", **changes)
    return transformers.AlbertModel(config)


@pytest.mark.parametrize(("changes", "uses"), [({}, 5), ({"num_hidden_groups": 5}, 1)])
def test_shared_layers_count_as_often_as_they_run(changes: dict, uses: int, tmp_path: Path) -> None:
    theirs = shared_albert(**changes)
    theirs.save_pretrained(tmp_path)
    counted = hp.profile(tmp_path, length=8)
    layers = sum(each.numel() for each in theirs.encoder.albert_layer_groups.parameters())
    assert counted.stored_parameters == sum(each.numel() for each in theirs.parameters())
    assert counted.effective_parameters == counted.stored_parameters + (uses - 1) * layers


@pytest.mark.slow
def test_mpnet_in_its_true_shape(tmp_path: Path) -> None:
    config = transformers.MPNetConfig(vocab_size=30527, max_position_embeddings=514)
    theirs = transformers.MPNetModel(config).eval()
    theirs.save_pretrained(tmp_path)
    ids = [torch.randint(6, 30000, (length,)).tolist() for length in (40, 1, 128, 17)]
    for each, ours in zip(ids, hp.load(tmp_path).encode(ids), strict=True):
        assert_close(ours, alone(theirs, each).last_hidden_state[0])
    counted = hp.profile(tmp_path, length=32)
    assert counted.stored_parameters == make_foreign(tmp_path).model.num_parameters() == 109_486_464
    assert counted.flops == counted_flops(theirs, 32)
