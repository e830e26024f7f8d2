"""Small encoded data of every kind of task, learnable: the label can be read off the ids."""

from __future__ import annotations

import numpy as np

from halfpint.config import ChoiceHead, EmbeddingHead, HeadConfig, SequenceHead, SpanHead, TokenHead
from halfpint.data.encoded import Encoded, encode_sequences
from halfpint.model.batch import IGNORED

VOCABULARY = 40
LONGEST = 16
HEADS: dict[str, HeadConfig] = {
    "sequence": SequenceHead(("a", "b", "c"), dropout=0.0),
    "multi_label": SequenceHead(("a", "b"), "multi_label", dropout=0.0),
    "regression": SequenceHead(("score",), "regression", dropout=0.0),
    "token": TokenHead(("x", "y"), dropout=0.0),
    "span": SpanHead(),
    "choice": ChoiceHead(dropout=0.0),
    "embedding": EmbeddingHead(),
}


def draw_rows(kind: str, num_rows: int = 200, seed: int = 0, *, shortest: int = 4) -> Encoded:
    rng = np.random.default_rng(seed)
    per_row = {"choice": 3, "embedding": 2}.get(kind, 1)
    ids = [rng.integers(5, VOCABULARY, rng.integers(shortest, LONGEST + 1)) for _ in range(num_rows * per_row)]
    sequences, tokens = _label(kind, ids, rng)
    return encode_sequences(
        [each.tolist() for each in ids],
        None,
        vocab_size=VOCABULARY,
        row_sequences=np.full(num_rows, per_row),
        per_sequence={} if sequences is None else {"label": sequences},
        per_token={} if tokens is None else {"label": tokens},
    )


def _label(kind: str, ids: list[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Labels of sequences, or of tokens; some ids are changed so that they show."""
    if kind == "token":
        return None, np.concatenate([np.where(np.arange(len(each)) == 0, IGNORED, each % 2) for each in ids])
    if kind == "span":
        spans = np.array([np.sort(rng.integers(1, len(each), 2)) for each in ids])
        for each, (start, end) in zip(ids, spans, strict=True):
            each[start], each[end] = 1, 2
        return spans, None
    if kind == "choice":
        right = rng.integers(0, 3, len(ids) // 3)
        for row, option in enumerate(right):
            ids[3 * row + option][1] = 1
        return np.repeat(right, 3), None
    if kind == "embedding":
        for first, second in zip(ids[::2], ids[1::2], strict=True):
            second[: min(len(first), len(second))] = first[: min(len(first), len(second))]
        return None, None
    first = np.array([each[0] for each in ids])
    if kind == "multi_label":
        return np.stack([first % 2, first // 2 % 2], axis=1), None
    return (first / VOCABULARY if kind == "regression" else first % 3), None
