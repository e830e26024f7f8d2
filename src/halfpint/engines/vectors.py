"""Embeddings as a column of pieces, and as one `.npy` file made of them, which NumPy can map into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.engines.pieces import Piece, Pieces

Vectors = NDArray[np.float32]

EMBEDDING = "embedding"


def vectors_piece(given: pa.Table, vectors: Vectors, num_cut: int) -> Piece:
    """One vector a row."""
    return Piece(given, pa.table({EMBEDDING: to_column(vectors)}), {"cut": num_cut})


def to_column(vectors: Vectors) -> pa.Array:
    flat = np.ascontiguousarray(vectors, dtype=np.float32).ravel()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), vectors.shape[1])


def without_columns(table: pa.Table) -> pa.Table:
    """Of a table, how many rows it has; Arrow knows none without a column."""
    return pa.table({"row": pa.nulls(len(table))})


def write_npy(path: Path, pieces: Pieces) -> None:
    """All vectors, in their order; zeros where a row has none."""
    widths = {schema.field(EMBEDDING).type.list_size for schema in pieces.schemas()[1] if len(schema)}
    assert len(widths) == 1, "one model makes vectors of one length"
    shape = (pieces.num_rows, *widths)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for given, answers in pieces.tables():
            file.write(_to_array(answers, len(given), shape[1]).astype("<f4", copy=False).tobytes())


def _to_array(answers: pa.Table, num_rows: int, width: int) -> Vectors:
    vectors = np.zeros((num_rows, width), np.float32)
    if answers.num_columns:
        column: Any = answers[EMBEDDING].combine_chunks()
        vectors[column.is_valid().to_numpy(zero_copy_only=False)] = column.flatten().to_numpy().reshape(-1, width)
    return vectors
