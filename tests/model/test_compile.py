"""Batches of one shape are one program, whatever the lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from halfpint.config import ModelConfig
from halfpint.model.batch import Batch, BatchShape
from halfpint.model.network import Network
from halfpint.model.taps import NO_TAPS, Taps
from tests.model.samples import ALL_HEADS, FAMILIES, draw_ids, make_batch, make_network, relative_error

SHAPE = BatchShape(tokens=48, sequences=9, longest=16, targets=5)
LENGTHS = ((5, 1, 16, 9), (16, 16, 16), (1,), (3, 3, 3, 3, 3))
SEEN = Taps(hidden=(0, 2), scores=(1,), probabilities=(2,), vectors=(3,))


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def filled_batches(config: ModelConfig) -> list[Batch]:
    """Of different lengths; some were asked for their lengths, which the host then remembers."""
    batches = [make_batch(config.encoder, draw_ids(lengths)) for lengths in LENGTHS]
    batches = [batch.with_targets(torch.arange(0, batch.num_tokens, 10)).fill(SHAPE) for batch in batches]
    assert batches[1].filler_share == 0
    return batches


def outputs(network: Callable, batch: Batch, taps: Taps = NO_TAPS) -> dict[str, Tensor]:
    output, answers = network(batch, taps)
    tapped = {
        f"{kind} {layer}": value for kind, layers in vars(output.tapped).items() for layer, value in layers.items()
    }
    return {"hidden": output.hidden, **answers, **tapped}


def train_step(network: Network, run: Callable, batch: Batch) -> dict[str, Tensor]:
    """The gradients of a loss that every head takes part in."""
    network.zero_grad()
    sum(answer.square().mean() for answer in outputs(run, batch).values()).backward()
    return {name: parameter.grad for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_compiles_once(family: str) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    counter = CompileCounter()
    network = torch.compile(make_network(config), backend=counter, fullgraph=True)
    with torch.no_grad():
        for batch in filled_batches(config):
            network(batch)
    assert counter.frame_count == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_training_compiles_once(family: str) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    counter, network = CompileCounter(), make_network(config).train()
    compiled = torch.compile(network, backend=counter, fullgraph=True)
    for batch in filled_batches(config):
        train_step(network, compiled, batch)
    assert counter.frame_count == 1


def test_training_with_attention_dropout_compiles_once() -> None:
    config = ModelConfig(FAMILIES["bert"].replace(attention_dropout=0.1))
    counter, network = CompileCounter(), make_network(config).train()
    compiled = torch.compile(network, backend=counter, fullgraph=True)
    for batch in filled_batches(config):
        compiled(batch)[0].hidden.sum().backward()
    assert counter.frame_count == 1


def test_taps_compile_once() -> None:
    config = ModelConfig(FAMILIES["albert"])
    counter = CompileCounter()
    network = torch.compile(make_network(config), backend=counter, fullgraph=True)
    for batch in filled_batches(config):
        network(batch, SEEN)
    assert counter.frame_count == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_compiled_answers_as_what_is_not(family: str) -> None:
    # Compiled on the CPU the network pads its attention, which could drop weights; eager it does neither.
    config = ModelConfig(FAMILIES[family].replace(attention_dropout=0.1), ALL_HEADS)
    network = make_network(config)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    for batch in filled_batches(config):
        ours, theirs = outputs(compiled, batch, SEEN), outputs(network, batch, SEEN)
        assert ours.keys() == theirs.keys()
        assert {name for name in theirs if relative_error(ours[name], theirs[name]) > 1e-12} == set()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_inductor_infers_the_same(family: str) -> None:
    config = ModelConfig(FAMILIES[family], ALL_HEADS)
    network = make_network(config, torch.float32)
    compiled = torch.compile(network, fullgraph=True)
    for batch in filled_batches(config):
        with torch.no_grad():
            ours, theirs = outputs(compiled, batch), outputs(network, batch)
        assert {name for name in theirs if relative_error(ours[name], theirs[name]) > 1e-5} == set()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_inductor_trains_the_same(family: str) -> None:
    config = ModelConfig(FAMILIES[family].replace(dropout=0.0), ALL_HEADS)
    network = make_network(config, torch.float32)  # eval mode: heads drop nothing
    compiled = torch.compile(network, fullgraph=True)
    for batch in filled_batches(config):
        theirs = {name: gradient.clone() for name, gradient in train_step(network, network, batch).items()}
        ours = train_step(network, compiled, batch)
        largest = max(float(gradient.abs().max()) for gradient in theirs.values())
        assert {name for name in theirs if float((ours[name] - theirs[name]).abs().max()) > 1e-5 * largest} == set()


def graph_launches(run: Callable[[], object]) -> int:
    with torch.profiler.profile() as profiler:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages() if event.key == "cudaGraphLaunch")


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_inference_replays_one_cuda_graph(family: str) -> None:
    network = make_network(FAMILIES[family], torch.bfloat16).cuda()
    compiled = torch.compile(network.encoder, mode="reduce-overhead", fullgraph=True)
    batches = [batch.to("cuda") for batch in filled_batches(network.config)]
    with torch.inference_mode(), torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):  # compiled, recorded, replayed
            compiled(batches[0])
        for batch in batches:
            ours, theirs = compiled(batch).hidden.clone(), network.encoder(batch).hidden
            assert float(F.cosine_similarity(ours.float(), theirs.float(), dim=1).min()) > 0.995
        assert graph_launches(lambda: [compiled(batch) for batch in batches]) == len(batches)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_training_replays_two_cuda_graphs(family: str) -> None:
    network = make_network(FAMILIES[family], torch.bfloat16).cuda().train()
    compiled = torch.compile(network.encoder, mode="reduce-overhead", fullgraph=True)
    batches = [batch.to("cuda") for batch in filled_batches(network.config)]

    def step(batch: Batch) -> None:
        network.zero_grad()
        compiled(batch).hidden.square().mean().backward()

    for _ in range(3):
        step(batches[0])
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert graph_launches(lambda: [step(batch) for batch in batches]) == 2 * len(batches)
