"""Words and their tags: on sub-words and back, scored as seqeval scores them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.columns import Columns
from halfpint.data.encoded import Encoded
from halfpint.data.sources import DataError, Dataset
from halfpint.data.tagging import IGNORED, align_labels
from halfpint.data.tagging_task import NO_WORD, TaggingTask, find_tagging_task
from halfpint.data.task import draw
from halfpint.data.tokenizer import Tokenizer
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

BERT = small_tokenizer("bert")
LABELS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
TASK = TaggingTask(Columns("tokens", label="tags"), LABELS)
ROWS: dict[str, list[Any]] = {
    "tokens": [["Anna", "Marsh", "of", "Northwick", "slept", "."], ["Lake", "Tarn"]],
    "tags": [["B-PER", "I-PER", "O", "B-LOC", "O", "O"], ["B-LOC", "I-LOC"]],
}
# Words that leave no token behind, too.
WORD = st.sampled_from(" ".join(SENTENCES).split()) | st.sampled_from(["", "\u200d", "co-op", "日本", "   ", "\u0301"])


@st.composite
def tagged(draw_one: st.DrawFn) -> pa.Table:
    rows = draw_one(st.lists(st.lists(WORD, min_size=1, max_size=12), min_size=1, max_size=4))
    tags = [[draw_one(st.sampled_from(LABELS)) for _ in row] for row in rows]
    return table_of(tokens=rows, tags=tags)


def table_of(**changes: list[Any]) -> pa.Table:
    strings = pa.list_(pa.string())
    return pa.table({name: pa.array(rows, strings) for name, rows in (ROWS | changes).items()})


def find(table: pa.Table, **named: str) -> TaggingTask:
    return find_tagging_task(Dataset("data", {"train": table}, {}), **named)


def oracle(encoded: Encoded, labels: tuple[str, ...] = LABELS) -> np.ndarray:
    """Scores that say what the labels say, and the last label where they say nothing."""
    label = encoded.per_token["label"]
    return 3.0 * np.eye(len(labels))[np.where(label == IGNORED, len(labels) - 1, label)]


def words_seen(encoded: Encoded, row: int) -> set[int]:
    return set(encoded.notes["word"][encoded.tokens_of(row)].tolist()) - {NO_WORD}


@given(st.sampled_from(KINDS), tagged())
def test_labels_are_on_the_first_sub_words(kind: str, table: pa.Table) -> None:
    encoded = TASK.encode(table, small_tokenizer(kind), 256)
    for row, tags in enumerate(table["tags"].to_pylist()):
        tokens = encoded.tokens_of(row)
        words = [None if word == NO_WORD else int(word) for word in encoded.notes["word"][tokens]]
        aligned = align_labels(words, [LABELS.index(tag) for tag in tags])
        assert encoded.per_token["label"][tokens].tolist() == aligned.tolist()


@given(st.sampled_from(KINDS), tagged(), st.integers(4, 40))
def test_an_oracle_is_right_wherever_it_sees_a_word(kind: str, table: pa.Table, length: int) -> None:
    encoded = TASK.encode(table, small_tokenizer(kind), length)
    assert encoded.lengths.max() <= length
    answers = TASK.answer(table, encoded, oracle(encoded)).to_pylist()
    for row, (tags, answer) in enumerate(zip(table["tags"].to_pylist(), answers, strict=True)):
        seen = words_seen(encoded, row)
        assert answer["prediction"] == [tag if word in seen else "O" for word, tag in enumerate(tags)]
        assert [share is not None for share in answer["probability"]] == [word in seen for word in range(len(tags))]


@given(st.sampled_from(KINDS), tagged(), st.randoms(use_true_random=False))
def test_metrics_equal_seqeval(kind: str, table: pa.Table, random: Any) -> None:
    reference = pytest.importorskip("seqeval.metrics")
    encoded = TASK.encode(table, small_tokenizer(kind), 64)
    scores = oracle(encoded) + 4 * np.random.default_rng(random.randrange(2**32)).random((encoded.num_tokens, 5))
    metrics = TASK.measure(TASK.judge(table, encoded, scores))
    labels, given_tags = table["tags"].to_pylist(), TASK.answer(table, encoded, scores)["prediction"].to_pylist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of division by zero
        for name in ("f1", "precision", "recall", "accuracy"):
            score = getattr(reference, f"{name}_score")
            assert metrics[name] == pytest.approx(score(labels, given_tags))


def test_words_reach_the_backend_as_in_running_text() -> None:
    table = table_of(tokens=[SENTENCES[0].split()], tags=[["O"] * len(SENTENCES[0].split())])
    for kind in KINDS:
        tokenizer = small_tokenizer(kind)
        ours = TASK.encode(table, tokenizer, 256)
        assert ours.ids.tolist() == tokenizer.backend.encode(SENTENCES[0]).ids


def test_cut_sentences_are_counted() -> None:
    table = table_of()
    encoded = TASK.encode(table, BERT, 5)
    lost = [len(words_seen(encoded, row)) < len(words) for row, words in enumerate(ROWS["tokens"])]
    assert encoded.num_truncated == sum(lost) == 1
    judged = TASK.judge(table, encoded, oracle(encoded))
    assert judged["words"].tolist() == [6, 2]
    assert judged["given"].tolist() == [2, 1]
    assert TASK.measure(judged)["recall"] < 1


def test_rows_are_counted() -> None:
    table = table_of()
    encoded = TASK.encode(table, BERT, 128)
    judged = TASK.judge(table, encoded, oracle(encoded))
    assert {name: each.tolist() for name, each in judged.items()} == {
        "words_right": [6, 2], "words": [6, 2], "right": [2, 1], "predicted": [2, 1], "given": [2, 1],
    }  # fmt: skip
    assert TASK.measure(judged) == {"accuracy": 1, "f1": 1, "precision": 1, "recall": 1}
    assert TASK.measure(draw(judged, np.array([1, 1, 0])))["f1"] == 1


def test_answers_hold_spans() -> None:
    table = table_of().drop_columns(["tags"])
    encoded = TASK.encode(table, BERT, 128, labelled=False)
    assert not encoded.per_token
    scores = oracle(TASK.encode(table_of(), BERT, 128))
    first, second = TASK.answer(table, encoded, scores).to_pylist()
    assert first["spans"] == [
        {"type": "PER", "start": 0, "end": 2, "text": "Anna Marsh"},
        {"type": "LOC", "start": 3, "end": 4, "text": "Northwick"},
    ]
    assert second["prediction"] == ["B-LOC", "I-LOC"]
    assert second["spans"] == [{"type": "LOC", "start": 0, "end": 2, "text": "Lake Tarn"}]
    assert all(0.5 < share <= 1 for share in first["probability"])


def test_the_trivial_answer_finds_nothing() -> None:
    judged = TASK.trivial(table_of(), table_of())
    assert TASK.measure(judged) == {"accuracy": 3 / 8, "f1": 0, "precision": 0, "recall": 0}


def test_without_entities_the_accuracy_decides() -> None:
    table = table_of(tags=[["NOUN", "NOUN", "ADP", "NOUN", "VERB", "PUNCT"], ["NOUN", "NOUN"]])
    task = find(table)
    assert (task.labels, task.metrics) == (("ADP", "NOUN", "PUNCT", "VERB"), ("accuracy",))
    encoded = task.encode(table, BERT, 128)
    scores = oracle(encoded, task.labels)
    assert task.measure(task.judge(table, encoded, scores)) == {"accuracy": 1}
    assert task.measure(task.trivial(table, table)) == {"accuracy": 5 / 8}
    assert task.answer(table, encoded, scores).column_names == ["prediction", "probability"]


def test_the_task_is_found() -> None:
    assert find(table_of()) == replace(TASK, labels=("O", "B-LOC", "B-PER", "I-LOC", "I-PER"))
    assert find(table_of(), task="conll").name == "conll"
    other = table_of().rename_columns(["Words", "ner_tags"])
    assert find(other).columns == Columns("Words", label="ner_tags")
    named = table_of().rename_columns(["said", "marks"])
    assert find(named, text="said", label="marks").columns == Columns("said", label="marks")


def test_tags_may_be_numbers() -> None:
    table = pa.table({"tokens": ROWS["tokens"], "tags": [[2, 10, 0, 2, 0, 0], [0, 0]]})
    task = find(table)
    assert (task.labels, task.metrics) == (("0", "2", "10"), ("accuracy",))
    assert [tags.tolist() for tags in task.read_labels(table)] == [[1, 2, 0, 1, 0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tags": [["O"] * 6, ["O"]]}, "row 2 has 2 words and 1 tags; each word needs one"),
        ({"tags": [["O"] * 6, ["O", None]]}, "row 2 has a word without a tag"),
        ({"tags": [["O"] * 6, ["O"] * 2]}, r"the column tags has one tag only \(O\)"),
        ({"tokens": [["a"] * 6, []]}, "row 2 has no tokens"),
        ({"tokens": [["a"] * 6, None]}, "row 2 has the tokens None, expected a list of words"),
        ({"tokens": [["a"] * 6, ["a", None]]}, "row 2 has None among its tokens, expected words"),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find(table_of(**changes))


def test_other_bad_input_is_refused() -> None:
    table = table_of()
    with pytest.raises(DataError, match=r"which column holds the tags\? Expected tags or .* name it with --label"):
        find(table.drop_columns(["tags"]))
    with pytest.raises(DataError, match="row 1 has the tokens 'a b', expected a list of words"):
        find(pa.table({"tokens": ["a b"], "tags": ["O O"]}))
    with pytest.raises(DataError, match="leave --pair tags out"):
        find(table, pair="tags")
    strange = table_of(tags=[["O"] * 6, ["B-ORG", "O"]])
    for ask in (
        TASK.read_labels,
        lambda rows: TASK.judge(rows, *_scored(table)),
        lambda rows: TASK.encode(rows, BERT, 9),
    ):
        with pytest.raises(DataError, match="row 2 has the tag 'B-ORG', which is not in train; known are O, B-LOC"):
            ask(strange)


def _scored(table: pa.Table) -> tuple[Encoded, np.ndarray]:
    encoded = TASK.encode(table, BERT, 64)
    return encoded, oracle(encoded)


def test_a_task_survives_json() -> None:
    assert TaggingTask.from_dict(json.loads(json.dumps(TASK.to_dict()))) == TASK


def test_real_sentences(reference_data: Path) -> None:
    sentences = (reference_data / "conll2003" / "valid.txt").read_text(encoding="utf-8").strip().split("\n\n")[:300]
    lines = [[line.split(" ") for line in sentence.splitlines()] for sentence in sentences]
    table = pa.table(
        {"tokens": [[it[0] for it in row] for row in lines], "tags": [[it[1] for it in row] for row in lines]}
    )
    file = reference_data / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    task = find(table)
    encoded = task.encode(table, Tokenizer(tokenizers.Tokenizer.from_file(str(file))), 256)
    judged = task.judge(table, encoded, oracle(encoded, task.labels))
    assert judged["words"].sum() == sum(map(len, lines))
    assert task.measure(judged) == {"accuracy": 1, "f1": 1, "precision": 1, "recall": 1}
