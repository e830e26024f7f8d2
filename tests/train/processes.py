"""A small training run in a process of its own, to be killed or run beside others (`-m tests.train.processes OUT`)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from halfpint.config import EncoderConfig, ModelConfig
from halfpint.data.loader import Loader
from halfpint.model.network import Network
from halfpint.objectives.task import TaskObjective
from halfpint.train.loop import Outcome, train
from halfpint.train.parallel import Ranks, joined
from halfpint.train.settings import Settings
from tests.train.samples import HEADS, LONGEST, VOCABULARY, draw_rows

SETTINGS = Settings(epochs=2, batch=14, lr=1e-3, evaluations=2)
"""Two hundred rows make steps of unequal size."""


def run(
    out: Path | None, *, dropout: float = 0.1, kind: str = "sequence", num_rows: int = 200
) -> tuple[Network, Outcome]:
    torch.manual_seed(0)
    encoder = EncoderConfig.uniform(
        vocab_size=VOCABULARY, num_layers=2, hidden_size=24, num_heads=3, ffn_size=40, num_positions=LONGEST,
        dropout=dropout,
    )  # fmt: skip
    network = Network(ModelConfig(encoder, (HEADS[kind],)))
    ranks = Ranks.here()
    loader = Loader(draw_rows(kind, num_rows), rows=SETTINGS.batch, max_tokens=64, rank=ranks.rank, world=ranks.world)
    outcome = train(
        network,
        [(TaskObjective(HEADS[kind]), 1.0)],
        loader,
        SETTINGS,
        evaluate=lambda network: {"score": float(next(network.heads.parameters()).detach().sum())},
        checkpoints=None if out is None else out / "checkpoints",
        checkpoint_seconds=0.0,
    )
    return network, outcome


def weights(network: Network) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with joined(torch.device("cpu")) as ranks:
        parallel = ranks.world > 1
        network, _ = run(None if parallel else out, dropout=0.0 if parallel else 0.1)
        if ranks.is_first:
            save_file(weights(network), out / "end.safetensors")


if __name__ == "__main__":
    main()
