"""From documents to a corpus on disk: in bounded memory, on all cores, going on where a run ended.

What is notable:
- Documents are read and compared in one process (a hash of eight bytes each tells repeated ones), and handed out in
  units of so many characters. A process for each core splits a unit into sentences, tokenizes it, and writes it as one
  shard, whole or not at all.
- Units follow from the documents alone, so a run that was ended goes on with those shards that are missing, and the
  folder in the end is the same, file by file.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import wait
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from halfpint.artifact import hold_folder
from halfpint.data.corpus import (
    ARRAYS,
    FORMAT,
    MANIFEST,
    TOKENIZER,
    Array,
    Corpus,
    hash_file,
    read_corpus,
    read_manifest,
)
from halfpint.data.documents import Source, read_documents
from halfpint.data.sentences import split_sentences
from halfpint.data.sources import DataError
from halfpint.data.tokenizer import Tokenizer

UNIT_CHARACTERS = 1 << 22
"""Of a shard, or one document that is longer."""
SENTENCES_AT_ONCE = 2000
"""That a process tokenizes: their encodings weigh a hundred times what their tokens do."""
MOST_PROCESSES = 16

FACTS = "facts.json"

Watch = Callable[[int, int], None]
"""Is told how many documents and how many tokens are done."""


@dataclass
class _Seen:
    """What is counted while documents are read."""

    digests: set[int] = field(default_factory=set)
    repeated: int = 0
    empty: int = 0

    def keep(self, document: str) -> bool:
        if not document.strip():
            self.empty += 1
            return False
        digest = int.from_bytes(hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        if digest in self.digests:
            self.repeated += 1
            return False
        self.digests.add(digest)
        return True


def build_corpus(
    source: Source,
    tokenizer: Tokenizer,
    out: str | PathLike[str],
    *,
    text: str | None = None,
    processes: int | None = None,
    watch: Watch | None = None,
) -> Corpus:
    """Write the documents of a source as tokens into the folder `out`, or go on with it; one that is complete is read.

    Empty documents and repeated ones are left out and counted. `text` names the column of the documents.
    """
    folder = Path(out).expanduser()
    with hold_folder(folder) as held:
        if not held:
            raise DataError(f"another process is writing {folder}; wait for it, or give another folder")
        _settle(folder, {"format": FORMAT, "source": _named(source), "text": text, "tokenizer": _digest(tokenizer)})
        stamps = _stamps(source)
        if stamps is not None and (folder / MANIFEST).is_file() and _is_whole(folder, stamps):
            return read_corpus(folder)
        seen = _Seen()
        shards: list[dict[str, Any]] = []
        documents = (document for document in read_documents(source, text=text) if seen.keep(document))
        (folder / MANIFEST).unlink(missing_ok=True)  # it speaks of what is about to change
        (folder / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
        with _workers(tokenizer, processes or _num_cores()) as make:
            for facts in make(folder, _units(documents)):
                shards.append(facts)
                if watch is not None:
                    watch(sum(each["documents"] for each in shards), sum(each["tokens"] for each in shards))
        if not sum(each["documents"] for each in shards):
            raise DataError(f"there is no text in {_named(source)}; a corpus needs a document")
        _finish(folder, shards, seen, stamps)
    return read_corpus(folder)


def _named(source: object) -> str:
    return str(source) if isinstance(source, str | PathLike) else "texts of a program"


def _digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


def _num_cores() -> int:
    return min(
        MOST_PROCESSES, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _settle(folder: Path, job: dict[str, Any]) -> None:
    """Leave the folder as this job needs it: its own shards, or none."""
    place = folder / "job.json"
    before = read_manifest(place)
    if folder.is_file() or (before is None and folder.is_dir() and any(folder.iterdir())):
        raise DataError(f"{folder} is in the way, and is no corpus; move it, or give another folder")
    if before is not None and before != job:
        other = ", ".join(name for name in job if before.get(name) != job[name])
        raise DataError(f"{folder} holds a corpus that differs in its {other}; remove it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(place, job)


def _stamps(source: object) -> list[list[str | int]] | None:
    """What tells files from what they were before; None for texts of a program, which have to be read to be known."""
    if not isinstance(source, str | PathLike):
        return None
    place = Path(source).expanduser()
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files if path.is_file()]


def _is_whole(folder: Path, stamps: list[list[str | int]]) -> bool:
    """Whether a finished corpus is of these files, and every file of its own is what was written."""
    corpus = read_corpus(folder)
    if corpus.manifest.get("stamps") != stamps:
        return False
    return all(_is_done(shard.folder, shard.facts["source"]) for shard in corpus.shards)


def _is_done(place: Path, source: str) -> bool:
    facts = read_manifest(place / FACTS)
    if facts is None or facts.get("source") != source:
        return False
    return all(
        (place / f"{name}.npy").is_file() and hash_file(place / f"{name}.npy") == facts["sha256"][name]
        for name in ARRAYS
    )


def _units(documents: Iterable[str]) -> Iterator[list[str]]:
    unit: list[str] = []
    size = 0
    for document in documents:
        unit.append(document)
        size += len(document)
        if size >= UNIT_CHARACTERS:
            yield unit
            unit, size = [], 0
    if unit:
        yield unit


_Make = Callable[[Path, Iterable[list[str]]], Iterator[dict[str, Any]]]


@contextmanager
def _workers(tokenizer: Tokenizer, processes: int) -> Iterator[_Make]:
    """What makes shards of units, in their order, a few at a time."""
    if processes == 1:
        encode = _Encoder.of(tokenizers.Tokenizer.from_str(tokenizer.to_json()))
        yield lambda folder, units: (
            _make_shard(encode, folder / f"{number:05d}", unit) for number, unit in enumerate(units)
        )
        return
    context = multiprocessing.get_context("spawn")  # threads of the tokenizer do not survive a fork
    with _no_main(), ProcessPoolExecutor(processes, context, _begin, (tokenizer.to_json(),)) as pool:

        def make(folder: Path, units: Iterable[list[str]]) -> Iterator[dict[str, Any]]:
            waiting: deque[Future[dict[str, Any]]] = deque()
            try:
                for number, unit in enumerate(units):
                    if len(waiting) > processes:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(_make_own_shard, folder / f"{number:05d}", unit))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

        yield make


@contextmanager
def _no_main() -> Iterator[None]:
    """Workers need nothing of the program that started them; where it is a script they would run it once more."""
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.pop("__spec__")
        main.update(hidden)


_encoder: _Encoder
"""Of a worker."""


def _begin(tokenizer: str) -> None:
    """A worker tokenizes on one core, and ends when the process that started it is gone."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = _Encoder.of(tokenizers.Tokenizer.from_str(tokenizer))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _make_own_shard(place: Path, documents: list[str]) -> dict[str, Any]:
    return _make_shard(_encoder, place, documents)


def _make_shard(encode: _Encoder, place: Path, documents: list[str]) -> dict[str, Any]:
    """Write a unit's shard, unless it is there, and tell what is in it."""
    source = hashlib.sha256("\0".join(documents).encode("utf-8", "surrogatepass")).hexdigest()
    if not _is_done(place, source):
        arrays = _tokenize(encode, documents)
        staging = place.with_name(f".{place.name}.new")
        for old in (staging, place):
            shutil.rmtree(old, ignore_errors=True)
        staging.mkdir()
        for name, array in arrays.items():
            np.save(staging / f"{name}.npy", array)
        facts = {
            "source": source,
            "documents": len(arrays["documents"]) - 1,
            "sentences": len(arrays["sentences"]) - 1,
            "tokens": len(arrays["tokens"]),
            "sha256": {name: hash_file(staging / f"{name}.npy") for name in arrays},
        }
        _write_json(staging / FACTS, facts)
        staging.replace(place)
    found = read_manifest(place / FACTS)
    assert found is not None
    return found


@dataclass(frozen=True)
class _Encoder:
    """Sentences to tokens, and which of them begin a word."""

    backend: tokenizers.Tokenizer
    beginnings: NDArray[np.bool_] | None
    """By token, where the token alone tells whether it begins a word; then word ids are not asked, which saves time."""

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> _Encoder:
        # BERT's pre-tokenizer makes a word of every `#`, so no word begins with a piece that has the prefix.
        if not isinstance(backend.model, WordPiece) or not isinstance(backend.pre_tokenizer, BertPreTokenizer):
            return cls(backend, None)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        beginnings = np.ones(max(vocabulary.values()) + 1, np.bool_)
        prefix = backend.model.continuing_subword_prefix
        pieces = [number for token, number in vocabulary.items() if token.startswith(prefix) and token != prefix]
        beginnings[pieces] = False
        return cls(backend, beginnings)

    def __call__(self, sentences: list[str]) -> tuple[Array, Array, NDArray[np.bool_]]:
        """All tokens, how many each sentence has, and which of them begin a word."""
        encode = self.backend.encode_batch if self.beginnings is None else self.backend.encode_batch_fast
        encodings = encode(sentences, add_special_tokens=False)
        counts = np.fromiter(map(len, encodings), np.int64, len(encodings))
        total = int(counts.sum())
        tokens = np.fromiter(chain.from_iterable(each.ids for each in encodings), np.int32, total)
        if self.beginnings is not None:
            return tokens, counts, self.beginnings[tokens]
        words = np.fromiter(chain.from_iterable(each.word_ids for each in encodings), np.int32, total)
        begins = np.ones(total, np.bool_)
        begins[1:] = words[1:] != words[:-1]
        begins[(np.cumsum(counts) - counts)[counts > 0]] = True  # of every sentence's first
        return tokens, counts, begins


def _tokenize(encode: _Encoder, documents: list[str]) -> dict[str, Array]:
    """The arrays of a shard. A sentence without tokens is none, and a document without sentences neither."""
    sentences = [split_sentences(document) for document in documents]
    flat = list(chain.from_iterable(sentences))
    parts = [encode(flat[start : start + SENTENCES_AT_ONCE]) for start in range(0, len(flat), SENTENCES_AT_ONCE)]
    tokens, counted, words = (np.concatenate(each) for each in zip(*parts, strict=True)) if parts else _NOTHING
    per_document = np.array([len(each) for each in sentences], np.int64)
    owner = np.repeat(np.arange(len(documents)), per_document)[counted > 0]
    kept = np.bincount(owner, minlength=len(documents))
    size = np.uint16 if encode.backend.get_vocab_size(with_added_tokens=True) <= 1 << 16 else np.int32
    return {
        "tokens": tokens.astype(size),
        "sentences": _offsets(counted[counted > 0]),
        "documents": _offsets(kept[kept > 0]),
        "words": np.packbits(words),
    }


_NOTHING = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_))


def _offsets(lengths: Array) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32)


def _finish(folder: Path, shards: list[dict[str, Any]], seen: _Seen, stamps: list[list[str | int]] | None) -> None:
    """Remove what an earlier version of the source left, and say that all is there."""
    for place in folder.iterdir():
        if place.is_dir() and not (place.name.isdecimal() and int(place.name) < len(shards)):
            shutil.rmtree(place)
    counts = {name: sum(facts[name] for facts in shards) for name in ("documents", "sentences", "tokens")}
    _write_json(
        folder / MANIFEST,
        {
            "format": FORMAT,
            **counts,
            "stamps": stamps,
            "repeated": seen.repeated,
            "empty": seen.empty,
            "shards": shards,
        },
    )


def _write_json(path: Path, values: dict[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(json.dumps(values, indent=1), encoding="utf-8")
    unfinished.replace(path)
