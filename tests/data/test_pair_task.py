"""Tasks of embeddings: rows of several texts, ranks against a search over all documents, cosines against scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.config import EmbeddingHead
from halfpint.data import pair_task
from halfpint.data.encoded import Encoded
from halfpint.data.loader import Loader
from halfpint.data.metrics import pearson, spearman
from halfpint.data.pair_task import PairTask, find_pair_task
from halfpint.data.retrieval import retrieval_metrics, search
from halfpint.data.sources import Dataset, read
from halfpint.data.task import draw, score_of
from halfpint.data.tokenizer import Tokenizer
from halfpint.data.train_tokenizer import train_tokenizer
from halfpint.objectives.task import TaskObjective

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token a letter."""
    return train_tokenizer([" ".join(LETTERS)], "wordpiece", vocab_size=40)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_task, "CHUNK", 3)
    monkeypatch.setattr(pair_task, "NUMBERS_AT_ONCE", 16)


def dataset(**columns: Any) -> Dataset:
    return read(columns)


def texts(num: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [f"{number} " + " ".join(rng.choice(list(LETTERS), rng.integers(1, 9))) for number in range(num)]


def triplets(num_rows: int) -> Dataset:
    every = texts(4 * num_rows)
    return dataset(
        anchor=every[::4],
        positive=every[1::4],
        negative_1=every[2::4],
        Negative_2=every[3::4],
        id=list(range(num_rows)),
    )


def vectors_of(encoded: Encoded, width: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((encoded.num_sequences, width)).astype(np.float32)


def test_a_row_is_a_text_its_partner_and_its_negatives(tokenizer: Tokenizer) -> None:
    data = triplets(5)
    task = find_pair_task(data)
    assert task.negatives == ("negative_1", "Negative_2")
    table = data.tables["train"]
    encoded = task.encode(table, tokenizer, 64)
    columns = [
        tokenizer(table[name].to_pylist(), 64).ids for name in ("anchor", "positive", "negative_1", "Negative_2")
    ]
    assert np.diff(encoded.row_starts).tolist() == [4] * 5
    for row in range(5):
        found = [encoded.ids[encoded.tokens_of(sequence)].tolist() for sequence in encoded.sequences_of(row)]
        assert found == [column[row] for column in columns]
    assert not encoded.per_sequence
    assert not encoded.segments.any()
    assert np.diff(task.encode(table, tokenizer, 64, labelled=False).row_starts).tolist() == [2] * 5


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9), st.integers(3, 9))
def test_rows_that_lost_tokens_are_counted_once(
    tokenizer: Tokenizer, lengths: list[tuple[int, int]], max_length: int
) -> None:
    first, second = ([" ".join("a" * pair[which]) for pair in lengths] for which in (0, 1))
    data = dataset(query=first, passage=second)
    encoded = find_pair_task(data).encode(data.tables["train"], tokenizer, max_length)
    assert encoded.num_truncated == sum(max(pair) + 2 > max_length for pair in lengths)
    assert np.diff(encoded.starts).tolist() == [min(length + 2, max_length) for pair in lengths for length in pair]


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_ranks_are_those_of_a_search_of_all_documents(tokenizer: Tokenizer, num_rows: int, seed: int) -> None:
    data = triplets(num_rows)
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 64)
    # Few and exact cosines, so that there are ties.
    rng = np.random.default_rng(seed)
    vectors = np.eye(3, dtype=np.float32)[rng.integers(0, 3, encoded.num_sequences)] * rng.integers(0, 3)
    is_first = np.arange(encoded.num_sequences) % 4 == 0
    ranking, _ = search(vectors[is_first], vectors[~is_first], 3 * num_rows)
    partners = [{3 * row} for row in range(num_rows)]
    expected = retrieval_metrics(ranking, partners, ks=(1, 10))
    judged = task.judge(table, encoded, vectors)
    found = task.measure(judged)
    assert list(found) == ["mrr", "recall@1", "recall@10"]
    assert found == pytest.approx({name: expected[name] for name in found})
    assert score_of(task, found) == found["mrr"]
    assert (ranking[np.arange(num_rows), judged["rank"] - 1] == 3 * np.arange(num_rows)).all()


def test_repeated_texts_are_one_document(tokenizer: Tokenizer) -> None:
    data = dataset(
        query=["who", "who", "what", "why"],
        passage=["this one", "that one", "this one", "what"],
    )
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 16)
    angle = {"who": 0, "this one": 30, "that one": 20, "what": 10, "why": 90}
    radians = np.deg2rad(
        [angle[text] for text in ["who", "this one", "who", "that one", "what", "this one", "why", "what"]]
    )
    ranks = task.ranks(table, encoded, np.stack([np.cos(radians), np.sin(radians)], axis=1))
    # who: what is nearer than its two partners, which do not stand in each other's way.
    # what: itself is passed over, that one is nearer. why: this one and that one are nearer than what.
    assert ranks.tolist() == [2, 2, 2, 3]


def test_vectors_that_are_no_numbers_find_their_partner_last(tokenizer: Tokenizer) -> None:
    data = triplets(4)
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 16)
    assert task.ranks(table, encoded, np.full((16, 2), np.nan, np.float32)).tolist() == [12] * 4


def test_negatives_may_be_left_out_of_the_search(tokenizer: Tokenizer) -> None:
    data = triplets(6)
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 64, labelled=False)
    vectors = vectors_of(encoded)
    ranking, _ = search(vectors[::2], vectors[1::2], 6)
    assert (ranking[np.arange(6), task.judge(table, encoded, vectors)["rank"] - 1] == np.arange(6)).all()


def scored(num_rows: int = 8, low: float = 1.0, high: float = 5.0) -> Dataset:
    every = texts(2 * num_rows)
    scores = np.linspace(low, high, num_rows).tolist()
    return dataset(sentence1=every[::2], sentence2=every[1::2], score=[str(score) for score in scores])


def test_scores_are_taught_as_cosines_from_0_to_1(tokenizer: Tokenizer) -> None:
    data = scored()
    task, table = find_pair_task(data), data.tables["train"]
    assert (task.name, task.lowest, task.highest) == ("similarity", 1, 5)
    labels = task.encode(table, tokenizer, 64).per_sequence["label"]
    assert labels == pytest.approx(np.linspace(0, 1, 8).repeat(2))
    assert labels.dtype.kind == "f"
    within = find_pair_task(scored(low=0.2, high=0.8))
    assert (within.lowest, within.highest) == (0, 1)


def test_similarity_is_judged_by_correlations_of_the_cosine(tokenizer: Tokenizer) -> None:
    data = scored()
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 64)
    vectors = vectors_of(encoded)
    judged = task.judge(table, encoded, vectors)
    pairs = vectors.astype(np.float64).reshape(8, 2, 4)
    cosines = (pairs[:, 0] * pairs[:, 1]).sum(axis=1) / np.linalg.norm(pairs, axis=2).prod(axis=1)
    assert judged["prediction"] == pytest.approx(cosines, abs=1e-6)
    assert judged["label"].tolist() == pytest.approx(np.linspace(1, 5, 8).tolist())
    assert task.measure(judged) == {
        "spearman": pytest.approx(spearman(judged["label"], cosines)),
        "pearson": pytest.approx(pearson(judged["label"], cosines), abs=1e-6),
    }
    assert task.answer(table, encoded, vectors)["similarity"].to_pylist() == judged["prediction"].tolist()


def test_a_vector_of_length_zero_is_like_nothing(tokenizer: Tokenizer) -> None:
    data = scored()
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 64)
    assert task.similarities(encoded, np.zeros((16, 4))).tolist() == [0] * 8


def test_a_constant_answer_correlates_with_nothing(tokenizer: Tokenizer) -> None:
    data = scored()
    task, table = find_pair_task(data), data.tables["train"]
    judged = task.trivial(table, table.slice(0, 5))
    assert judged is not None
    assert judged["prediction"].tolist() == pytest.approx([3] * 5)
    assert task.measure(judged) == {"spearman": 0, "pearson": 0}
    retrieval = triplets(4)
    assert find_pair_task(retrieval).trivial(*[retrieval.tables["train"]] * 2) is None


@pytest.mark.parametrize("data", [triplets(9), scored(9)])
def test_judged_rows_can_be_drawn(data: Dataset, tokenizer: Tokenizer) -> None:
    task, table = find_pair_task(data), data.tables["train"]
    encoded = task.encode(table, tokenizer, 64)
    judged = task.judge(table, encoded, vectors_of(encoded))
    assert {len(each) for each in judged.values()} == {9}
    again = draw(judged, np.array([3, 3, 1, 0, 8, 7]))
    assert task.measure(again).keys() == task.measure(judged).keys()


@pytest.mark.parametrize("data", [triplets(9), scored(9)])
def test_every_row_has_one_term_in_the_loss(data: Dataset, tokenizer: Tokenizer) -> None:
    task = find_pair_task(data)
    loader = Loader(task.encode(data.tables["train"], tokenizer, 64), rows=4).fit(1)
    objective = TaskObjective(EmbeddingHead())
    counts = [sum(float(objective.counts(batch)["task"]) for batch in step) for step in loader.steps(0)]
    assert counts == [4, 4, 1]


@pytest.mark.parametrize("data", [triplets(4), scored(4)])
def test_a_task_survives_json(data: Dataset) -> None:
    task = find_pair_task(data)
    assert PairTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


A, B = ["a", "b"], ["c", "d"]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"anchor": A, "positive": B}, {}, ("pairs", "anchor", "positive", None)),
        ({"Question": A, "Answer": B, "label": ["0", "1"]}, {"task": "pairs"}, ("pairs", "Question", "Answer", None)),
        ({"query": A, "passage": B, "text": A}, {}, ("pairs", "query", "passage", None)),
        ({"x": A, "y": B}, {"text": "x", "pair": "Y"}, ("pairs", "x", "y", None)),
        ({"anchor": A, "positive": B, "negative": A}, {"task": "pairs"}, ("pairs", "anchor", "positive", None)),
        ({"anchor": A, "positive": B, "negative": A}, {}, ("triplets", "anchor", "positive", None)),
        ({"sentence1": A, "sentence2": B, "label": [0, 4]}, {}, ("similarity", "sentence1", "sentence2", "label")),
        (
            {"text": A, "sentence2": B, "gold": [0, 4]},
            {"label": "gold"},
            ("similarity", "text", "sentence2", "gold"),
        ),
    ],
)
def test_a_task_is_found(columns: dict[str, Any], options: dict[str, str], expected: tuple[str | None, ...]) -> None:
    task = find_pair_task(dataset(**columns), **options)
    assert (task.name, task.columns.text, task.columns.pair, task.columns.label) == expected
    assert bool(task.negatives) == (task.name == "triplets")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": A, "positive": B}, {}, r"which column holds the first texts\? .*--text; the columns are a, positive"),
        ({"anchor": A, "b": B}, {}, r"which column holds their partners\? .*--pair; the columns are anchor, b"),
        ({"anchor": A, "b": B}, {"pair": "c"}, "there is no column 'c' for --pair"),
        ({"anchor": A, "b": B}, {"pair": "anchor"}, "--text and --pair both name the column 'anchor'"),
        ({"anchor": A, "positive": B}, {"task": "triplets"}, "triplets need a column of negatives"),
        ({"anchor": A, "positive": B}, {"task": "similarity"}, r"which column holds the scores\?"),
        ({"anchor": A, "positive": B, "x": A}, {"task": "pairs", "label": "x"}, "pairs have no label; leave --label x"),
        ({"sentence1": A, "sentence2": B, "score": [1, 1]}, {}, r"score has one score only \(1\)"),
        ({"sentence1": A, "sentence2": B, "score": [1, None]}, {}, "row 2 has no score"),
        ({"sentence1": A, "sentence2": B, "score": ["1", "high"]}, {}, "row 2 has the score 'high'; expected a number"),
    ],
)
def test_what_cannot_be_found_is_told(columns: dict[str, Any], options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_pair_task(dataset(**columns), **options)


def test_an_empty_text_is_refused_with_its_row(tokenizer: Tokenizer) -> None:
    data = dataset(anchor=["a"] * 6, positive=["b"] * 4 + [" ", "b"])
    with pytest.raises(ValueError, match="row 5 has an empty positive"):
        find_pair_task(data).encode(data.tables["train"], tokenizer, 16)


def test_a_column_that_new_data_lacks_is_told(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="there is no column 'positive'"):
        find_pair_task(triplets(4)).encode(pa.table({"anchor": A}), tokenizer, 16, labelled=False)


def test_stsb_is_similarity_from_0_to_5(reference_data: Path) -> None:
    data = read(reference_data / "glue" / "stsb")
    task = find_pair_task(data, task="similarity")
    assert (task.columns.text, task.columns.pair, task.columns.label) == ("sentence1", "sentence2", "score")
    assert (task.lowest, task.highest) == (0, 5)
    assert len(task.read_labels(data.tables["dev"])) == 1500
