"""Search finds the nearest texts, embeds a corpus once, and goes on where it was ended."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import halfpint as hp
from halfpint.data.sources import DataError
from halfpint.engines import search as module
from tests.command import assert_refused, run_command
from tests.data.files import write
from tests.data.small_tokenizers import SENTENCES
from tests.engines import small_models as small

WORDS = sorted(set(" ".join(SENTENCES).split()))
TEXTS = [" ".join(WORDS[start : start + 1 + start % 4]) for start in range(len(WORDS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.save_model(tmp_path_factory.mktemp("models") / "m", small.LIKENESS)


@pytest.fixture(scope="module")
def model(folder: Path) -> hp.Model:
    return hp.load(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALFPINT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counting:
    """Counts the texts that a model embeds."""

    def __init__(self, model: hp.Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, model.embed_and_count

        def embed_and_count(texts: list[str]) -> tuple[np.ndarray, int]:
            self.count += len(texts)
            return real(texts)

        monkeypatch.setattr(model, "embed_and_count", embed_and_count)


def test_the_nearest_texts_are_found_best_first(model: hp.Model) -> None:
    queries = TEXTS[3:6]
    vectors = model.embed(TEXTS)
    cosines = model.embed(queries) @ vectors.T
    for hits, row, query in zip(hp.search(model, TEXTS, queries, k=5), cosines, queries, strict=True):
        assert hits[0].text == query and hits[0].score == pytest.approx(1, abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx(np.sort(row)[::-1][:5].tolist(), abs=1e-5)
        assert all(hit.text == TEXTS[hit.index] and hit.row == {"text": hit.text} for hit in hits)


def test_a_corpus_is_embedded_once(model: hp.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(model, monkeypatch)
    first = hp.search(model, TEXTS, ["a fox"])
    assert counting.count == len(TEXTS) + 1
    assert hp.search(model, TEXTS, ["a fox"]) == first
    assert counting.count == len(TEXTS) + 2
    hp.search(model, TEXTS[:-1], ["a fox"])
    assert counting.count == 2 * len(TEXTS) + 2, "other texts are another corpus"


def test_another_model_embeds_anew(model: hp.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hp.search(model, TEXTS, ["a fox"])
    other = hp.load(small.save_model(tmp_path / "other", small.LIKENESS, seed=9))
    counting = Counting(other, monkeypatch)
    hp.search(other, TEXTS, ["a fox"])
    assert counting.count == len(TEXTS) + 1


def test_a_search_that_was_ended_goes_on(model: hp.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 5)

    def stop(done: int, of: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hp.search(model, TEXTS, ["a fox"], watch=stop)
    counting = Counting(model, monkeypatch)
    hp.search(model, TEXTS, ["a fox"])
    assert counting.count == len(TEXTS) - 10 + 1


@pytest.mark.parametrize("damage", [b"", b"no array"])
def test_a_damaged_entry_is_made_again(model: hp.Model, cache: Path, damage: bytes) -> None:
    first = hp.search(model, TEXTS, ["a fox"])
    for path in (cache / "embeddings").glob("*.npy"):
        path.write_bytes(damage)
    assert hp.search(model, TEXTS, ["a fox"]) == first


def test_without_a_cache_vectors_stay_in_memory(model: hp.Model, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hp.search(model, TEXTS, ["a fox"])
    monkeypatch.setenv("HALFPINT_CACHE", str(write(cache.parent / "file", "no folder")))
    again = hp.search(model, TEXTS, ["a fox"])
    assert [hit.index for hit in again[0]] == [hit.index for hit in first[0]]


def test_rows_without_a_text_are_never_found(model: hp.Model) -> None:
    corpus = pa.table({"id": [1, 2, 3, 4], "text": ["", "a fox", None, "the dog"]})
    (hits,) = hp.search(model, corpus, ["a fox"])
    assert [(hit.index, hit.row["id"]) for hit in hits] == [(1, 2), (3, 4)]


def test_bad_input_is_said_in_words(model: hp.Model) -> None:
    with pytest.raises(ValueError, match=r"search takes a list of queries.*\['a fox'\]"):
        hp.search(model, TEXTS, "a fox")
    with pytest.raises(ValueError, match="query 2 is ' '"):
        hp.search(model, TEXTS, ["a", " "])
    with pytest.raises(DataError, match="has no texts"):
        hp.search(model, pa.table({"text": [None, ""]}), ["a"])
    with pytest.raises(ValueError, match="precision are for a model given by its name"):
        hp.search(model, TEXTS, ["a"], device="cpu")


def test_the_command_prints_what_it_finds(folder: Path, tmp_path: Path) -> None:
    corpus = write(tmp_path / "texts.txt", "".join(f"{text}\n" for text in SENTENCES))
    done = run_command("search", folder, corpus, SENTENCES[0], "-k", 2)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == SENTENCES[0]
    assert lines[1].split()[:3] == ["1.000", "row", "1"]
    told = json.loads(run_command("search", folder, corpus, SENTENCES[1], SENTENCES[2], "-k", 1, "--json").out)
    assert [(each["query"], each["hits"][0]["index"]) for each in told] == [(SENTENCES[1], 1), (SENTENCES[2], 2)]


def test_queries_come_from_a_pipe(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write(tmp_path / "texts.txt", "".join(f"{text}\n" for text in SENTENCES))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SENTENCES[2]}\n\n {SENTENCES[0]} \n"))
    told = json.loads(run_command("search", folder, corpus, "-k", 1, "--json").out)
    assert [each["hits"][0]["index"] for each in told] == [2, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("-k", 0), "-k is 0; it must be at least 1"), (("--text", "body"), "body"), (("--device", "tpu"), "'tpu'")],
)
def test_the_command_refuses_bad_input(folder: Path, tmp_path: Path, arguments: tuple, words: str) -> None:
    corpus = write(tmp_path / "texts.csv", "text\na fox\n")
    assert_refused(run_command("search", folder, corpus, "a fox", *arguments), words)
    assert_refused(run_command("search", folder, tmp_path / "gone.csv", "a fox"), "there is no file")
