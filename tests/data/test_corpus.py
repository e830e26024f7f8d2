"""A corpus on disk holds what the tokenizer says of every sentence, however it came about."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from halfpint.data import build_corpus as building
from halfpint.data.build_corpus import build_corpus
from halfpint.data.corpus import Corpus, read_corpus
from halfpint.data.sentences import split_sentences
from halfpint.data.sources import DataError
from tests.data.files import write
from tests.data.small_tokenizers import SENTENCES, small_tokenizer

KINDS = ("bert", "albert", "roberta")
DOCUMENTS = [
    f"{first} {second}\n\n{third} #{number}, isn't it?"
    for number, (first, second, third) in enumerate(
        (a, b, c) for a in SENTENCES for b in SENTENCES for c in SENTENCES[:3]
    )
]


def build(folder: Path, kind: str = "bert", documents: list[str] = DOCUMENTS, processes: int = 1) -> Corpus:
    return build_corpus(documents, small_tokenizer(kind), folder, processes=processes)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_sentences_and_words_are_the_tokenizer_s(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = build(tmp_path / "c", kind)
    backend = corpus.tokenizer.backend
    assert corpus.num_documents == len(DOCUMENTS)
    for index, text in enumerate(DOCUMENTS):
        document = corpus.document(index)
        expected = [backend.encode(sentence, add_special_tokens=False) for sentence in split_sentences(text)]
        assert document.num_sentences == len(expected)
        for number, encoding in enumerate(expected):
            place = slice(*document.starts[number : number + 2])
            assert document.tokens[place].tolist() == encoding.ids
            words = np.array(encoding.word_ids)
            assert document.begins_word[place].tolist() == [True, *(words[1:] != words[:-1]).tolist()]
    assert corpus.num_tokens == sum(len(corpus.document(index).tokens) for index in range(corpus.num_documents))


def test_tokens_take_two_bytes_where_they_fit(tmp_path: Path) -> None:
    assert build(tmp_path / "c").document(0).tokens.dtype == np.uint16


def test_words_of_a_real_vocabulary(tmp_path: Path, reference_data: Path) -> None:
    """The table of WordPiece says the same as word ids, also of what is strange."""
    from halfpint.artifact import read_artifact
    from halfpint.data.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(read_artifact(reference_data / "models" / "all-MiniLM-L6-v2"))
    texts = ["unbelievableness ##ing # # ##", "a##b [UNK] [MASK] x\u0301y 漢字かな", "don't re-enter 3.14 e.g. ﬁ☕️👍🏽"]
    corpus = build_corpus(texts, tokenizer, tmp_path / "c", processes=1)
    for index, text in enumerate(texts):
        (sentence,) = split_sentences(text)
        encoding = tokenizer.backend.encode(sentence, add_special_tokens=False)
        words = np.array([-1 if word is None else word for word in encoding.word_ids])
        begins = corpus.document(index).begins_word
        same = [True, *(words[1:] != words[:-1]).tolist()]
        assert begins.tolist() == same, encoding.tokens


def test_empty_and_repeated_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    corpus = build(tmp_path / "c", documents=["a fox.", "", "a dog.", "a fox.", " \n", "a fox. "])
    assert (corpus.num_documents, corpus.manifest["repeated"], corpus.manifest["empty"]) == (3, 1, 2)


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "UNIT_CHARACTERS", 1000)


@pytest.mark.usefixtures("small_units")
def test_shards_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    one, two = (build(tmp_path / str(number), processes=number) for number in (1, 2))
    assert len(one.shards) > 5
    assert content(one.folder) == content(two.folder)


@pytest.mark.usefixtures("small_units")
def test_a_finished_corpus_is_read_and_not_built(tmp_path: Path) -> None:
    build(tmp_path / "c")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("*.npy")}
    build(tmp_path / "c")
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("damage", ["cut", "change", "remove"])
def test_a_shard_that_was_damaged_is_refused_and_made_again(tmp_path: Path, damage: str) -> None:
    corpus = build(tmp_path / "c")
    before = content(corpus.folder)
    path = tmp_path / "c" / "00001" / "tokens.npy"
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 2)
    elif damage == "change":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        path.unlink()
    read = read_corpus(tmp_path / "c")
    read.document(0)
    with pytest.raises(DataError, match=r"00001/tokens\.npy (was changed|cannot be read).*build the corpus again"):
        read.document(read.shards[0].num_documents)
    assert content(build(tmp_path / "c").folder) == before


def test_texts_that_have_changed_are_another_corpus(tmp_path: Path) -> None:
    assert build(tmp_path / "c", documents=["a fox.", "a dog."]).num_documents == 2
    assert build(tmp_path / "c", documents=["a fox.", "a dog.", "a cat."]).num_documents == 3
    path = write(tmp_path / "a.txt", "a fox.\na dog.\n")
    for lines in (2, 3):
        assert build_corpus(path, small_tokenizer("bert"), tmp_path / "d", processes=1).num_documents == lines
        write(path, "a fox.\na dog.\na cat.\n")


def test_another_job_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a fox.\na dog.\n")
    build_corpus(path, small_tokenizer("bert"), tmp_path / "c", processes=1)
    with pytest.raises(DataError, match="holds a corpus that differs in its tokenizer"):
        build_corpus(path, small_tokenizer("albert"), tmp_path / "c", processes=1)
    with pytest.raises(DataError, match="differs in its source"):
        build_corpus(write(tmp_path / "b.txt", "a cat.\n"), small_tokenizer("bert"), tmp_path / "c", processes=1)
    mine = write(tmp_path / "mine" / "x.txt", "mine")
    with pytest.raises(DataError, match="is in the way"):
        build_corpus(path, small_tokenizer("bert"), mine.parent, processes=1)


def test_a_source_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no text in"):
        build(tmp_path / "c", documents=["", " "])
    with pytest.raises(DataError, match="is no corpus, or it was not finished"):
        read_corpus(tmp_path / "c")


KILLED = """
import sys
from pathlib import Path
import tokenizers
from halfpint.data import build_corpus as building
from halfpint.data.tokenizer import Tokenizer

# Without the guard that a script of several processes usually needs.
building.UNIT_CHARACTERS = 1000
tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(sys.argv[3]))
building.build_corpus(Path(sys.argv[1]), tokenizer, sys.argv[2], processes=2)
"""


def test_a_killed_build_goes_on_to_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "UNIT_CHARACTERS", 1000)
    source = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in 4 * DOCUMENTS))
    script = write(tmp_path / "killed.py", KILLED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Training the same tokenizer in another process may give another one.
    small_tokenizer("bert").save(tmp_path / "tokenizer.json")
    command = [sys.executable, script, source, tmp_path / "c", tmp_path / "tokenizer.json"]
    process = subprocess.Popen(command, env=environment)
    while not (tmp_path / "c" / "00002").exists():
        assert process.poll() is None, "it was to be killed in the middle"
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "c" / "corpus.json").exists()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("0000[01]/tokens.npy")}
    corpus = build_corpus(source, small_tokenizer("bert"), tmp_path / "c", processes=1)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    whole = build_corpus(source, small_tokenizer("bert"), tmp_path / "whole", processes=2)
    assert content(corpus.folder) == content(whole.folder)
    assert corpus.manifest["repeated"] == 3 * len(DOCUMENTS)
