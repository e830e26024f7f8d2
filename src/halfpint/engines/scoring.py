"""A network's answers to encoded rows: what evaluation and prediction are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.config import TOKEN_HEADS, Precision
from halfpint.data.encoded import Encoded, ranges
from halfpint.data.loader import Loader

ROWS_AT_ONCE = 64
TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}


def score_rows(network: AnyNetwork, encoded: Encoded, head: str, precision: Precision = "fp32") -> NDArray[Any]:
    """The head's scores in the order of `encoded`: of every sequence, (S, …), or of every token, (T, …)."""
    was_training = network.training
    network.eval()
    device = next(network.parameters()).device
    tokens = TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])
    loader = Loader(encoded, rows=ROWS_AT_ONCE * tokens // TOKENS_AT_ONCE["cpu"], max_tokens=tokens)
    of_tokens = head in TOKEN_HEADS
    size = encoded.num_tokens if of_tokens else encoded.num_sequences
    found: NDArray[Any] | None = None
    for rows, batch in loader.in_order():
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            moved = batch.to(device)
            scores = network.answer(head, network.encoder(moved), moved).float().cpu().numpy()
        if found is None:
            found = np.empty((size, *scores.shape[1:]), np.float32)
        places = ranges(encoded.row_starts, rows)
        found[ranges(encoded.starts, places) if of_tokens else places] = scores
    network.train(was_training)
    assert found is not None, "there are no rows"
    return found
