"""An encoder of the transformers adapter under heads of our own: trained, asked and saved as a `Network` is.

What is notable:
- its heads classify a sequence by a dense layer of their own on the token that stands for it, never by the pooler,
  which differs from one architecture to the next and is missing in most;
- they lie in `heads.safetensors` beside what `transformers` writes, and `halfpint.json` says what they are, so that
  `transformers` opens the encoder and knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from halfpint.artifact import Artifact, ArtifactError
from halfpint.checkpoints.adapter import ForeignEncoder, read_foreign
from halfpint.checkpoints.read import open_tensors, read_state, warn_of_unread
from halfpint.config import (
    ChoiceHead,
    ConfigError,
    EmbeddingHead,
    HeadConfig,
    Problem,
    SequenceHead,
    SpanHead,
    TokenHead,
    head_from_dict,
    head_to_dict,
    reads_pooler,
)
from halfpint.model.batch import Batch
from halfpint.model.encoder import Output
from halfpint.model.heads import make_plain_head
from halfpint.model.initialize import initialize
from halfpint.model.network import Network
from halfpint.model.taps import NO_TAPS, Taps

KINDS = ("sequence", "token", "span", "choice", "embedding")
"""Of the heads that a foreign encoder can have."""
HEADS_FILE = "heads.safetensors"
INITIALIZER_RANGE = 0.02
DROPOUT = 0.1


class ForeignNetwork(nn.Module):
    """`encoder(batch)`, and `answer(kind, output, batch)` for each head."""

    def __init__(self, encoder: ForeignEncoder, heads: Sequence[HeadConfig] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict()
        self.head_configs: dict[str, HeadConfig] = {}
        for head in heads:
            self.add_head(head)

    def head_config(self, kind: str) -> HeadConfig | None:
        return self.head_configs.get(kind)

    def add_head(self, head: HeadConfig) -> None:
        """A fresh head, in place of one of its kind."""
        _require_possible(head.kind, self.encoder)
        if reads_pooler(head):
            raise ConfigError(
                f"the {head.kind} head reads a pooler, and the transformers adapter counts on none; "
                "give the head a dense layer of its own (dense='tanh')"
            )
        module = make_plain_head(self.encoder.hidden_size, head)
        initialize(module, INITIALIZER_RANGE)
        weight = next(self.encoder.parameters())
        self.heads[head.kind] = module.to(weight.device, weight.dtype).train(self.training)
        self.head_configs[head.kind] = head

    def drop_heads(self) -> None:
        self.heads, self.head_configs = nn.ModuleDict(), {}

    def forward(self, batch: Batch, taps: Taps = NO_TAPS) -> tuple[Output, dict[str, Tensor]]:
        """The encoder's output and every head's answer."""
        output = self.encoder(batch, taps)
        return output, {kind: self.answer(kind, output, batch) for kind in self.heads}

    def answer(self, kind: str, output: Output, batch: Batch) -> Tensor:
        answer: Tensor = self.heads[kind](output, batch)
        return answer


AnyNetwork = Network | ForeignNetwork
"""What is trained, judged and asked."""


def foreign_head(
    kind: str, encoder: ForeignEncoder, labels: Sequence[str] = (), problem: Problem = "single_label"
) -> HeadConfig:
    """A new head for a foreign encoder, with the dropout of its config; what `default_head` is for our own."""
    _require_possible(kind, encoder)
    if kind in ("sequence", "token") and not labels:
        raise ConfigError(f"a {kind} head without labels; give at least one")
    dropout = _usual_dropout(encoder.config)
    match kind:
        case "sequence":
            return SequenceHead(tuple(labels), problem, "tanh", dropout)
        case "token":
            return TokenHead(tuple(labels), dropout)
        case "choice":
            return ChoiceHead("tanh", dropout)
        case "span":
            return SpanHead()
    return EmbeddingHead()


def _require_possible(kind: str, encoder: ForeignEncoder) -> None:
    if kind not in KINDS:
        raise ConfigError(
            f"{encoder.name} runs through the transformers adapter and can have no {kind!r} head; "
            f"possible are {', '.join(KINDS)}"
        )


def _usual_dropout(config: Any) -> float:
    """The first that a config has, from the most to the least particular name."""
    values = (getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout_prob", "dropout"))
    return next((float(value) for value in values if isinstance(value, int | float) and 0 <= value < 1), DROPOUT)


def write_heads(network: ForeignNetwork, staging: Path) -> list[dict[str, Any]]:
    """Write the weights of the heads, where they have some; what `halfpint.json` says of them."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in network.heads.state_dict().items()}
    if state:
        save_file(state, staging / HEADS_FILE, {"format": "pt"})
    return [head_to_dict(head) for head in network.head_configs.values()]


def has_foreign_heads(artifact: Artifact) -> bool:
    return bool(artifact.metadata.get("heads"))


def read_foreign_network(artifact: Artifact, *, dtype: torch.dtype = torch.float32) -> ForeignNetwork:
    """The encoder of a folder as `transformers` reads it, and the heads that Halfpint wrote beside it."""
    network = _with_described_heads(read_foreign(artifact, dtype=dtype), artifact)
    expected = {name: tuple(tensor.shape) for name, tensor in network.heads.state_dict().items()}
    if expected:
        if not artifact.has(HEADS_FILE):
            raise ArtifactError(
                f"{artifact.folder} has no {HEADS_FILE}, though its halfpint.json has heads; copy the folder again"
            )
        with open_tensors([artifact.path(HEADS_FILE)]) as tensors:
            state = read_state({name: (name,) for name in expected}, expected, tensors, artifact.folder, dtype)
            unread = tensors.unread
        network.heads.load_state_dict(state)
        warn_of_unread(artifact.folder, unread)
    return network.eval()


def _with_described_heads(encoder: ForeignEncoder, artifact: Artifact) -> ForeignNetwork:
    file, described = f"{artifact.folder}/halfpint.json", artifact.metadata.get("heads") or []
    if not isinstance(described, list) or not all(isinstance(each, Mapping) for each in described):
        raise ArtifactError(f"{file}: heads is {described!r}; expected a list of objects; copy the folder again")
    try:
        # What is drawn here is overwritten, so the caller's random numbers stay as they were.
        with torch.random.fork_rng(devices=[]):
            return ForeignNetwork(encoder, [head_from_dict(each) for each in described])
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
