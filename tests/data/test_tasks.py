"""Every kind of task: found by its name or by its columns, and read back from what it wrote."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfpint.config import ChoiceHead, SpanHead, TokenHead
from halfpint.data.choice_task import ChoiceTask
from halfpint.data.columns import Columns
from halfpint.data.loader import make_batch
from halfpint.data.pair_task import PairTask
from halfpint.data.sources import DataError, Dataset
from halfpint.data.span_task import SpanTask
from halfpint.data.tagging_task import TaggingTask
from halfpint.data.task import Task
from halfpint.data.tasks import KINDS, find_task, read_task
from halfpint.data.text_task import TextTask
from halfpint.model.batch import IGNORED
from halfpint.model.encoder import Output
from halfpint.objectives.objective import Seen
from halfpint.objectives.task import TaskObjective
from tests.data.small_tokenizers import small_tokenizer

TABLES: dict[str, dict[str, list[Any]]] = {
    "text": {"message": ["a b", "c d"], "topic": ["x", "y"]},
    "span": {"context": ["a b"], "question": ["c"], "answers": [[{"text": "a", "answer_start": 0}]]},
    "choice": {"article": ["a b"], "question": ["c"], "options": [["d", "e"]], "answer": [1]},
    "tagging": {"tokens": [["a", "b"]], "tags": [["O", "B-PER"]]},
}
TASKS: list[Task] = [
    TextTask(Columns("text", label="label"), "single_label", ("no", "yes"), ("accuracy",), "text", 1.5, None, 0.25),
    TextTask(Columns("text", label="label"), "multi_label", ("a",), ("multi_label_f1_micro",), thresholds=(0.5,)),
    TextTask(Columns("sentence1", "sentence2", "score"), "regression", ("score",), ("pearson",), "stsb"),
    SpanTask(Columns("question", "context", "answers"), no_answer=True, name="squad2", threshold=-1.5),
    ChoiceTask(Columns("article", "question", "answer"), level="level"),
    TaggingTask(Columns("tokens", label="tags"), ("O", "B-PER")),
    PairTask(Columns("sentence1", "sentence2", "score"), (), "similarity", 0.0, 5.0),
]


def dataset_of(columns: dict[str, list[Any]]) -> Dataset:
    return Dataset("data", {"train": pa.table(columns)}, {})


@pytest.mark.parametrize("form", TABLES)
def test_a_task_is_found_by_its_columns(form: str) -> None:
    task = find_task(dataset_of(TABLES[form]))
    assert task.form == task.name == form


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("text", "text"), ("squad", "span"), ("squad2", "span"), ("span", "span"), ("race", "choice"),
        ("choice", "choice"), ("conll", "tagging"), ("tagging", "tagging"),
    ],
)  # fmt: skip
def test_a_task_is_found_by_its_name(name: str, form: str) -> None:
    task = find_task(dataset_of(TABLES[form]), name)
    assert (task.form, task.name) == (form, name)


def test_a_name_outweighs_the_columns() -> None:
    both = TABLES["span"] | {"text": ["a"], "label": ["x"]}
    assert (
        find_task(dataset_of({name: 2 * values for name, values in both.items()} | {"label": ["x", "y"]}), "text").form
        == "text"
    )
    sentences = {"sentence": ["a", "b"], "label": ["0", "1"]}
    assert find_task(dataset_of(sentences), "sst2").name == "sst2"


def test_named_columns_are_tagged_where_they_hold_lists() -> None:
    words = {"said": [["a", "b"]], "marks": [["O", "B-PER"]], "tokens": ["a b"]}
    assert find_task(dataset_of(words), text="said", label="marks").form == "tagging"
    assert find_task(dataset_of({"text": ["a", "b"], "labels": [["x"], ["x", "y"]]})).problem == "multi_label"


def test_texts_that_look_a_little_like_something_else() -> None:
    answers = {"question": ["a", "b"], "answer": ["yes", "no"]}
    assert find_task(dataset_of(answers), label="answer").form == "text"
    options = {"question": ["a", "b"], "options": ["a|b", "c|d"], "label": ["yes", "no"]}
    assert find_task(dataset_of(options)).form == "text"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"there is no task 'sst3'; known are text, .*cola, .*sst2.* squad, .* it is found"
    ):
        find_task(dataset_of(TABLES["text"]), "sst3")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_what_was_written_is_read(task: Task) -> None:
    assert read_task(json.loads(json.dumps(task.to_dict()))) == task
    assert read_task(task.to_dict()) == task


def test_every_kind_is_read() -> None:
    assert {type(task) for task in TASKS} == set(KINDS.values())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"form": "poem"}, "its form is 'poem', none of text, pairs, span, choice, tagging"),
        ({"form": None}, "its form is None"),
        ({"threshold": "high"}, "threshold is 'high'"),
        ({"stride": 1.5}, "stride is 1.5"),
        ({"stride": True}, "stride is True"),
        ({"no_answer": 1}, "no_answer is 1"),
        ({"columns": {"text": 1}}, "columns is {'text': 1}"),
        ({"columns": {"text": "a", "third": "b"}}, "columns is"),
        ({"columns": {}}, "columns is {}"),
        ({"colour": "red"}, "there is no colour"),
    ],
)
def test_a_malformed_task_is_refused(changes: dict[str, Any], problem: str) -> None:
    values = TASKS[3].to_dict() | changes
    with pytest.raises(DataError) as caught:
        read_task(values)
    assert str(caught.value).startswith(f"the task in halfpint.json is malformed ({problem}")
    assert str(caught.value).endswith("; train the model again")


def test_a_task_that_lacks_a_field_is_refused() -> None:
    for name in ("columns", "problem", "labels"):
        values = {key: value for key, value in TASKS[0].to_dict().items() if key != name}
        with pytest.raises(DataError, match=f"it has no {name}"):
            read_task(values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(TASKS), st.data())
def test_no_value_breaks_the_reader(task: Task, data: st.DataObject) -> None:
    values = json.loads(json.dumps(task.to_dict()))
    values[data.draw(st.sampled_from(sorted(values)))] = data.draw(JSON)
    try:
        again = read_task(values)
    except DataError:
        return
    assert json.loads(json.dumps(again.to_dict())) == values


HEADS = {"span": SpanHead(no_answer=True), "choice": ChoiceHead(), "token": TokenHead(("O", "B-PER"))}


@pytest.mark.parametrize("form", ["span", "choice", "tagging"])
def test_right_scores_have_no_loss(form: str) -> None:
    """What the objective reads out of a batch is what the task wrote into it, and what it judges by."""
    columns = {name: 3 * values for name, values in TABLES[form].items()}
    columns |= {"answers": [*columns["answers"][:2], []]} if form == "span" else {}
    table = pa.table(columns)
    task = find_task(Dataset("data", {"train": table}, {}))
    encoded = task.encode(table, small_tokenizer("bert"), 32)
    batch = make_batch(encoded)
    scores = torch.full(
        {"span": (encoded.num_tokens, 3), "choice": (6,), "tagging": (encoded.num_tokens, 2)}[form], -20.0
    )
    if form == "span":
        first, ends = batch.first_tokens(), batch.per_slot["label"]
        scores[first + ends[:, 0], 0] = scores[first + ends[:, 1], 1] = 20
        scores[batch.slots() == 2, 2] = 20  # of the last row, the one without an answer
    elif form == "choice":
        scores[[1, 3, 5]] = 20
    else:
        labelled = batch.per_token["label"] != IGNORED
        scores[labelled, batch.per_token["label"][labelled]] = 20
    objective = TaskObjective(HEADS[task.head])
    seen = Seen(Output(scores, None), {task.head: scores})
    assert objective.counts(batch)["task"] == {"span": 3, "choice": 3, "tagging": 6}[form]
    assert objective.losses(seen, batch)["task"] < 1e-6
    metrics = task.measure(task.judge(table, encoded, scores.numpy()))
    assert metrics[task.metrics[0]] == 1


def test_something_else_than_an_object_is_refused() -> None:
    with pytest.raises(DataError, match="it is 'text'"):
        read_task("text")  # type: ignore[arg-type]
