"""Search in texts by what they mean: a corpus is embedded once, and every query finds its nearest.

What is notable:
- Vectors are kept in the cache folder, by the hash of the model and of the texts, and mapped into memory. The
  first search of a long corpus can be ended at any time; the next goes on from there. Where no cache can be written,
  vectors stay in memory.
- Rows without a text have no vector and are never found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfpint.config import Precision
from halfpint.data.asked import check_text, find_bad_rows
from halfpint.data.cache import cache_folder, fingerprint
from halfpint.data.columns import find_columns
from halfpint.data.retrieval import search as find_nearest
from halfpint.data.sources import DataError, read
from halfpint.engines.device import ready
from halfpint.engines.identity import hash_model
from halfpint.engines.model import Model
from halfpint.engines.pieces import Watch, open_pieces
from halfpint.engines.vectors import Vectors, vectors_piece, without_columns, write_npy

VERSION = 1
"""One more whenever the same model gives other vectors for the same texts."""

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Hit:
    """A row of the corpus that was found."""

    index: int
    """Its number in the corpus, from 0."""
    score: float
    """The cosine of its vector and the query's."""
    text: str
    row: Mapping[str, Any]
    """All of its columns."""


@dataclass(frozen=True)
class Index:
    """Texts with their vectors, ready to be searched."""

    model: Model
    table: pa.Table
    column: str
    """Which of its columns are the texts."""
    rows: NDArray[np.int64]
    """The rows that have a text, and so a vector."""
    vectors: Vectors
    num_cut: int
    """Texts that were too long and lost their ends."""

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """Of each query the k nearest texts, the best first."""
        if isinstance(queries, str):
            raise ValueError(f"search takes a list of queries, and was given one text; put it in a list: [{queries!r}]")
        empty = next((number for number, query in enumerate(queries, 1) if check_text(query)), None)
        if empty is not None:
            raise ValueError(f"query {empty} is {queries[empty - 1]!r}, expected a text")
        found, scores = find_nearest(self.model.embed(queries), self.vectors, k)
        return [
            [self._hit(int(self.rows[place]), score) for place, score in zip(places, likeness, strict=True)]
            for places, likeness in zip(found, scores.tolist(), strict=True)
        ]

    def _hit(self, index: int, score: float) -> Hit:
        row: dict[str, Any] = self.table.slice(index, 1).to_pylist()[0]
        return Hit(index, score, row[self.column], row)


def search(
    model: Model | str | PathLike[str],
    corpus: object,
    queries: Sequence[str],
    k: int = 10,
    *,
    columns: str | Sequence[str] | None = None,
    text: str | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    watch: Watch | None = None,
) -> list[list[Hit]]:
    """Of each query the k nearest texts of a corpus, the best first; to ask again and again, `index_texts` once.

    The corpus is a file, a list of texts or anything else that holds texts; `columns` names those of a file without a
    header, `text` the one to be searched, where the names do not tell.
    """
    ready_model = ready(model, device, precision)
    return index_texts(ready_model, corpus, columns=columns, text=text, watch=watch).search(queries, k)


def index_texts(
    model: Model,
    corpus: object,
    *,
    columns: str | Sequence[str] | None = None,
    text: str | None = None,
    watch: Watch | None = None,
) -> Index:
    """The texts with their vectors, which are made, or found in the cache."""
    table = _read(corpus, columns)
    column = find_columns(table.column_names, text=text, table=table).text
    bad = find_bad_rows(table.select([column]), {column: check_text})
    rows = np.setdiff1d(np.arange(len(table)), np.fromiter(bad, np.int64, len(bad)))
    if len(rows) == 0:
        raise DataError(f"the column {column} of the corpus has no texts; there is nothing to find")
    texts = pa.table({"text": table[column].take(pa.array(rows)) if bad else table[column]})
    vectors, num_cut = _embedded(model, texts, watch)
    return Index(model, table, column, rows, vectors, num_cut)


def _read(corpus: object, columns: str | Sequence[str] | None) -> pa.Table:
    if isinstance(corpus, list | tuple) and corpus and all(isinstance(each, str) for each in corpus):
        return read({"text": corpus}).tables["train"]
    tables = read(corpus, columns=columns).tables
    if len(tables) > 1:
        raise DataError(f"{corpus} has several splits ({', '.join(tables)}); search in the file of one")
    return next(iter(tables.values()))


def _embedded(model: Model, texts: pa.Table, watch: Watch | None) -> tuple[Vectors, int]:
    """A vector of each text, and how many were cut."""
    place = cache_folder() / "embeddings" / f"{fingerprint(texts, VERSION, hash_model(model))}.npy"
    facts = place.with_suffix(".json")
    with suppress(OSError, ValueError, KeyError, EOFError):  # whatever is wrong with an entry, it is made again
        vectors = np.load(place, mmap_mode="r")
        if len(vectors) == len(texts):
            return vectors, json.loads(facts.read_text())["cut"]
    if not _can_write(place.parent):
        return _in_memory(model, texts, watch)
    with open_pieces(place, {"version": VERSION, "texts": place.stem}) as pieces:

        def embed(block: pa.Table, _: int) -> Any:
            return vectors_piece(without_columns(block), *model.embed_and_count(block["text"].to_pylist()))

        pieces.fill(_blocks(texts), embed, len(texts), watch)
        facts.write_text(json.dumps(dict(pieces.counts)))
        pieces.join(lambda path: write_npy(path, pieces))
    return np.load(place, mmap_mode="r"), pieces.counts["cut"]


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _in_memory(model: Model, texts: pa.Table, watch: Watch | None) -> tuple[Vectors, int]:
    parts: list[Vectors] = []
    num_cut = 0
    for block in _blocks(texts):
        vectors, cut = model.embed_and_count(block["text"].to_pylist())
        parts.append(vectors)
        num_cut += cut
        if watch is not None:
            watch(sum(map(len, parts)), len(texts))
    return np.concatenate(parts), num_cut


def _blocks(texts: pa.Table) -> Iterator[pa.Table]:
    return (texts.slice(start, ROWS_AT_ONCE) for start in range(0, len(texts), ROWS_AT_ONCE))
