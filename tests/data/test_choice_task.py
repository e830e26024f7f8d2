"""Questions with options: sequences of article, question and option, and the options that scores choose."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from halfpint.data.choice_task import ChoiceTask, fill_in, find_choice_task
from halfpint.data.columns import Columns
from halfpint.data.encoded import Encoded
from halfpint.data.loader import Loader
from halfpint.data.sources import DataError, Dataset
from halfpint.data.task import draw
from halfpint.data.tokenizer import Tokenizer
from tests.data.small_tokenizers import KINDS, SENTENCES, small_tokenizer

BERT = small_tokenizer("bert")
ROWS: dict[str, list[Any]] = {
    "article": [SENTENCES[0], SENTENCES[1], SENTENCES[3]],
    "question": ["What jumps?", "The barrels held _ .", "Who met near the lake?"],
    "options": [["a dog", "the fox", "the sun"], ["tar", "little else", "ships"], ["Anna and the Company", "nobody"]],
    "answer": [1, 0, 0],
    "level": ["middle", "high", "high"],
}


def table_of(**changes: list[Any]) -> pa.Table:
    return pa.table(ROWS | changes)


def find(table: pa.Table, **named: str) -> ChoiceTask:
    return find_choice_task(Dataset("data", {"train": table}, {}), **named)


def texts(encoded: Encoded, tokenizer: Tokenizer = BERT) -> list[str]:
    return [
        " ".join(tokenizer.backend.id_to_token(each) for each in encoded.ids[encoded.tokens_of(sequence)])
        for sequence in range(encoded.num_sequences)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_backends_pair_of_each_option(kind: str) -> None:
    table, tokenizer = table_of(), small_tokenizer(kind)
    encoded = find(table).encode(table, tokenizer, 256)
    pairs = [
        (article, fill_in(question, option))
        for article, question, options in zip(ROWS["article"], ROWS["question"], ROWS["options"], strict=True)
        for option in options
    ]
    expected = tokenizer(pairs, 256)
    assert [encoded.ids[encoded.tokens_of(each)].tolist() for each in range(len(pairs))] == expected.ids
    assert [encoded.segments[encoded.tokens_of(each)].tolist() for each in range(len(pairs))] == expected.segments
    assert encoded.row_sequences.tolist() == [3, 3, 2]
    assert encoded.per_sequence["label"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert encoded.num_truncated == 0


@pytest.mark.parametrize(
    ("question", "filled"),
    [
        ("What jumps?", "What jumps? the fox"),
        ("_ jumps over the dog .", "the fox jumps over the dog ."),
        ("____ jumps.", "the fox jumps."),
        ("Both _ and _ jump.", "Both the fox and the fox jump."),
    ],
)
def test_an_option_fills_the_blank(question: str, filled: str) -> None:
    assert fill_in(question, "the fox") == filled
    assert fill_in("_", r"\1 \g<0>") == r"\1 \g<0>"


def test_only_the_article_is_cut() -> None:
    table = table_of()
    task = find(table)
    whole, cut = task.encode(table, BERT, 256), task.encode(table, BERT, 36)
    assert cut.lengths.max() <= 36
    for before, after in zip(texts(whole), texts(cut), strict=True):
        (article, asked), (kept, still) = before.split(" [SEP] "), after.split(" [SEP] ")
        assert still == asked
        assert article.startswith(kept)
    fewer = cut.row_tokens < whole.row_tokens
    assert cut.num_truncated == fewer.sum() > 0


def test_of_a_long_question_the_end_stays() -> None:
    table = table_of(article=[" ".join([each] * 30) for each in ROWS["article"]], question=["why " * 300 + "?"] * 3)
    encoded = find(table).encode(table, BERT, 384)
    assert encoded.num_truncated == 3
    assert (encoded.lengths == 384).all()
    assert (encoded.segments[encoded.tokens_of(0)] == 1).sum() == 128 + 1
    assert texts(encoded)[1].endswith(f"{' '.join(BERT.backend.encode('? the fox').tokens[1:])}")


def test_a_long_question_may_fill_what_a_short_article_leaves() -> None:
    table = table_of(question=["why " * 150 + "?"] * 3)
    assert find(table).encode(table, BERT, 384).num_truncated == 0
    assert find(table).encode(table, BERT, 16).lengths.tolist() == [16] * 8


@pytest.mark.parametrize(
    "answers",
    [["B", "A", "A"], ["the fox", "tar", "Anna and the Company"], ["1", "0", "0"], [1, 0, 0]],
)
def test_answers_are_numbers_letters_or_texts(answers: list[Any]) -> None:
    table = table_of(answer=answers)
    assert find(table).read_labels(table).tolist() == [1, 0, 0]


def test_letters_are_told_from_texts_by_all_rows() -> None:
    options = [["B", "A"], ["C", "D"]]
    one = {"article": ["x", "y"], "question": ["?", "?"], "options": options}
    letters, written = pa.table(one | {"answer": ["A", "B"]}), pa.table(one | {"answer": ["A", "D"]})
    assert find(letters).read_labels(letters).tolist() == [0, 1]
    assert find(written).read_labels(written).tolist() == [1, 1]
    numbers = pa.table(one | {"options": [["2", "1"], ["1", "0"]], "answer": ["1", "0"]})
    assert find(numbers).read_labels(numbers).tolist() == [1, 1]


def scores_for(encoded: Encoded, chosen: list[int]) -> np.ndarray:
    scores = np.zeros(encoded.num_sequences)
    scores[encoded.row_starts[:-1] + chosen] = 3
    return scores


def test_rows_are_judged_and_measured() -> None:
    table = table_of()
    task = find(table)
    encoded = task.encode(table, BERT, 64)
    judged = task.judge(table, encoded, scores_for(encoded, [1, 2, 0]))
    assert judged["label"].tolist() == [1, 0, 0]
    assert judged["prediction"].tolist() == [1, 2, 0]
    metrics = task.measure(judged)
    error = metrics.pop("calibration_error")
    assert metrics == {"accuracy": pytest.approx(2 / 3), "accuracy_middle": 1, "accuracy_high": 0.5}
    assert 0 < error < 1
    assert task.measure(draw(judged, np.array([2, 2])))["accuracy"] == 1
    plain = table.drop_columns(["level"])
    assert set(find(plain).measure(find(plain).judge(plain, encoded, scores_for(encoded, [1, 2, 0])))) == {
        "accuracy", "calibration_error"
    }  # fmt: skip


def test_answers_come_with_probabilities() -> None:
    table = table_of().drop_columns(["answer"])
    task = find(table_of())
    encoded = task.encode(table, BERT, 64, labelled=False)
    assert not encoded.per_sequence
    answers = task.answer(table, encoded, scores_for(encoded, [1, 0, 1])).to_pylist()
    assert [each["prediction"] for each in answers] == ["the fox", "tar", "nobody"]
    assert [each["index"] for each in answers] == [1, 0, 1]
    for each, options in zip(answers, ROWS["options"], strict=True):
        assert len(each["probabilities"]) == len(options)
        assert sum(each["probabilities"]) == pytest.approx(1)
        assert np.argmax(each["probabilities"]) == each["index"]


def test_the_trivial_answer_is_the_commonest_place() -> None:
    table = table_of()
    task = find(table)
    assert task.trivial(table, table)["prediction"].tolist() == [0, 0, 0]
    last = task.trivial(table_of(answer=[2, 2, 0]), table)
    assert last["prediction"].tolist() == [2, 2, 1]
    assert task.measure(last)["accuracy"] == 0


def test_the_columns_are_found() -> None:
    names = Columns("article", "question", "answer")
    assert find(table_of()) == ChoiceTask(names, "options", "level")
    other = table_of().rename_columns(["Passage", "question", "choices", "label", "difficulty"])
    assert find(other) == ChoiceTask(Columns("Passage", "question", "label"), "choices")
    named = table_of().rename_columns(["story", "asked", "options", "right", "level"])
    found = find(named, text="story", pair="asked", label="right", task="race")
    assert found == ChoiceTask(Columns("story", "asked", "right"), "options", "level", "race")


def test_a_column_of_many_levels_is_none() -> None:
    many = pa.table({name: values[:1] * 11 for name, values in ROWS.items()} | {"level": list(range(11))})
    assert find(many).level is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"answer": [1, 3, 0]},
            r"row 2 has the answer 3; expected the number of an option \(0 to 2\), its letter \(A to",
        ),
        (
            {"answer": ["B", "A", "C"]},
            r"row 3 has the answer 'C'; expected .* \(0 to 1\), its letter \(A to B\) or its",
        ),
        ({"answer": ["the fox", "beer", "nobody"]}, "row 2 has the answer 'beer'"),
        ({"answer": [1, None, 0]}, "row 2 has no answer"),
        ({"options": ["a, b"] * 3}, "row 1 has the options 'a, b', expected a list of texts"),
        ({"options": [["a", "b"], ["a"], ["a", "b"]]}, "row 2 has 1 options; there is nothing to choose"),
        ({"options": [["a", " "]] * 3}, "row 1 has an empty text among its options"),
        ({"options": [[1, 2]] * 3}, r"row 1 has the options \[1, 2\], expected a list of texts"),
    ],
)
def test_bad_rows_are_refused(changes: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find(table_of(**changes))


def test_missing_columns_and_texts_are_refused() -> None:
    table = table_of()
    with pytest.raises(
        DataError, match=r"which column holds the options\?.* name it options; the columns are article, q"
    ):
        find(table.drop_columns(["options"]))
    with pytest.raises(DataError, match="there is no column 'story' for --text"):
        find(table, text="story")
    with pytest.raises(DataError, match="row 2 has an empty article"):
        find(table).encode(table_of(article=["a", "", "c"]), BERT, 64)
    with pytest.raises(DataError, match="there is no column 'options'"):
        find(table).encode(table.drop_columns(["options"]), BERT, 64)


def test_rows_of_unlike_numbers_of_options_make_batches() -> None:
    table = table_of()
    ((batch,),) = Loader(find(table).encode(table, BERT, 64), rows=3).steps(0)
    assert batch.num_slots == 8
    assert sorted(np.bincount(batch.row.numpy()).tolist()) == [2, 3, 3]


def test_a_task_survives_json() -> None:
    task = find(table_of())
    assert ChoiceTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_real_questions(reference_data: Path) -> None:
    with lzma.open(reference_data / "race" / "dev.jsonl.xz", "rt", encoding="utf-8") as lines:
        table = pa.Table.from_pylist([json.loads(line) for line, _ in zip(lines, range(200), strict=False)])
    file = reference_data / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
    task = find(table)
    encoded = task.encode(table, Tokenizer(tokenizers.Tokenizer.from_file(str(file))), 512)
    assert encoded.lengths.max() <= 512
    assert (encoded.row_sequences == 4).all()
    right = encoded.per_sequence["label"] == np.arange(encoded.num_sequences) % 4
    assert task.measure(task.judge(table, encoded, right.astype(float)))["accuracy"] == 1
