"""`predict` and `embed` on the command line: what they print, what they write, and what they refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import halfpint as hp
from tests.command import assert_refused, run_command
from tests.data.files import write
from tests.data.small_tokenizers import SENTENCES
from tests.engines import small_models as small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.save_model(tmp_path_factory.mktemp("models") / "m", small.TEXT)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "new.csv", "message,prediction\n" + "".join(f'"{text}",x\n' for text in SENTENCES))


def test_predict_writes_beside_the_file_and_says_what_it_did(folder: Path, data: Path) -> None:
    done = run_command("predict", folder, data)
    assert (done.code, done.err) == (0, "")
    told = " ".join(done.out.split())
    assert "the column message was read as text" in told
    assert "the column prediction of the file is called input_prediction in the output" in told
    assert f"{len(SENTENCES)} rows answered; they are in" in told
    with (data.parent / "new.predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = hp.load(folder).predict([row["message"] for row in rows])
    assert [row["prediction"] for row in rows] == [each["prediction"] for each in expected]


def test_json_tells_the_same(folder: Path, data: Path, tmp_path: Path) -> None:
    told = json.loads(run_command("predict", folder, data, "--out", tmp_path / "o.jsonl", "--json").out)
    assert told == {
        "path": str(tmp_path / "o.jsonl"), "num_rows": len(SENTENCES), "num_resumed": 0, "num_cut": 0, "num_bad": 0,
        "columns": {"text": "message"}, "renamed": {"prediction": "input_prediction"},
    }  # fmt: skip


def test_embed_writes_vectors(folder: Path, data: Path, tmp_path: Path) -> None:
    done = run_command("embed", folder, data, "--text", "message", "--out", tmp_path / "vectors.npy")
    assert done.code == 0, done.err
    vectors = np.load(tmp_path / "vectors.npy")
    assert np.allclose(vectors, hp.load(folder).embed(list(SENTENCES)), atol=1e-5)


def test_bf16_is_done_on_request(folder: Path, data: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        out = tmp_path / f"{precision}.npy"
        assert run_command("embed", folder, data, "--text", "message", "--out", out, "--precision", precision).code == 0
    fine, coarse = np.load(tmp_path / "fp32.npy"), np.load(tmp_path / "bf16.npy")
    assert 1e-5 < np.abs(fine - coarse).max() < 0.05


def test_rows_are_passed_over_when_told(folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "new.csv", "id,text\n1,a fox\n2,\n")
    assert_refused(run_command("predict", folder, data), "row 2 of", "--skip-bad")
    done = run_command("predict", folder, data, "--skip-bad")
    assert "1 rows have no text, and so no answer" in done.out
    assert "1 rows answered" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--text", "body"), "body"),
        (("--pair", "message"), "the model's task reads no pair"),
        (("--out", "x.xls"), "x.xls ends in .xls"),
        (("--device", "tpu"), "device is 'tpu'; give cpu, cuda or cuda:N"),
        (("--precision", "int4"), "precision is 'int4'; it is one of fp32, bf16"),
        (("--glue", "--out", "RTE.tsv"), "the model's task is text, and GLUE takes"),
    ],
    ids=str,
)
def test_bad_flags_are_one_line(folder: Path, data: Path, arguments: tuple, words: str) -> None:
    before = sorted(data.parent.iterdir())
    assert_refused(run_command("predict", folder, data, *arguments), words)
    assert sorted(data.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"text\n", "no rows"), (b"", "empty"), (b"text\n\xff\xfe\n", "UTF-8"), (b"a,b\n1,2\n1,2,3\n", "line 3")],
    ids=["header alone", "nothing", "not UTF-8", "uneven rows"],
)
def test_broken_files_are_one_line(folder: Path, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "new.csv").write_bytes(content)
    assert_refused(run_command("predict", folder, tmp_path / "new.csv"), words)


def test_an_encoder_without_a_task_cannot_predict(tmp_path: Path, data: Path, folder: Path) -> None:
    model = hp.load(folder)
    model.module.drop_heads()
    model.save(tmp_path / "bare")
    assert_refused(run_command("predict", tmp_path / "bare", data), "was not trained for a task by Halfpint")
    assert run_command("embed", tmp_path / "bare", data, "--text", "message", "--out", tmp_path / "v.npy").code == 0


@pytest.mark.filterwarnings("default")
def test_a_word_about_older_pieces_is_one_line(folder: Path, data: Path) -> None:
    write(data.parent / "new.predictions.csv.pieces" / "job.json", "{}")
    done = run_command("predict", folder, data)
    assert done.code == 0
    assert done.err.startswith("halfpint: ") and done.err.count("\n") <= 2
    assert "starting anew" in done.err
