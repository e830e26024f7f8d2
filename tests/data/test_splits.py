"""Splits: what is cut depends on content and seed alone, keeps the shares of the labels, and nothing leaks."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfpint.data.columns import Columns
from halfpint.data.sources import DataError, Dataset, read
from halfpint.data.splits import complete, normalize_text, text_keys

TEXT_LABEL = Columns("text", None, "label")


@st.composite
def labelled(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Some different texts, and some that repeat them with the same label or another."""
    labels = draw(st.text("abc", min_size=12, max_size=40))
    repeats = draw(st.lists(st.tuples(st.integers(0, len(labels) - 1), st.sampled_from("abc")), max_size=10))
    return [*enumerate(labels), *repeats]


LABELLED = labelled()


def dataset(**splits: Sequence[tuple[Any, Any]]) -> Dataset:
    return read(
        {split: [{"text": str(text), "label": label} for text, label in rows] for split, rows in splits.items()}
    )


def texts(found: Dataset, split: str) -> list[str]:
    return found.tables[split]["text"].to_pylist()


def rows(found: Dataset) -> Counter[tuple[str, str]]:
    return Counter(
        (text, label) for table in found.tables.values() for text, label in zip(*columns(table), strict=True)
    )


def columns(table: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in table.columns]


@given(train=LABELLED, seed=st.integers(0, 5), data=st.data())
def test_a_cut_does_not_depend_on_the_order_of_rows(
    train: list[tuple[int, str]], seed: int, data: st.DataObject
) -> None:
    other = data.draw(st.permutations(train))
    found, report = complete(dataset(train=train), TEXT_LABEL, seed=seed)
    again, same = complete(dataset(train=other), TEXT_LABEL, seed=seed)
    assert report == same
    for split in found.tables:
        assert Counter(texts(found, split)) == Counter(texts(again, split))


@given(train=LABELLED, seed=st.integers(0, 5))
def test_a_cut_loses_and_doubles_nothing(train: list[tuple[int, str]], seed: int) -> None:
    """And a text is on one side only, with all its repeats; the rows of each side stay in their order."""
    before = dataset(train=train)
    found, report = complete(before, TEXT_LABEL, seed=seed)
    assert list(found.tables) == ["train", "dev", "test"]
    assert rows(found) == rows(before)
    sides = [set(texts(found, split)) for split in found.tables]
    assert sum(map(len, sides)) == len(set.union(*sides))
    assert report.rows == {split: len(table) for split, table in found.tables.items()}
    for split in found.tables:
        assert texts(found, split) == [text for text in texts(before, "train") if text in set(texts(found, split))]


@given(
    counts=st.lists(st.integers(2, 80), min_size=2, max_size=5).filter(lambda counts: sum(counts) >= 30),
    dev=st.sampled_from([0.1, 0.2, 0.33]),
    test=st.sampled_from([0.1, 0.25]),
)
def test_every_label_keeps_its_share(counts: list[int], dev: float, test: float) -> None:
    train = [
        (f"{label} {number}", label) for label, count in zip("abcde", counts, strict=False) for number in range(count)
    ]
    found, report = complete(dataset(train=train), TEXT_LABEL, dev_share=dev, test_share=test)
    assert report.stratified
    total = sum(counts)
    for split, share in (("dev", dev), ("test", test)):
        assert report.cut[split] == len(found.tables[split])
        assert abs(len(found.tables[split]) - share * total) <= len(counts)
        got = Counter(found.tables[split]["label"].to_pylist())
        for label, count in zip("abcde", counts, strict=False):
            assert abs(got[label] - share * count) < 2
    assert set(found.tables["train"]["label"].to_pylist()) == set("abcde"[: len(counts)])


def test_large_cuts_are_exact() -> None:
    train = [(number, "abcd"[number % 4]) for number in range(10_000)]
    found, report = complete(dataset(train=train), TEXT_LABEL)
    assert report.cut == {"dev": 1000, "test": 1000}
    for split, count in (("train", 2000), ("dev", 250), ("test", 250)):
        assert Counter(found.tables[split]["label"].to_pylist()) == dict.fromkeys("abcd", count)


def test_a_seed_cuts_as_another_does_not() -> None:
    train = dataset(train=[(number, "ab"[number % 2]) for number in range(1000)])
    one, same, other = (set(texts(complete(train, TEXT_LABEL, seed=seed)[0], "dev")) for seed in (1, 1, 2))
    assert one == same
    assert len(one) == len(other) == 100
    assert len(one & other) < 30


def test_more_rows_move_few_of_the_others() -> None:
    """A row's place comes from its content, so that a data set that has grown is cut almost as before."""
    train = [(number, "ab"[number % 2]) for number in range(2000)]
    before = set(texts(complete(dataset(train=train), TEXT_LABEL)[0], "dev"))
    after = set(texts(complete(dataset(train=[*train, (2000, "a"), (2001, "b")]), TEXT_LABEL)[0], "dev"))
    assert len(before - after) <= 2


# What is cut


@pytest.mark.parametrize(
    ("given_splits", "options", "splits", "cut"),
    [
        ("train", {}, "train dev test", "dev test"),
        ("train", {"cut_test": False}, "train dev", "dev"),
        ("train test", {}, "train dev test", "dev"),
        ("train dev", {}, "train dev", ""),
        ("train dev", {"cut_test": True}, "train dev test", "test"),
        ("train dev test", {"cut_test": True}, "train dev test", ""),
        ("train dev dev_mismatched", {}, "train dev dev_mismatched", ""),
        ("unsupervised test train", {}, "train dev test unsupervised", "dev"),
    ],
)
def test_what_is_missing_is_cut(given_splits: str, options: dict[str, Any], splits: str, cut: str) -> None:
    names = given_splits.split()
    before = dataset(**{split: [(f"{split} {number}", "ab"[number % 2]) for number in range(50)] for split in names})
    found, report = complete(before, TEXT_LABEL, **options)
    assert list(found.tables) == list(found.origins) == splits.split()
    assert list(report.cut) == cut.split()
    assert all(found.origins[split] == f"cut off {before.origins['train']}" for split in report.cut)
    assert all(found.tables[split] is before.tables[split] for split in names if split != "train")


# What leaks


def test_rows_of_train_that_are_judged_by_are_counted_and_removed() -> None:
    before = dataset(
        train=[("A  cat", "x"), ("a dog", "y"), ("a fish", "x"), ("a cow", "y"), ("a dog", "x"), ("a bee", "y")],
        dev=[("a fish", "x"), ("a hen", "y"), ("a hen", "y")],
        test=[("a cat", "x"), ("A DOG ", "y"), ("a hen", "x")],
    )
    found, report = complete(before, TEXT_LABEL)
    assert texts(found, "train") == ["a cow", "a bee"]
    assert texts(found, "dev") == texts(before, "dev")
    assert report.removed == {"test": 3, "dev": 1}
    assert report.repeated == {"train": 0, "dev": 1, "test": 0}
    assert report.shared == 2
    assert report.conflicting == 2
    assert report.lines() == [
        "train 2, dev 3, test 3 rows",
        "3 rows removed from train, because the text is also in test",
        "1 row removed from train, because the text is also in dev",
        "1 row of dev repeat a text of dev; left in",
        "2 rows of dev have a text that is also in test; left in",
        "2 texts stand in the data with more than one label",
    ]


@given(train=LABELLED, judged=LABELLED, split=st.sampled_from(["dev", "test"]))
def test_nothing_of_train_is_in_what_judges_it(
    train: list[tuple[int, str]], judged: list[tuple[int, str]], split: str
) -> None:
    before = dataset(train=train, **{split: judged})
    try:
        found, report = complete(before, TEXT_LABEL)
    except DataError as error:
        assert "nothing left to learn from" in str(error) or "too few to cut" in str(error) or "to spare" in str(error)
        return
    overlap = [text for text, _ in train if text in {other for other, _ in judged}]
    assert report.removed == {split: len(overlap)}
    for other in found.tables.keys() - {"train"}:
        assert not set(texts(found, "train")) & set(texts(found, other))
    assert rows(found) == rows(before) - Counter((str(text), label) for text, label in train if text in overlap)


def test_a_pair_is_the_same_only_if_both_texts_are() -> None:
    table = pa.table({"a": ["x", "x", "y", "x y", "x"], "b": ["y", "z", "y", "", " Y"]})
    keys = text_keys(table, Columns("a", "b"))
    assert len(set(keys.tolist())) == 4
    assert keys[0] == keys[4]


def test_words_of_a_sentence_are_a_text() -> None:
    table = pa.table({"tokens": [["EU", "rejects"], ["eu", "Rejects"], ["EU"]]})
    first, second, third = text_keys(table, Columns("tokens"))
    assert first == second != third


@given(st.text(max_size=20))
def test_looks_do_not_tell_texts_apart(text: str) -> None:
    expected = normalize_text(text)
    assert normalize_text(expected) == expected
    assert normalize_text(f"  {text}\n") == expected
    for form in ("NFC", "NFD"):
        assert normalize_text(unicodedata.normalize(form, text)) == expected
    if text.isascii():
        assert normalize_text(text.upper()) == expected


# Labels


def test_a_label_with_one_example_stays_in_train_and_is_told() -> None:
    train = [(number, "ab"[number % 2]) for number in range(100)] + [("once", "rare"), ("also once", "odd")]
    for seed in range(5):
        found, report = complete(dataset(train=train), TEXT_LABEL, seed=seed)
        assert {"once", "also once"} <= set(texts(found, "train"))
        assert report.single == ("odd", "rare")
        assert report.lines()[-1] == (
            "2 labels have a single example to learn from: 'odd', 'rare'; add some, or drop it"
        )


def test_many_labels_with_one_example_are_not_all_named() -> None:
    train = [(number, "ab"[number % 2]) for number in range(100)] + [(f"rare {n}", f"rare {n}") for n in range(8)]
    _, report = complete(dataset(train=train), TEXT_LABEL)
    assert len(report.single) == 8
    assert report.lines()[-1].startswith("8 labels have a single example to learn from: 'rare 0', 'rare 1', ")
    assert "'rare 4' and 3 more; " in report.lines()[-1]


@pytest.mark.parametrize(
    ("labels", "stratified"),
    [
        ([0, 1], True),
        ([0.5, 1.25, 3.0], False),
        (["0.5", "1.25", "3"], False),
        ([1.0, 2.0], True),
        ([None, "a"], True),
        ([None], False),
        ([["a"], ["a", "b"]], False),
        (list(range(60)), False),
        ([True, False], True),
    ],
)
def test_scores_and_lists_are_not_stratified(labels: list[Any], stratified: bool) -> None:
    train = [(number, labels[number % len(labels)]) for number in range(100)]
    _, report = complete(dataset(train=train), TEXT_LABEL)
    assert report.stratified == stratified
    assert report.cut == {"dev": 10, "test": 10}
    assert ("with the same shares of the labels" if stratified else "by a hash of the text") in report.lines()[1]
    assert not complete(dataset(train=train), TEXT_LABEL, stratify=False)[1].stratified


def test_texts_alone_can_be_cut() -> None:
    _, report = complete(read([{"text": str(number)} for number in range(50)]), Columns("text"))
    assert report.cut == {"dev": 5, "test": 5}
    assert report.conflicting == 0


def test_a_text_with_two_labels_goes_one_way() -> None:
    train = [(number, "ab"[number % 2]) for number in range(100)] + [("both", "a"), ("both", "b")]
    for seed in range(10):
        found, report = complete(dataset(train=train), TEXT_LABEL, seed=seed)
        assert report.conflicting == 1
        assert sorted(texts(found, split).count("both") for split in found.tables) == [0, 0, 2]


# What is refused


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        ({"dev": [("a", "x")]}, {}, "data has no train split; it has dev"),
        (
            {"train": [("a", "x")], "test": [("A", "x")]},
            {},
            "every text of train is in test too; data has nothing left",
        ),
        ({"train": [("a", "x"), ("b", "x")]}, {}, "train has 2 different texts, too few to cut dev and test off it"),
        ({"train": [("a", "x")] * 9}, {}, "train has 1 different text, too few"),
        ({"train": [(n, "x") for n in range(9)]}, {"dev_share": 0}, "the share of dev is 0; it must be above 0"),
        ({"train": [(n, "x") for n in range(9)]}, {"test_share": 1.0}, "the share of test is 1.0; it must be"),
        (
            {"train": [(n, "x") for n in range(9)]},
            {"dev_share": 0.5, "test_share": 0.5},
            "the shares of dev and test are 0.5 and 0.5; together they must leave some of train",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(
    splits: Mapping[str, Sequence[tuple[Any, str]]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        complete(dataset(**splits), TEXT_LABEL, **options)


def test_a_missing_column_is_told_with_its_split() -> None:
    rows = [{"text": "a", "label": "x"}]
    with pytest.raises(DataError, match="train of data has no column 'topic'; it has text, label"):
        complete(read(rows), Columns("text", None, "topic"))
    with pytest.raises(DataError, match="dev of data has no column 'text'; it has body, label"):
        complete(read({"train": rows, "dev": [{"body": "a", "label": "x"}]}), TEXT_LABEL)
    found, _ = complete(read({"train": rows, "dev": [{"text": "b"}], "more": [{"body": "a"}]}), TEXT_LABEL)
    assert found.tables["dev"].column_names == ["text"]  # whose labels nobody has


def test_nothing_of_the_reference_data_leaks(reference_data: Any) -> None:
    found, report = complete(read(reference_data / "ag_news"), TEXT_LABEL)
    assert report.removed == {"test": 0}
    assert report.rows == {"train": 16_056 - report.cut["dev"], "dev": report.cut["dev"], "test": 7600}
    assert report.cut["dev"] == pytest.approx(1606, abs=20)
    whole, dev = (Counter(found.tables[split]["label"].to_pylist()) for split in ("train", "dev"))
    shares = [dev[label] / (dev[label] + whole[label]) for label in sorted(whole)]
    np.testing.assert_allclose(shares, 0.1, atol=0.005)


def test_questions_on_one_passage_go_the_same_way() -> None:
    table = pa.table(
        {"question": [f"q{row}" for row in range(200)], "context": [f"passage {row // 5}" for row in range(200)]}
    )
    whole, _ = complete(Dataset("d", {"train": table}, {"train": "d"}), Columns("question", "context"), group="context")
    passages = [set(whole.tables[split]["context"].to_pylist()) for split in ("train", "dev", "test")]
    assert all(passages) and sum(map(len, passages)) == len(set.union(*passages)) == 40
