"""A folder with random weights of a shape: what a measurement of cost needs, and nothing else."""

from __future__ import annotations

from pathlib import Path

import torch

from halfpint.artifact import replace_folder
from halfpint.checkpoints.write import write_network
from halfpint.config import ModelConfig
from halfpint.model.network import Network


def write_random(config: ModelConfig, folder: Path, *, seed: int = 0) -> Path:
    """Fresh weights of `config`, written as an artifact of the same bytes as trained ones would have."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(config)
    with replace_folder(folder) as staging:
        write_network(network, staging)
    return folder
