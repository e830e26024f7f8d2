"""Questions and contexts in windows: labels that lead back to the answers, SQuAD's scores, the line of no answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from halfpint.data.encoded import Encoded
from halfpint.data.sources import DataError, Dataset
from halfpint.data.span_task import SpanTask, find_span_task, fit_threshold
from halfpint.data.spans import squad2_metrics
from halfpint.data.task import draw
from halfpint.data.tokenizer import Tokenizer
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

BERT = small_tokenizer("bert")
EVERY = set(" ".join(SENTENCES).split())
WORDS = sorted(one for one in EVERY if one.isalpha() and not any(one in other for other in EVERY - {one}))
"""None of them stands within another, so an answer is found where it was meant."""
ANSWERS = pa.list_(pa.struct([("text", pa.string()), ("answer_start", pa.int64())]))


def table_of(rows: list[tuple[str, str, list[str]]]) -> pa.Table:
    """From questions, contexts and answers, which are found in the context."""
    answers = [
        [{"text": answer, "answer_start": context.index(answer)} for answer in several] for _, context, several in rows
    ]
    return pa.table(
        {
            "question": [row[0] for row in rows],
            "context": [row[1] for row in rows],
            "answers": pa.array(answers, ANSWERS),
        }
    )


ROWS = [
    ("Who sleeps?", SENTENCES[0], ["naïve cafés", "cafés"]),
    ("How many barrels were there?", SENTENCES[1], ["1,250"]),
    ("Which company?", SENTENCES[3], ["Grey Company"]),
    ("Who baked the bread?", SENTENCES[3], []),
]


def dataset_of(table: pa.Table, **more: pa.Table) -> Dataset:
    return Dataset("data", {"train": table, **more}, {})


def task_of(table: pa.Table, **fields: Any) -> SpanTask:
    return replace(find_span_task(dataset_of(table)), **fields)


def labelled_texts(table: pa.Table, encoded: Encoded) -> list[set[str]]:
    """What the labels of each row's windows say, as text; without the windows that say nothing."""
    found: list[set[str]] = []
    for row, context in enumerate(table["context"].to_pylist()):
        found.append(set())
        for window in encoded.sequences_of(row):
            place = encoded.notes["place"][encoded.tokens_of(window)]
            start, end = encoded.per_sequence["label"][window]
            if (start, end) != (0, 0):
                found[-1].add(context[place[start, 0] : place[end, 1]])
    return found


def oracle(encoded: Encoded, *, has_head: bool = False) -> np.ndarray:
    """Scores that say what the labels say."""
    scores = np.full((encoded.num_tokens, 2 + has_head), -4.0)
    label, first = encoded.per_sequence["label"], encoded.starts[:-1]
    scores[first + label[:, 0], 0] = scores[first + label[:, 1], 1] = 4
    if has_head:
        scores[:, 2] = np.repeat(np.where(label[:, 0] == 0, 4, -4), encoded.lengths)
    return scores


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40))
    first = draw(st.integers(0, len(words) - 1))
    last = draw(st.integers(first, min(first + 3, len(words) - 1)))
    context = " ".join(words)
    question = draw(st.sampled_from(["Who?", "What left the harbour?"]))
    return question, context, [" ".join(words[first : last + 1])]


@given(
    st.sampled_from(KINDS), st.lists(asked(), min_size=1, max_size=3), st.integers(40, 80), st.sampled_from([0, 8, 128])
)
def test_labels_lead_back_to_the_answers(kind: str, rows: list[tuple[str, str, list[str]]], length: int, stride: int):
    table = table_of(rows)
    encoded = task_of(table, stride=stride).encode(table, small_tokenizer(kind), length)
    assert encoded.lengths.max() <= length
    for (_, _, (answer,)), texts in zip(rows, labelled_texts(table, encoded), strict=True):
        assert texts <= {answer}
        # Where windows share half of theirs, one of them holds all of a short answer.
        if stride == 128 and len(answer) < 8:
            assert texts == {answer}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_head", [False, True])
def test_an_oracle_is_right(kind: str, has_head: bool) -> None:
    table = table_of(ROWS)
    task = task_of(table)
    for length in (256, 48):
        encoded = task.encode(table, small_tokenizer(kind), length)
        judged = task.judge(table, encoded, oracle(encoded, has_head=has_head))
        assert judged["exact"].tolist() == judged["f1"].tolist() == [1] * 4
        assert judged["has_answer"].tolist() == [True, True, True, False]
        names = ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact")
        assert task.measure(judged) == dict.fromkeys(names, 1.0)


def test_a_row_is_a_question_and_all_windows_of_its_context() -> None:
    table = table_of(ROWS)
    encoded = task_of(table, stride=5).encode(table, BERT, 40)
    assert encoded.num_rows == 4
    assert encoded.num_sequences > 4
    for row, (question, _, _) in enumerate(ROWS):
        ids = BERT.backend.encode(question).ids
        for window in encoded.sequences_of(row):
            tokens = encoded.tokens_of(window)
            assert encoded.ids[tokens][: len(ids)].tolist() == ids
            outside = encoded.notes["place"][tokens][:, 0] < 0
            assert (encoded.segments[tokens] == 0)[: len(ids)].all()
            assert encoded.segments[tokens][len(ids) :].all()
            assert np.flatnonzero(~outside).tolist() == list(range(len(ids), len(outside) - 1))


def test_an_answer_that_no_window_holds_is_not_learnt() -> None:
    table = table_of([("Who?", SENTENCES[3], [SENTENCES[3]])])
    task = task_of(table)
    assert labelled_texts(table, task.encode(table, BERT, 256)) == [{SENTENCES[3]}]
    split = task.encode(table, BERT, 24)
    assert split.num_sequences > 1
    assert not split.per_sequence["label"].any()


def test_an_answer_within_a_word_is_learnt_as_the_whole_word() -> None:
    words = tokenizers.Tokenizer(models.WordLevel({"the": 0, "harbourmaster": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    table = table_of([("Who?", "the harbourmaster slept", ["harbour"])])
    assert labelled_texts(table, task_of(table).encode(table, Tokenizer(words), 64)) == [{"harbourmaster"}]


def test_long_questions_are_cut_and_counted() -> None:
    table = table_of([("who " * 200 + "?", SENTENCES[0], ["sun"]), ("Who?", SENTENCES[0], ["sun"])])
    encoded = task_of(table).encode(table, BERT, 384)
    assert encoded.num_truncated == 1
    assert (encoded.segments[encoded.tokens_of(0)] == 0).sum() == 1 + 64 + 1
    short = task_of(table).encode(table, BERT, 24)
    assert short.lengths.max() <= 24
    with pytest.raises(DataError, match="max_length of at least 5"):
        task_of(table).encode(table, BERT, 4)


def test_without_labels_no_answers_are_needed() -> None:
    table = table_of(ROWS)
    task = task_of(table)
    bare = table.drop_columns(["answers"])
    encoded = task.encode(bare, BERT, 64, labelled=False)
    assert not encoded.per_sequence
    scores = oracle(task.encode(table, BERT, 64))
    assert task.answer(bare, encoded, scores)["prediction"].to_pylist() == ["naïve cafés", "1,250", "Grey Company", ""]


@pytest.mark.parametrize("has_head", [False, True])
def test_answers_tell_their_place(has_head: bool) -> None:
    table = table_of(ROWS)
    task = task_of(table)
    encoded = task.encode(table, BERT, 64)
    answers = task.answer(table, encoded, oracle(encoded, has_head=has_head)).to_pylist()
    for (_, context, expected), found in zip(ROWS, answers, strict=True):
        assert 0.5 < found["probability"] <= 1
        assert found["prediction"] == (expected[0] if expected else "")
        if expected:
            assert context[found["start"] : found["end"]] == expected[0]
            assert found["no_answer_score"] < 0
        else:
            assert found["start"] is found["end"] is None
            assert found["no_answer_score"] > 0


def test_a_context_without_a_token_has_no_answer() -> None:
    table = table_of([("Who?", "\u200d", [])])
    task = task_of(table)
    encoded = task.encode(table, BERT, 64)
    assert encoded.num_sequences == 1
    answers = task.answer(table, encoded, np.zeros((encoded.num_tokens, 2)))
    assert answers.to_pylist()[0]["prediction"] == ""
    assert task.measure(task.judge(table, encoded, np.zeros((encoded.num_tokens, 2))))["exact"] == 1


def test_calibration_finds_the_line_of_dev() -> None:
    table = table_of(ROWS)
    task = task_of(table)
    encoded = task.encode(table, BERT, 64)
    shifted = oracle(encoded, has_head=True)
    shifted[:, 2] += 50  # sure of nothing but that there is no answer
    assert task.measure(task.judge(table, encoded, shifted))["f1"] == 0.25
    fitted = task.calibrate(table, encoded, shifted)
    assert fitted.threshold == 50
    assert fitted.measure(fitted.judge(table, encoded, shifted))["f1"] == 1
    plain = task_of(table.slice(0, 3))
    assert plain.calibrate(table, encoded, shifted) is plain


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_no_line_is_better_than_the_fitted(rows: list[tuple[int, bool, bool]]) -> None:
    """By SQuAD 2.0's evaluation; each row has a score of no answer, an answer or not, and a right prediction or not."""
    answers = [["fox"] if has_answer else [] for _, has_answer, _ in rows]
    predictions = ["fox" if right else "dog" for _, _, right in rows]
    scores = np.array([score for score, _, _ in rows], dtype=np.float64)
    gains = np.array([right if has_answer else -1.0 for _, has_answer, right in rows])

    def f1(threshold: float) -> float:
        return squad2_metrics(answers, predictions, scores, threshold)["f1"]

    fitted = fit_threshold(gains, scores)
    assert np.isfinite(fitted)
    assert f1(fitted) == pytest.approx(max(map(f1, [-5.0, *scores.tolist()])))


def test_the_trivial_answer_is_none() -> None:
    table = table_of(ROWS)
    task = task_of(table)
    judged = task.trivial(table, table)
    assert judged is not None
    assert task.measure(judged)["f1"] == 0.25
    assert task_of(table.slice(0, 3)).trivial(table, table.slice(0, 3)) is None


def test_metrics_follow_from_any_rows() -> None:
    table = table_of(ROWS)
    task = task_of(table)
    judged = task.trivial(table, table)
    assert judged is not None
    assert task.measure(draw(judged, np.array([3, 3, 0]))) == {
        "f1": pytest.approx(2 / 3), "exact": pytest.approx(2 / 3), "HasAns_f1": 0, "HasAns_exact": 0,
        "NoAns_f1": 1, "NoAns_exact": 1,
    }  # fmt: skip
    assert "HasAns_f1" not in task.measure(draw(judged, np.array([3, 3])))


def test_squad_1_counts_any_of_the_answers() -> None:
    second, neither = ("Who?", SENTENCES[0], ["cafés"]), ("Who?", SENTENCES[0], ["lazy dog"])
    table = table_of(ROWS[:1])
    task = task_of(table)
    for row, expected in ((ROWS[0], 1), (second, 1), (neither, 0)):
        encoded = task.encode(table_of([row]), BERT, 64)
        assert task.measure(task.judge(table, encoded, oracle(encoded))) == {"f1": expected, "exact": expected}


def test_the_task_is_found() -> None:
    with_and_without = table_of(ROWS)
    assert find_span_task(dataset_of(with_and_without)).no_answer
    assert find_span_task(dataset_of(table_of(ROWS[:3]), dev=with_and_without)).no_answer
    assert not find_span_task(dataset_of(table_of(ROWS[:3]))).no_answer
    assert find_span_task(dataset_of(table_of(ROWS[:3])), task="squad2").no_answer
    assert find_span_task(dataset_of(table_of(ROWS[:3])), task="squad").name == "squad"


def test_answers_may_be_as_on_the_hub() -> None:
    table = table_of(ROWS)
    hub = [
        {"text": [each["text"] for each in several], "answer_start": [each["answer_start"] for each in several]}
        for several in table["answers"].to_pylist()
    ]
    other = table.set_column(table.column_names.index("answers"), "answers", pa.array(hub))
    task = task_of(table)
    assert task_of(other) == task
    assert task.read_answers(other) == task.read_answers(table)


def test_columns_can_be_named() -> None:
    table = table_of(ROWS).rename_columns(["asked", "story", "replies"])
    task = find_span_task(dataset_of(table), text="asked", pair="story", label="replies")
    assert labelled_texts(table.rename_columns(["question", "context", "answers"]), task.encode(table, BERT, 256))[1]
    with pytest.raises(DataError, match="which column holds the questions"):
        find_span_task(dataset_of(table))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([["sun"]], "row 1 has the answers .*'sun'.*; expected a list of objects with text and answer_start"),
        (["sun"], "row 1 has the answers 'sun'"),
        ([[{"text": "sun"}]], "row 1 has the answers"),
        ([[{"text": "sun", "answer_start": 3}]], "row 1 has the answer 'sun' at character 3, where .* 'The'|' re'"),
        ([[{"text": "sun", "answer_start": -1}]], "at character -1"),
        ([[{"text": " ", "answer_start": 3}]], "row 1 has the answer ' '"),
    ],
)
def test_bad_answers_are_refused(answers: list[Any], message: str) -> None:
    table = pa.table({"question": ["Who?"], "context": [SENTENCES[0]], "answers": answers})
    with pytest.raises(DataError, match=message):
        task_of(table).encode(table, BERT, 64)


def test_other_bad_input_is_refused() -> None:
    table = table_of(ROWS)
    with pytest.raises(DataError, match=r"row 4 of train has no answer, .* name the task squad2"):
        find_span_task(dataset_of(table), task="squad")
    with pytest.raises(
        DataError, match=r"which column holds the contexts\? Expected context .* --pair; the columns are"
    ):
        find_span_task(dataset_of(table.drop_columns(["context"])))
    with pytest.raises(DataError, match="there is no column 'answers'"):
        task_of(table).judge(table.drop_columns(["answers"]), *_scored(table))
    empty = table.set_column(0, "question", pa.array(["Who?", " ", "Who?", "Who?"]))
    with pytest.raises(DataError, match="row 2 has an empty question"):
        task_of(table).encode(empty, BERT, 64)


def _scored(table: pa.Table) -> tuple[Encoded, np.ndarray]:
    encoded = task_of(table).encode(table, BERT, 64)
    return encoded, oracle(encoded)


def test_a_task_survives_json() -> None:
    task = replace(task_of(table_of(ROWS)), threshold=1.5, stride=64)
    assert SpanTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def read_squad(path: Path, num_articles: int) -> pa.Table:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"][:num_articles]
    rows = [
        {"question": it["question"], "context": paragraph["context"], "answers": it["answers"]}
        for article in articles
        for paragraph in article["paragraphs"]
        for it in paragraph["qas"]
    ]
    schema = pa.schema([("question", pa.string()), ("context", pa.string()), ("answers", ANSWERS)])
    return pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize(("version", "length"), [("v1.1", 384), ("v2.0", 128)])
def test_real_answers_come_back(reference_data: Path, version: str, length: int) -> None:
    table = read_squad(reference_data / "squad" / f"dev-{version}.json", 2)
    file = reference_data / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(file)))
    task = task_of(table)
    assert task.no_answer == (version == "v2.0")
    encoded = task.encode(table, tokenizer, length)
    # Tokens do not end where an annotator stopped within a word: two in a thousand.
    first = [answers[0].text if answers else None for answers in task.read_answers(table)]
    texts = labelled_texts(table, encoded)
    assert np.mean([found == ({text} if text else set()) for text, found in zip(first, texts, strict=True)]) > 0.995
    for has_head in {False, task.no_answer}:
        assert task.measure(task.judge(table, encoded, oracle(encoded, has_head=has_head)))["f1"] > 0.999
