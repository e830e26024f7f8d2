"""Every family and head answers as `transformers` does, and its gradients are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfpint.artifact import read_artifact
from halfpint.checkpoints.read import read_network
from halfpint.checkpoints.registry import FAMILIES
from halfpint.model.batch import Batch
from tests.checkpoints.foreign import CLASSES, foreign_answers, make_foreign, save_foreign

LENGTHS = (5, 1, 16, 9)


def draw_texts(
    generator: torch.Generator, lengths: tuple[int, ...] = LENGTHS
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids without the padding id (RoBERTa numbers its positions by it), and random segments."""
    ids = [torch.randint(4, 40, (length,), generator=generator).tolist() for length in lengths]
    return ids, [torch.randint(0, 2, (length,), generator=generator).tolist() for length in lengths]


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_same_answers(family_name: str, class_name: str, model, folder: Path, num_types: int) -> None:
    family = FAMILIES[family_name]
    network = read_network(read_artifact(save_foreign(model, folder)))
    ids, segments = draw_texts(torch.Generator().manual_seed(1))
    if num_types < 2:
        segments = [[0] * len(text) for text in ids]
    batch = Batch.from_ids(ids, segments)
    with torch.no_grad():
        output, answers = network(batch)
        theirs = [foreign_answers(family, class_name, model, *text) for text in zip(ids, segments, strict=True)]
    for name in theirs[0]:
        ours = output.hidden if name == "hidden" else answers[name]
        assert relative_error(ours, torch.cat([each[name] for each in theirs])) < 1e-5, name


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_answers_equal_transformers(family: str, class_name: str, tmp_path: Path) -> None:
    model = make_foreign(family, class_name)
    assert_same_answers(family, class_name, model, tmp_path, num_types=getattr(model.config, "type_vocab_size", 0))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_activation_equals_transformers(family: str, activation: str, tmp_path: Path) -> None:
    class_name = next(name for name, kinds in FAMILIES[family].classes.items() if "masked_lm" in kinds)
    key = "activation" if family == "distilbert" else "hidden_act"
    model = make_foreign(family, class_name, **{key: activation})
    assert_same_answers(family, class_name, model, tmp_path, num_types=0)


ODD = [
    ("albert", {"num_hidden_groups": 2}),
    ("albert", {"num_hidden_groups": 3, "num_hidden_layers": 7}),
    ("albert", {"num_hidden_groups": 2, "inner_group_num": 2}),
    ("albert", {"embedding_size": 24}),
    ("mobilebert", {"normalization_type": "layer_norm"}),
    ("mobilebert", {"use_bottleneck": False}),
    ("mobilebert", {"use_bottleneck_attention": True}),
    ("mobilebert", {"num_feedforward_networks": 1}),
    ("mobilebert", {"trigram_input": False}),
    ("mobilebert", {"classifier_activation": False}),
    ("bert", {"type_vocab_size": 3}),
    ("bert", {"layer_norm_eps": 1e-3}),
    ("roberta", {"pad_token_id": 3, "type_vocab_size": 2}),
]


@pytest.mark.parametrize(("family", "changes"), ODD, ids=str)
def test_odd_members_equal_transformers(family: str, changes: dict, tmp_path: Path) -> None:
    class_name = next(iter(FAMILIES[family].classes))
    model = make_foreign(family, class_name, **changes)
    assert_same_answers(family, class_name, model, tmp_path, num_types=model.config.type_vocab_size)


@settings(max_examples=15)
@given(
    heads=st.integers(1, 4),
    head_size=st.integers(1, 9),
    layers=st.integers(1, 4),
    ffn=st.integers(1, 40),
    embedding=st.integers(1, 30),
    lengths=st.lists(st.integers(1, 18), min_size=1, max_size=5),
)
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_any_shape_equals_transformers(
    family, heads, head_size, layers, ffn, embedding, lengths, tmp_path_factory
) -> None:
    sizes = {"hidden_size": heads * head_size, "num_attention_heads": heads, "num_hidden_layers": layers}
    extra = {"embedding_size": embedding, "num_hidden_groups": 1} if family == "albert" else {}
    class_name = next(iter(FAMILIES[family].classes))
    model = make_foreign(family, class_name, intermediate_size=ffn, **sizes, **extra)
    network = read_network(read_artifact(save_foreign(model, tmp_path_factory.mktemp("model"))))
    ids, segments = draw_texts(torch.Generator().manual_seed(2), tuple(lengths))
    with torch.no_grad():
        ours = network.encoder(Batch.from_ids(ids, segments)).hidden
        theirs = [
            foreign_answers(FAMILIES[family], class_name, model, *text)["hidden"]
            for text in zip(ids, segments, strict=True)
        ]
    # A width of one leaves the norm nothing but rounding.
    assert relative_error(ours, torch.cat(theirs)) < 1e-5


@pytest.mark.parametrize(("family", "class_name"), CLASSES)
def test_gradients_equal_transformers(family: str, class_name: str, tmp_path: Path) -> None:
    model = make_foreign(family, class_name)
    network = read_network(read_artifact(save_foreign(model, tmp_path)))
    ids, segments = draw_texts(torch.Generator().manual_seed(3))
    if getattr(model.config, "type_vocab_size", 0) < 2:
        segments = [[0] * len(text) for text in ids]
    output, answers = network(Batch.from_ids(ids, segments))
    theirs = [foreign_answers(FAMILIES[family], class_name, model, *text) for text in zip(ids, segments, strict=True)]
    ours = {"hidden": output.hidden, **answers}
    sum((ours[name] ** 2).sum() for name in theirs[0]).backward()
    sum((each[name] ** 2).sum() for each in theirs for name in each).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    prefix = FAMILIES[family].prefix
    for name, theirs_names in FAMILIES[family].names(network.config).items():
        grads = [expected[each] if each in expected else expected[each.removeprefix(prefix)] for each in theirs_names]
        mine = network.get_parameter(name).grad
        if grads[0] is None:
            assert mine is None or not mine.any(), name
            continue
        reference = torch.cat(grads)
        mine = mine.t() if mine.shape != reference.shape else mine
        scale = max(float(reference.abs().max()), 1e-3)
        assert float((mine - reference).abs().max()) / scale < 1e-4, name
