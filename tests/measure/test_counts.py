"""Counts against what torch builds, runs and saves."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from halfpint.config import HEADS as HEAD_KINDS
from halfpint.config import (
    EmbeddingHead,
    EncoderConfig,
    MaskedLMHead,
    ModelConfig,
    SequenceHead,
    Sharing,
    SpanHead,
)
from halfpint.measure.counts import activation_bytes, count, flops
from halfpint.measure.weights import weights
from halfpint.model.batch import Batch
from halfpint.model.network import Network
from halfpint.presets import preset
from tests.strategies import HEADS, NUM_POSITIONS, model_configs, ragged_ids

PARTS = {
    "encoder.embeddings": "embeddings",
    "encoder.attention": "attention",
    "encoder.ffn": "ffn",
    "encoder.pooler": "pooler",
    "heads": "head",
}
Shape = tuple[int, ...]


def part_of(name: str) -> str:
    return next(part for prefix, part in PARTS.items() if name.startswith(prefix))


def build_empty(config: ModelConfig) -> Network:
    with torch.device("meta"):
        return Network(config)


def unshare(config: ModelConfig) -> ModelConfig:
    """The same arithmetic, every layer with blocks of its own."""
    encoder = config.encoder
    return ModelConfig(
        encoder.replace(
            sharing=Sharing.named("none", encoder.num_layers),
            num_heads=tuple(encoder.num_heads[block] for block in encoder.sharing.attention),
            ffn_size=tuple(encoder.ffn_size[block] for block in encoder.sharing.ffn),
        ),
        config.heads,
    )


def without_attention_dropout(config: ModelConfig) -> ModelConfig:
    return ModelConfig(config.encoder.replace(attention_dropout=0.0), config.heads)


def measure_saved_bytes(network: Network, batch: Batch, *, autocast: bool) -> int:
    """Bytes of the distinct storages that a training step keeps, its parameters and its batch apart."""
    not_ours = [*network.parameters(), *(value for value in vars(batch).values() if isinstance(value, torch.Tensor))]
    known = {tensor.untyped_storage()._cdata for tensor in not_ours}
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with (
        torch.autocast(batch.device.type, torch.bfloat16, enabled=autocast),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        network.train()(batch)
    storages = {storage._cdata: storage.nbytes() for storage in (tensor.untyped_storage() for tensor in saved)}
    return sum(size for storage, size in storages.items() if storage not in known)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
        ("distilbert", 66_362_880),
        ("roberta-base", 124_645_632),
        ("albert-base", 11_683_584),
        ("albert-xxlarge", 222_595_584),
        ("tinybert-4", 14_350_248),
        ("minilm-6", 22_713_216),
        ("mobilebert", 24_844_544),
    ],
)
def test_stored_parameters_of_presets(name: str, stored: int) -> None:
    assert count(preset(name).config).stored_parameters == stored


@pytest.mark.parametrize(("name", "effective"), [("albert-base", 89_650_176), ("albert-xxlarge", 2_437_773_824)])
def test_effective_parameters_of_presets(name: str, effective: int) -> None:
    assert count(preset(name).config).effective_parameters == effective


@pytest.mark.parametrize(
    ("shared", "stored"),
    [("all", 11_683_584), ("attention", 63_647_232), ("ffn", 37_686_528), ("none", 89_650_176)],
)
def test_albert_base_by_sharing(shared: str, stored: int) -> None:
    config = preset("albert-base").config
    sharing = Sharing.named(shared, config.num_layers)
    config = config.replace(
        sharing=sharing, num_heads=(12,) * sharing.num_attention_blocks, ffn_size=(3072,) * sharing.num_ffn_blocks
    )
    counts = count(config)
    assert counts.stored_parameters == stored
    assert counts.effective_parameters == 89_650_176


def test_every_head_kind_is_drawn() -> None:
    assert set(HEADS) == set(HEAD_KINDS)


@given(model_configs())
def test_weights_are_the_network_s_parameters(config: ModelConfig) -> None:
    built = Counter((part_of(name), *sorted(tensor.shape)) for name, tensor in build_empty(config).named_parameters())
    listed = Counter(
        (weight.part, *([weight.rows] if weight.kind == "vector" else sorted((weight.rows, weight.columns))))
        for weight in weights(config)
    )
    assert listed == built


@given(model_configs())
def test_stored_and_effective_parameters_are_what_torch_builds(config: ModelConfig) -> None:
    counts = count(config, length=NUM_POSITIONS)
    for network, total, parts in (
        (build_empty(config), counts.stored_parameters, counts.parts),
        (build_empty(unshare(config)), counts.effective_parameters, counts.effective_parts),
    ):
        built = dict.fromkeys(PARTS.values(), 0)
        for name, tensor in network.named_parameters():
            built[part_of(name)] += tensor.numel()
        assert parts == built
        assert total == sum(built.values())


def test_bytes_follow_the_documented_convention() -> None:
    config = EncoderConfig.uniform(
        vocab_size=20, num_layers=1, hidden_size=4, num_heads=2, ffn_size=6, num_positions=8, pooler="none"
    )
    tables, table_rows = (20 + 8 + 2) * 4, 20 + 8 + 2
    linear, linear_rows = 12 * 4 + 4 * 4 + 6 * 4 + 4 * 6, 12 + 4 + 6 + 4
    vectors = linear_rows + 3 * 2 * 4
    counts = count(config, length=8)
    assert counts.bytes["fp32"] == 4 * (tables + linear + vectors)
    assert counts.bytes["bf16"] == 2 * (tables + linear + vectors)
    assert counts.bytes["int8"] == tables + linear + 4 * (table_rows + linear_rows + vectors)


@given(model_configs(), st.integers(1, NUM_POSITIONS))
def test_flops_are_those_of_torch_s_counter(config: ModelConfig, length: int) -> None:
    # The counter knows neither the CPU's fused attention nor oneDNN's linear layer; the latter only runs
    # without gradients.
    def count_attention(query: Shape, key: Shape, value: Shape, **_: object) -> int:
        return sdpa_flop_count(query, key, value)

    network = Network(config).eval()
    known = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count_attention}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        network(Batch.from_ids([[1] * length]))
    assert flops(config, length) == counter.get_total_flops()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@given(config=model_configs().map(without_attention_dropout), ids=ragged_ids())
def test_activation_bytes_are_what_autograd_saves(precision: str, config: ModelConfig, ids: list[list[int]]) -> None:
    batch = Batch.from_ids(ids)
    counted = activation_bytes(config, tokens=batch.num_tokens, sequences=len(ids), precision=precision, device="cpu")
    assert counted == measure_saved_bytes(Network(config), batch, autocast=precision == "bf16")


def test_activation_bytes_of_long_sequences_in_half_precision() -> None:
    config = ModelConfig(preset("bert-tiny").config)
    batch = Batch.from_ids([[1] * 120] * 3)
    counted = activation_bytes(config, tokens=360, sequences=3, precision="bf16", device="cpu")
    assert counted == measure_saved_bytes(Network(config), batch, autocast=True)


def test_activation_bytes_with_targets() -> None:
    config = ModelConfig(preset("bert-tiny").config, (MaskedLMHead(),))
    batch = Batch.from_ids([[1] * 9, [2] * 5]).with_targets(torch.tensor([1, 4, 10]))
    counted = activation_bytes(config, tokens=14, sequences=2, targets=3, precision="fp32", device="cpu")
    assert counted == measure_saved_bytes(Network(config), batch, autocast=False)


@pytest.mark.gpu
@pytest.mark.parametrize("longest", [64, 300])
@pytest.mark.parametrize("name", ["bert-mini", "albert-base", "tinybert-4", "mobilebert"])
def test_activation_bytes_on_cuda(name: str, longest: int) -> None:
    heads = (SequenceHead(("a", "b")), MaskedLMHead(), SpanHead(no_answer=True), EmbeddingHead())
    config = ModelConfig(preset(name).config, heads)
    with torch.device("cuda"):
        network = Network(config)
    batch = Batch.from_ids([[1] * length for length in (7, longest, 30)]).to("cuda")
    counted = activation_bytes(config, tokens=37 + longest, sequences=3, longest=longest)
    assert counted == measure_saved_bytes(network, batch, autocast=True)


@pytest.mark.gpu
def test_activation_bytes_are_the_memory_of_a_step_on_cuda() -> None:
    config = preset("bert-base").config
    with torch.device("cuda"):
        network = Network(ModelConfig(config)).train()
    batch = Batch.from_ids([[1] * 128 for _ in range(64)]).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        network(batch)  # allocates the workspaces of the matrix products
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        output, _ = network(batch)
    held = torch.cuda.memory_allocated() - before - output.hidden.nbytes
    assert held == pytest.approx(activation_bytes(config, tokens=64 * 128, sequences=64), rel=0.02)


@pytest.mark.parametrize(("length", "batch"), [(0, 1), (513, 1), (8, 0)])
def test_impossible_lengths_and_batches_are_refused(length: int, batch: int) -> None:
    with pytest.raises(ValueError, match=r"length is|batch is"):
        count(preset("bert-tiny").config, length=length, batch=batch)


def test_counts_hold_plain_values() -> None:
    counts = asdict(count(preset("bert-tiny").config, length=64, batch=8))
    assert (counts["length"], counts["batch"]) == (64, 8)
    assert counts["activation_bytes"] == activation_bytes(preset("bert-tiny").config, tokens=512, sequences=8)
