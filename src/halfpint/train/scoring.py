"""A network's answers to encoded rows: what evaluation and prediction are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.data.encoded import Encoded
from halfpint.data.loader import Loader
from halfpint.model.network import Network
from halfpint.train.settings import Precision

ROWS_AT_ONCE = 64
TOKENS_AT_ONCE = 4096


def score_rows(network: Network, encoded: Encoded, head: str, precision: Precision = "fp32") -> NDArray[Any]:
    """The head's scores of every row of one sequence, in their order: (R, …)."""
    was_training = network.training
    network.eval()
    device = next(network.parameters()).device
    found: NDArray[Any] | None = None
    loader = Loader(encoded, rows=ROWS_AT_ONCE, max_tokens=TOKENS_AT_ONCE)
    for rows, batch in loader.in_order():
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            moved = batch.to(device)
            scores = network.answer(head, network.encoder(moved), moved).float().cpu().numpy()
        if found is None:
            found = np.empty((encoded.num_rows, *scores.shape[1:]), dtype=np.float32)
        found[rows] = scores
    network.train(was_training)
    assert found is not None, "there are no rows"
    return found
