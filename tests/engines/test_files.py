"""Files answered and embedded: the same as all at once, in every form; what a killed run left is used."""

from __future__ import annotations

import csv
import json
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import halfpint as hp
from halfpint.data import formats
from halfpint.data.columns import Columns
from halfpint.data.sources import DataError, read
from halfpint.data.task import Task
from halfpint.data.text_task import TextTask
from halfpint.engines.files import Written, embed, predict
from halfpint.engines.model import Model
from tests.artifact.processes import run
from tests.data.files import write
from tests.data.small_tokenizers import SENTENCES
from tests.engines import small_models as small

WORDS = " ".join(SENTENCES).split()
ODD = [
    'a "quoted" word, and a comma',
    "two\nlines\r\nor three",
    "tabs\tand  spaces ",
    "naïve – ☕",
    '"',
    "a\rb",
    "null",
]
TEXTS = [*ODD, *(" ".join(WORDS[start : start + 1 + start % 9]) for start in range(40))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.save_model(tmp_path_factory.mktemp("models") / "text", small.TEXT)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return hp.load(folder)


def write_rows(path: Path, **columns: list[Any]) -> Path:
    """A file of these columns, in the form of its ending, by other writers than ours."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, dialect="excel" if path.suffix == ".csv" else "excel-tab")
            writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    return path


def table_of(path: Path) -> pa.Table:
    return next(iter(read(path).tables.values()))


def assert_answers(table: pa.Table, expected: pa.Table) -> None:
    """The last columns are these, to the precision at which batches agree."""
    assert table.column_names[-expected.num_columns :] == expected.column_names
    for name in expected.column_names:
        found, wanted = table[name].to_pylist(), expected[name].to_pylist()
        if pa.types.is_floating(expected[name].type):
            assert np.allclose(np.array(found, dtype=float), wanted, atol=1e-6), name
        else:
            assert found == wanted, name


@pytest.mark.parametrize("given", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_what_is_written_equals_all_rows_answered_at_once(
    model: Model, tmp_path: Path, given: str, ending: str
) -> None:
    path = write_rows(tmp_path / f"in{given}", id=[str(n) for n in range(len(TEXTS))], text=TEXTS)
    done = predict(model, path, tmp_path / f"out{ending}", rows_at_once=7)
    table = table_of(done.path)
    assert table.column_names == ["id", "text", "prediction", "p(no)", "p(yes)", "p(a, b)"]
    assert table.select(["id", "text"]).to_pydict() == {"id": list(map(str, range(len(TEXTS)))), "text": TEXTS}
    assert_answers(table, model.answer(pa.table({"text": TEXTS})))
    assert (done.num_rows, done.num_resumed, done.num_bad, done.renamed) == (len(TEXTS), 0, 0, {})
    assert len(set(table["prediction"].to_pylist())) > 1, "a model that always says the same shows nothing"


def test_a_tsv_file_comes_out_as_it_went_in(model: Model, tmp_path: Path) -> None:
    texts = ['an inner "quote"', '"', "a, b", " spaces "]
    path = write(tmp_path / "in.tsv", "text\tn\n" + "".join(f"{text}\t{n}\n" for n, text in enumerate(texts)))
    table = table_of(predict(model, path, tmp_path / "out.tsv").path)
    assert table["text"].to_pylist() == texts
    assert_answers(table, model.answer(pa.table({"text": texts})))


def test_python_reads_the_csv(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=TEXTS)
    done = predict(model, path)
    assert done.path == tmp_path / "in.predictions.csv"
    with done.path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == TEXTS
    assert [row["prediction"] for row in rows] == model.answer(pa.table({"text": TEXTS}))["prediction"].to_pylist()


def test_compressed_files_and_plain_lines_are_read(model: Model, tmp_path: Path) -> None:
    lines = [text for text in TEXTS if not set("\r\n") & set(text)]
    path = write(tmp_path / "lines.txt.gz", "".join(f"{line}\n" for line in lines))
    done = predict(model, path)
    assert done.path == tmp_path / "lines.predictions.csv"
    assert_answers(table_of(done.path), model.answer(pa.table({"text": lines})))


ROWS: dict[str, tuple[Task, list[dict[str, Any]]]] = {
    "several labels": (small.SEVERAL, [{"text": text} for text in SENTENCES]),
    "a number": (small.NUMBER, [{"text": text} for text in SENTENCES]),
    "pairs": (small.PAIR, [{"premise": text, "hypothesis": text[:9]} for text in SENTENCES]),
    "tags": (small.TAGS, [{"tokens": text.split()} for text in SENTENCES]),
    "spans": (small.SPAN, [{"question": "Who sleeps?", "context": text} for text in SENTENCES]),
    "options": (small.CHOICE, [{"article": text, "question": "_ is", "options": ["it", "he"]} for text in SENTENCES]),
    "likeness": (small.LIKENESS, [{"sentence1": text, "sentence2": SENTENCES[0]} for text in SENTENCES]),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_task_answers_files(tmp_path: Path, name: str) -> None:
    task, rows = ROWS[name]
    model = hp.load(small.save_model(tmp_path / "model", task))
    path = write_rows(tmp_path / "in.jsonl", **{key: [row[key] for row in rows] for key in rows[0]})
    expected = model.answer(pa.Table.from_pylist(rows))
    for ending in (".parquet", ".jsonl"):
        table = table_of(predict(model, path, tmp_path / f"out{ending}", rows_at_once=3).path)
        assert table.select(list(rows[0])).to_pylist() == rows
        assert_same_values(table.select(expected.column_names).to_pylist(), expected.to_pylist())
    # In CSV nested values are JSON, numbers are text.
    table = table_of(predict(model, path, tmp_path / "out.csv", rows_at_once=3).path)
    for column in expected.column_names:
        found = table[column].to_pylist()
        if not pa.types.is_string(expected[column].type):
            found = [json.loads(value) if value else None for value in found]
        assert_same_values(found, expected[column].to_pylist())


def assert_same_values(found: Any, expected: Any) -> None:
    """Equal but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same_values(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_values(one, other)
    else:
        assert found == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


def test_a_submission_to_glue_has_numbered_answers_and_nothing_else(tmp_path: Path) -> None:
    columns = Columns("sentence1", "sentence2", "label")
    task = TextTask(columns, "single_label", ("entailment", "not_entailment"), ("accuracy",), name="rte")
    model = hp.load(small.save_model(tmp_path / "model", task))
    pairs = {"sentence1": TEXTS[7:], "sentence2": TEXTS[:6:-1]}
    path = write_rows(tmp_path / "test.tsv", index=list(range(40)), **pairs)
    done = predict(model, path, tmp_path / "RTE.tsv", glue=True, rows_at_once=7)
    expected = model.answer(pa.table(pairs))["prediction"].to_pylist()
    lines = [f"{number}\t{answer}" for number, answer in enumerate(expected)]
    assert done.path.read_text().splitlines() == ["index\tprediction", *lines]
    with pytest.raises(DataError, match=r"--out is called SST-2\.tsv"):
        predict(model, path, tmp_path / "SST-2.tsv", glue=True)


def test_a_column_with_the_name_of_an_answer_is_renamed(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", prediction=["old"], text=["a fox"], input_prediction=["older"])
    done = predict(model, path, tmp_path / "out.csv")
    table = table_of(done.path)
    assert done.renamed == {"prediction": "input_input_prediction"}
    assert table.column_names[:4] == ["input_input_prediction", "text", "input_prediction", "prediction"]
    assert table["input_input_prediction"].to_pylist() == ["old"]
    assert table["prediction"].to_pylist() == model.answer(pa.table({"text": ["a fox"]}))["prediction"].to_pylist()


def test_predictions_of_predictions_keep_both(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=SENTENCES)
    first = predict(model, path, tmp_path / "first.csv")
    table = table_of(predict(model, first.path, tmp_path / "second.csv").path)
    names = ["prediction", "p(no)", "p(yes)", "p(a, b)"]
    assert table.column_names == ["text", *(f"input_{name}" for name in names), *names]
    for name in names:
        assert table[name] == table[f"input_{name}"]


def test_another_name_of_the_text_is_found_and_told(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", message=SENTENCES, topic=list("abcd"))
    done = predict(model, path)
    assert done.columns == {"text": "message"}
    assert table_of(done.path).column_names[:2] == ["message", "topic"]
    assert_answers(table_of(done.path), model.answer(pa.table({"text": SENTENCES})))


def test_columns_of_parts_need_not_be_alike(model: Model, tmp_path: Path) -> None:
    rows = [{"text": "a fox", "n": 1}, {"text": "a dog", "n": 2.5}, {"text": "cafés", "more": {"a": [1]}}]
    rows += [{"text": "the sun", "n": "x", "more": {"b": None}}]
    write(tmp_path / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def answered(ending: str) -> pa.Table:
        # Each row is a block of its own, as it would be 10,000 rows on.
        blocks = [pa.Table.from_pylist([row]) for row in rows]
        return _predict_blocks(model, tmp_path, blocks, ending)

    assert answered(".parquet")["n"].to_pylist() == ["1", "2.5", None, "x"]
    assert answered(".jsonl").column_names[:3] == ["text", "n", "more"]
    assert answered(".csv")["more"].to_pylist() == ["", "", '{"a": [1]}', '{"b": null}']


def _predict_blocks(model: Model, folder: Path, blocks: list[pa.Table], ending: str) -> pa.Table:
    from halfpint.engines import files

    path, out = folder / "in.jsonl", folder / f"out{ending}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read_batches", lambda *_, **__: iter(blocks))
        return table_of(predict(model, path, out, overwrite=True).path)


def test_texts_that_were_cut_are_counted(model: Model, tmp_path: Path) -> None:
    long = "fox " * 100
    path = write_rows(tmp_path / "in.csv", text=["a fox", long, "dog", long, long])
    assert predict(model, path, rows_at_once=2).num_cut == 3
    assert embed(model, path, tmp_path / "out.npy", rows_at_once=2).num_cut == 3


BROKEN = [
    (["a", "", "b"], ["has '' as its text, expected a text"]),
    (["a", " \n", "b"], [r"has ' \\n' as its text"]),
    (["a", None, "b"], ["has nothing as its text"]),
]


@pytest.mark.parametrize("rows_at_once", [1, 2, 4096])
@pytest.mark.parametrize(("texts", "words"), BROKEN)
def test_a_broken_row_is_named_by_its_number_in_the_file(
    model: Model, tmp_path: Path, texts: list[Any], words: list[str], rows_at_once: int
) -> None:
    path = write_rows(tmp_path / "in.jsonl", text=["x"] * 5 + texts)
    with pytest.raises(DataError, match=rf"row 7 of .*in\.jsonl {words[0]}.*skip_bad=True"):
        predict(model, path, rows_at_once=rows_at_once)
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"], "nothing was begun"


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 4096])
def test_broken_rows_that_are_passed_over_have_no_answers(model: Model, tmp_path: Path, rows_at_once: int) -> None:
    texts = ["", "a fox", None, None, "the dog", " "]
    path = write_rows(tmp_path / "in.jsonl", text=texts)
    expected = model.answer(pa.table({"text": ["a fox", "the dog"]}))
    for ending in (".parquet", ".jsonl", ".csv"):
        done = predict(model, path, tmp_path / f"out{ending}", rows_at_once=rows_at_once, skip_bad=True)
        table = table_of(done.path)
        assert done.num_bad == 4
        assert_answers(table.take([1, 4]), expected)
        empty = table.take([0, 2, 3, 5]).select(expected.column_names).to_pylist()
        assert {value for row in empty for value in row.values()} == {"" if ending == ".csv" else None}
    assert table["text"].to_pylist() == [text or "" for text in texts]


def test_a_file_without_a_text_is_refused(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", text=["", " "])
    with pytest.raises(DataError, match=r"no row of .* can be answered"):
        predict(model, path, skip_bad=True)


def test_a_tab_in_a_text_is_refused_for_tsv(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a", "b\tc"])
    with pytest.raises(DataError, match=r"row 2 of .* has a tab or a line break in its text.*\.parquet"):
        predict(model, path, tmp_path / "out.tsv")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("out.xlsx", r"out.xlsx ends in .xlsx.*\.csv, \.tsv, \.jsonl, \.parquet"),
        ("out", "out has no ending"),
        ("in.csv", "in.csv is the file that is read"),
        ("there.csv", r"there.csv is there already.*overwrite=True"),
        ("folder.csv", "folder.csv is a folder"),
    ],
)
def test_where_nothing_can_be_written_is_said_at_once(model: Model, tmp_path: Path, out: str, words: str) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a"])
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=words):
        predict(model, path, tmp_path / out)
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_file_that_is_there_is_replaced_when_told(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a"])
    (tmp_path / "out.csv").write_text("mine")
    predict(model, path, tmp_path / "out.csv", overwrite=True)
    assert table_of(tmp_path / "out.csv").num_rows == 1


@pytest.mark.parametrize("given", [".csv", ".parquet"])
def test_embeddings_equal_those_of_all_texts_at_once(model: Model, tmp_path: Path, given: str) -> None:
    path = write_rows(tmp_path / f"in{given}", id=list(map(str, range(len(TEXTS)))), text=TEXTS)
    expected = model.embed(TEXTS)
    vectors = np.load(embed(model, path, tmp_path / "out.npy", rows_at_once=7).path, mmap_mode="r")
    assert (vectors.shape, vectors.dtype) == (expected.shape, np.float32)
    assert np.allclose(vectors, expected, atol=1e-6)
    table = table_of(embed(model, path, tmp_path / "out.parquet", rows_at_once=7).path)
    assert table.column_names == ["id", "text", "embedding"]
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), vectors)


@pytest.mark.parametrize("rows_at_once", [1, 4096])
def test_a_row_without_a_text_has_no_vector(model: Model, tmp_path: Path, rows_at_once: int) -> None:
    path = write(tmp_path / "in.txt", "\na fox\n\nthe dog\n")
    options = {"rows_at_once": rows_at_once, "skip_bad": True}
    vectors = np.load(embed(model, path, tmp_path / "out.npy", **options).path)
    assert np.abs(vectors).sum(axis=1).astype(bool).tolist() == [False, True, False, True]
    table = table_of(embed(model, path, tmp_path / "out.parquet", **options).path)
    assert [each is not None for each in table["embedding"].to_pylist()] == [False, True, False, True]


def test_memory_does_not_grow_with_the_file(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "BLOCK_ROWS", 1000)

    def peak(num_rows: int) -> int:
        # Every row its own text, or what is kept might be one object.
        path = tmp_path / f"{num_rows}.jsonl"
        path.write_text("".join(f'{{"text": "fox {row}"}}\n' for row in range(num_rows)))
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        held = []
        predict(model, path, rows_at_once=500, watch=lambda *_: held.append(pa.total_allocated_bytes() - before))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most + max(held)

    small, large = peak(4_000), peak(20_000)
    assert large < 1.2 * small, (small, large)


# Killed after some blocks, or when the whole is put in place.
KILLED = """
import os, signal, sys
from pathlib import Path
import halfpint as hp
from halfpint.engines.files import embed, predict

work = {"predict": predict, "embed": embed}[sys.argv[1]]
model, path, out, point = hp.load(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def watch(done, of):
    if point == str(done):
        die()

replace = os.replace

def no_replace(source, target):
    if point == f"before {Path(target).name}":
        die()
    replace(source, target)

os.replace = no_replace
work(model, path, out, rows_at_once=10, watch=watch)
"""


class Killing:
    """Runs that are killed at some point, in a process of their own."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path

    def __call__(self, verb: str, out: Path, point: str) -> None:
        done = run(KILLED, verb, self.folder, self.path, out, point)
        assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def killed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Killing:
    path = tmp_path_factory.mktemp("data") / "in.jsonl"
    return Killing(folder, write_rows(path, text=TEXTS, n=list(range(len(TEXTS)))))


def watched(work: Callable[..., Written], *given: Any, **options: Any) -> tuple[Written, list[int]]:
    """What was written, and how many rows were done at every step."""
    steps: list[int] = []
    return work(*given, rows_at_once=10, watch=lambda done, of: steps.append(done), **options), steps


@pytest.mark.parametrize(
    ("verb", "ending", "point", "done"),
    [
        ("predict", ".csv", "30", 30),
        ("predict", ".parquet", "before 000000000020.arrow", 20),
        ("predict", ".jsonl", "before OUT", len(TEXTS)),
        ("embed", ".npy", "40", 40),
    ],
)
def test_a_killed_run_goes_on_and_writes_the_same_bytes(
    model: Model, killed: Killing, tmp_path: Path, verb: str, ending: str, point: str, done: int
) -> None:
    work: Callable[..., Written] = {"predict": predict, "embed": embed}[verb]
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"out{ending}"
    work(model, killed.path, whole, rows_at_once=10)
    killed(verb, out, point.replace("OUT", out.name))
    assert not out.exists()
    pieces = {path: path.stat().st_mtime_ns for path in (tmp_path / f"{out.name}.pieces").glob("*.arrow")}
    assert len(pieces) == -(-done // 10)
    written, steps = watched(work, model, killed.path, out)
    assert steps == [done, *range(done + 10, len(TEXTS), 10), *([len(TEXTS)] if done < len(TEXTS) else [])]
    assert (written.num_resumed, written.num_rows) == (done, len(TEXTS))
    assert out.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} - {f".{out.name}.pieces.lock"} == {whole.name, out.name}


class Stopped(Exception):
    """Ends a run from its watch, as an interruption would."""


@pytest.fixture
def stopped(model: Model, tmp_path: Path) -> Iterator[Path]:
    """The output of a run that ended after 20 rows."""
    write_rows(tmp_path / "in.jsonl", text=TEXTS)

    def stop(done: int, of: int) -> None:
        if done == 20:
            raise Stopped

    with pytest.raises(Stopped):
        predict(model, tmp_path / "in.jsonl", tmp_path / "out.csv", rows_at_once=10, watch=stop)
    assert not (tmp_path / "out.csv").exists()
    yield tmp_path / "out.csv"


def test_an_interrupted_run_goes_on_also_with_other_blocks(model: Model, stopped: Path) -> None:
    done = predict(model, stopped.with_name("in.jsonl"), stopped, rows_at_once=13)
    assert done.num_resumed == 20
    table = table_of(stopped)
    assert table["text"].to_pylist() == TEXTS
    assert table["prediction"].to_pylist() == model.answer(pa.table({"text": TEXTS}))["prediction"].to_pylist()


def test_another_model_starts_anew(stopped: Path, tmp_path: Path) -> None:
    other = hp.load(small.save_model(tmp_path / "other", small.TEXT, seed=1))
    with pytest.warns(
        UserWarning, match=r"out\.csv\.pieces was left by a run that differs in its model; starting anew"
    ):
        done = predict(other, stopped.with_name("in.jsonl"), stopped)
    assert done.num_resumed == 0
    assert_answers_of_csv(stopped, other)


def assert_answers_of_csv(path: Path, model: Model) -> None:
    table = table_of(path)
    expected = model.answer(table.select(["text"]))
    assert table["prediction"].to_pylist() == expected["prediction"].to_pylist()


def test_weights_that_were_changed_in_memory_are_another_model(folder: Path, stopped: Path) -> None:
    import torch

    other = hp.load(folder)
    with torch.no_grad():
        next(other.module.parameters())[0, 0] += 1
    with pytest.warns(UserWarning, match="differs in its model"):
        predict(other, stopped.with_name("in.jsonl"), stopped)


def test_the_same_weights_in_another_folder_are_the_same_model(folder: Path, stopped: Path, tmp_path: Path) -> None:
    again = hp.load(hp.load(folder).save(tmp_path / "copy", metadata=hp.load(folder).source.metadata))
    assert predict(again, stopped.with_name("in.jsonl"), stopped).num_resumed == 20


def test_a_packed_model_can_be_asked_as_well(folder: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=SENTENCES)
    predict(hp.load(folder).pack(), path)
    assert_answers_of_csv(tmp_path / "in.predictions.csv", hp.load(folder))


def test_another_input_starts_anew(model: Model, stopped: Path) -> None:
    path = write_rows(stopped.with_name("in.jsonl"), text=TEXTS[::-1])
    with pytest.warns(UserWarning, match="differs in its input"):
        done = predict(model, path, stopped)
    assert done.num_resumed == 0
    assert table_of(stopped)["text"].to_pylist() == TEXTS[::-1]


def test_other_settings_start_anew(model: Model, stopped: Path) -> None:
    with pytest.warns(UserWarning, match="differs in its settings"):
        predict(model, stopped.with_name("in.jsonl"), stopped, skip_bad=True)


def test_a_piece_that_was_cut_short_is_done_again(model: Model, stopped: Path) -> None:
    last = stopped.with_name("out.csv.pieces") / "000000000010.arrow"
    os.truncate(last, last.stat().st_size // 2)
    assert predict(model, stopped.with_name("in.jsonl"), stopped, rows_at_once=10).num_resumed == 10
    assert_answers_of_csv(stopped, model)


def test_a_job_that_cannot_be_read_starts_anew(model: Model, stopped: Path) -> None:
    (stopped.with_name("out.csv.pieces") / "job.json").write_text("{")
    with pytest.warns(UserWarning, match="starting anew"):
        assert predict(model, stopped.with_name("in.jsonl"), stopped).num_resumed == 0


def test_a_folder_of_somebody_else_is_left_alone(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a"])
    mine = write(tmp_path / "out.csv.pieces" / "mine.txt", "mine")
    with pytest.raises(DataError, match=r"out\.csv\.pieces is in the way"):
        predict(model, path, tmp_path / "out.csv")
    assert mine.read_text() == "mine"


def test_a_second_run_at_the_same_time_is_refused(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a"])

    def again(done: int, of: int) -> None:
        predict(model, path, tmp_path / "out.csv")

    with pytest.raises(DataError, match="another process is writing"):
        predict(model, path, tmp_path / "out.csv", watch=again)


def test_a_file_that_changes_meanwhile_is_refused(model: Model, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.csv", text=["a", "b"])
    with pytest.raises(DataError, match="was changed while it was read"):
        predict(model, path, watch=lambda done, of: os.utime(path, (1, 1)))
    assert not (tmp_path / "in.predictions.csv").exists()


# Under a limit on file sizes, a piece is too large, or the whole is.
TOO_LARGE = """
import resource, sys
import halfpint as hp
from halfpint.engines.files import predict

model = hp.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    predict(model, sys.argv[2], sys.argv[3], rows_at_once=10)
except ValueError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(predict(model, sys.argv[2], sys.argv[3], rows_at_once=10).num_resumed)
"""


@pytest.mark.parametrize(("limit", "resumed"), [(1500, 0), (3500, len(TEXTS))])
def test_a_full_disk_is_told_in_one_line_and_what_is_done_is_kept(
    killed: Killing, tmp_path: Path, limit: int, resumed: int
) -> None:
    done = run(TOO_LARGE, killed.folder, killed.path, tmp_path / "out.csv", limit)
    told, num_resumed = done.stdout.splitlines()
    assert told.startswith("File too large while writing in "), done.stderr
    assert "what was done so far is kept there" in told
    assert int(num_resumed) == resumed
