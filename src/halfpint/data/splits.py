"""A data set with what training needs: a dev split, where there is none, and no row of dev or test in train.

What is notable:
- Rows are told apart by their texts alone: two texts that differ in case, spaces or Unicode form are one text. Each
  gets a number of 64 bits (BLAKE2b), and everything after that is arithmetic on arrays.
- The same number, mixed with the seed, decides who goes where. So a cut depends on the content and the seed, not on
  the order of rows or files, and repeats of a text stay together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halfpint.data.columns import Columns
from halfpint.data.sources import DataError, Dataset

Keys = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int64]

Value = TypeVar("Value")

UNLABELLED = -1
SHOWN = 5
"""Labels that a sentence names before it says how many more there are."""


@dataclass(frozen=True)
class SplitReport:
    """What `complete` found and did, in rows."""

    rows: Mapping[str, int]
    """By split, in the end."""
    cut: Mapping[str, int]
    """Rows of train that became a split of their own."""
    stratified: bool
    """Whether the cuts keep the shares of the labels."""
    removed: Mapping[str, int]
    """Rows taken out of train because their text is in this split."""
    repeated: Mapping[str, int]
    """Rows whose text stands earlier in the same split; they were left in."""
    shared: int
    """Rows of the dev splits whose text is in a test split; they were left in."""
    conflicting: int
    """Texts that stand in the data with more than one label."""
    single: tuple[str, ...]
    """Labels with one text in train to learn from (kept there, and out of dev and test where those were cut)."""

    def lines(self) -> list[str]:
        """What a person should know, one sentence each."""
        lines = [", ".join(f"{split} {count:,}" for split, count in self.rows.items()) + " rows"]
        for split, count in self.cut.items():
            how = "with the same shares of the labels" if self.stratified else "by a hash of the text"
            lines.append(f"{split} was cut off train: {_rows(count)}, {how}; the same rows for the same seed")
        for split, count in self.removed.items():
            if count:
                lines.append(f"{_rows(count)} removed from train, because the text is also in {split}")
        for split, count in self.repeated.items():
            if count:
                lines.append(f"{_rows(count)} of {split} repeat a text of {split}; left in")
        if self.shared:
            lines.append(f"{_rows(self.shared)} of dev have a text that is also in test; left in")
        if self.conflicting:
            verb = "stands" if self.conflicting == 1 else "stand"
            lines.append(f"{_count(self.conflicting, 'text')} {verb} in the data with more than one label")
        if self.single:
            more = f" and {len(self.single) - SHOWN} more" if len(self.single) > SHOWN else ""
            named = ", ".join(map(repr, self.single[:SHOWN])) + more
            noun = "label has" if len(self.single) == 1 else "labels have"
            lines.append(f"{len(self.single)} {noun} a single example to learn from: {named}; add some, or drop it")
        return lines


def complete(
    dataset: Dataset,
    columns: Columns,
    *,
    seed: int = 0,
    dev_share: float = 0.1,
    test_share: float = 0.1,
    stratify: bool = True,
    cut_test: bool | None = None,
    group: str | None = None,
) -> tuple[Dataset, SplitReport]:
    """The data set with a dev split, and with a train split that shares no text with the splits it is judged by.

    - Only train is there: dev and test are both cut off it, so that a test score exists that nothing was chosen by.
    - Train and test: dev is cut off train; test stays as it is.
    - Train and dev: nothing is cut, there is no test, and dev is what is evaluated. That is GLUE, whose test labels
      are not public, and there dev is what everybody reports.
    - `cut_test` overrules that: True cuts a missing test off train in any case, False in none.

    Rows of train whose text (or pair of texts) is in any dev or test split are removed. Everything else is only
    counted. Other splits (`unsupervised`, say) pass through. Shares are of the texts in train. Where labels repeat,
    each keeps its share; numbers with fractions are no labels but scores, and are cut without regard to them. A label
    with one text stays in train. Rows with one text in the column `group` (questions on a passage) go the same way.
    """
    if "train" not in dataset.tables:
        raise DataError(f"{dataset.name} has no train split; it has {', '.join(dataset.tables)}")
    _require_columns(dataset, columns)
    judged = [split for split in dataset.tables if split.startswith(("dev", "test"))]
    tests = [split for split in judged if split.startswith("test")]
    devs = [split for split in judged if split.startswith("dev")]
    shares = {} if devs else {"dev": dev_share}
    if cut_test if cut_test is not None else not judged:
        shares |= {} if tests else {"test": test_share}
    _require_shares(shares)

    tables = dict(dataset.tables)
    keys = {split: text_keys(tables[split], columns) for split in ["train", *judged]}
    codes, labels = _label_codes({split: tables[split] for split in keys}, columns.label)
    conflicting = _count_conflicts(keys, codes)

    def keep(stays: npt.NDArray[np.bool_]) -> None:
        tables["train"] = tables["train"].filter(pa.array(stays))
        keys["train"], codes["train"] = keys["train"][stays], codes["train"][stays]

    removed = {}
    for split in [*tests, *devs]:
        stays = ~np.isin(keys["train"], keys[split])
        if not stays.any():
            raise DataError(f"every text of train is in {split} too; {dataset.name} has nothing left to learn from")
        removed[split] = int(len(stays) - stays.sum())
        keep(stays)

    are_classes = _are_classes(keys["train"], codes["train"], labels)
    strata = codes["train"] if stratify and are_classes else np.zeros_like(codes["train"])
    together = keys["train"] if group is None else text_keys(tables["train"], Columns(group))
    # Too few passages to go round: then questions are cut one by one.
    cut = _cut(together if len(np.unique(together)) > len(shares) else keys["train"], strata, shares, seed)
    for split, rows in cut.items():
        tables[split], keys[split] = tables["train"].filter(pa.array(rows)), keys["train"][rows]
    if cut:
        keep(~np.any(list(cut.values()), axis=0))

    report = SplitReport(
        rows={split: len(table) for split, table in _ordered(tables).items()},
        cut={split: int(rows.sum()) for split, rows in cut.items()},
        stratified=stratify and are_classes,
        removed=removed,
        repeated={split: len(ours) - len(np.unique(ours)) for split, ours in _ordered(keys).items()},
        shared=_count_shared([keys[split] for split in devs], [keys[split] for split in tests]),
        conflicting=conflicting,
        single=_single_labels(keys["train"], codes["train"], labels) if are_classes else (),
    )
    origins = dict(dataset.origins) | dict.fromkeys(cut, f"cut off {dataset.origins['train']}")
    return Dataset(dataset.name, _ordered(tables), _ordered(origins)), report


def _require_columns(dataset: Dataset, columns: Columns) -> None:
    for split, table in dataset.tables.items():
        needed = [columns.text, columns.pair, columns.label if split == "train" else None]
        missing = [name for name in needed if name is not None and name not in table.column_names]
        if missing and split.startswith(("train", "dev", "test")):
            raise DataError(
                f"{split} of {dataset.name} has no column {missing[0]!r}; it has {', '.join(table.column_names)}"
            )


def _require_shares(shares: Mapping[str, float]) -> None:
    for split, share in shares.items():
        if not 0 < share < 1:
            raise DataError(f"the share of {split} is {share}; it must be above 0 and below 1")
    if sum(shares.values()) >= 1:
        raise DataError(
            f"the shares of {' and '.join(shares)} are {' and '.join(map(str, shares.values()))}; "
            "together they must leave some of train"
        )


def text_keys(table: pa.Table, columns: Columns) -> Keys:
    """A number for the text of each row, or for its two; the same for texts that differ in looks alone."""
    texts = table.select([name for name in (columns.text, columns.pair) if name is not None])
    digests = []
    for batch in texts.to_batches(max_chunksize=100_000):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # The separator counts as a space, so no normalised text has it.
            joined = "\x1f".join(map(normalize_text, row)).encode()
            digests.append(blake2b(joined, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def normalize_text(value: object) -> str:
    """A text without what two copies of it may differ in: case, spaces, and how its accents are encoded."""
    text = _joined(value)
    if text.isascii():
        text = text.lower()
    else:
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return " ".join(text.split())


def _joined(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # the words of a sentence
        return " ".join(map(_joined, value))
    return "" if value is None else str(value)


def _label_codes(tables: Mapping[str, pa.Table], label: str | None) -> tuple[dict[str, Codes], list[str]]:
    """The number of each row's label among all labels in their order; UNLABELLED where it has none (or several)."""
    texts = {
        split: table[label].cast(pa.string())
        for split, table in tables.items()
        if label in table.column_names and not pa.types.is_nested(table[label].type)
    }
    labels = sorted({name for column in texts.values() for name in pc.unique(column).to_pylist() if name})
    known = pa.array(labels, pa.string())
    codes = {split: np.full(len(table), UNLABELLED, dtype=np.int64) for split, table in tables.items()}
    for split, column in texts.items():
        found = pc.fill_null(pc.index_in(column, value_set=known), UNLABELLED)
        codes[split] = found.to_numpy().astype(np.int64)
    return codes, labels


def _are_classes(keys: Keys, codes: Codes, labels: Sequence[str]) -> bool:
    """Whether labels repeat, and are no scores."""
    used = np.unique(codes[codes != UNLABELLED])
    repeat = 0 < 2 * len(used) <= len(np.unique(keys))
    return repeat and not _are_scores([labels[code] for code in used])


def _are_scores(labels: Iterable[str]) -> bool:
    try:
        return not all(float(label).is_integer() for label in labels)
    except ValueError:
        return False


def _count_conflicts(keys: Mapping[str, Keys], codes: Mapping[str, Codes]) -> int:
    """Texts with more than one label, in all splits together."""
    all_keys, all_codes = np.concatenate(list(keys.values())), np.concatenate([codes[split] for split in keys])
    labelled = all_codes != UNLABELLED
    pairs = _distinct_pairs(all_keys[labelled], all_codes[labelled])
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())


def _distinct_pairs(keys: Keys, codes: Codes) -> tuple[Keys, Codes]:
    order = np.lexsort((codes, keys))
    keys, codes = keys[order], codes[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = (keys[1:] != keys[:-1]) | (codes[1:] != codes[:-1])
    return keys[first], codes[first]


def _count_shared(devs: Sequence[Keys], tests: Sequence[Keys]) -> int:
    return int(np.isin(np.concatenate(devs), np.concatenate(tests)).sum()) if devs and tests else 0


def _single_labels(keys: Keys, codes: Codes, labels: Sequence[str]) -> tuple[str, ...]:
    _, distinct = _distinct_pairs(keys, codes)
    found, counts = np.unique(distinct[distinct != UNLABELLED], return_counts=True)
    return tuple(labels[code] for code in found[counts == 1])


def _cut(keys: Keys, strata: Codes, shares: Mapping[str, float], seed: int) -> dict[str, npt.NDArray[np.bool_]]:
    """The rows of each new split. All rows of a text go the same way; of each stratum one text, at least, stays."""
    if not shares:
        return {}
    texts, of_row = np.unique(keys, return_inverse=True)
    if len(texts) <= len(shares):
        raise DataError(
            f"train has {_count(len(texts), 'different text')}, too few to cut {' and '.join(shares)} off it; "
            "add rows, or give these splits"
        )
    # A text with several labels counts for the first of them.
    stratum = np.full(len(texts), np.iinfo(np.int64).max)
    np.minimum.at(stratum, of_row, strata)
    _, stratum, sizes = np.unique(stratum, return_inverse=True, return_counts=True)
    order = np.lexsort((_shuffled(texts, seed), stratum))
    place = np.empty_like(order)
    place[order] = np.arange(len(texts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

    cut = {}
    taken = np.zeros_like(sizes)
    wanted = np.zeros(len(sizes))
    for split, share in shares.items():
        wanted += share * sizes
        counts = _round(wanted - taken, max(1, round(share * len(texts))), sizes - 1 - taken)
        chosen = (place >= taken[stratum]) & (place < (taken + counts)[stratum])
        taken += counts
        cut[split] = chosen[of_row]
        if not counts.any():
            raise DataError(f"no label of train has a text to spare for {split}; add rows, or give that split")
    return cut


def _round(wanted: npt.NDArray[np.float64], total: int, most: Codes) -> Codes:
    """Whole numbers near `wanted` whose sum is `total`, or as near to it as `most` lets them."""
    counts = np.clip(np.floor(wanted).astype(np.int64), 0, most)
    room = np.flatnonzero(counts < most)
    nearest = room[np.argsort(-(wanted - counts)[room], kind="stable")]
    counts[nearest[: max(total - int(counts.sum()), 0)]] += 1
    return counts


def _shuffled(keys: Keys, seed: int) -> Keys:
    """Other numbers for the same texts, in another order for every seed (the finalizer of SplitMix64)."""
    salt = np.frombuffer(blake2b(str(seed).encode(), digest_size=8).digest(), dtype="<u8")
    mixed = keys ^ salt
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    shuffled: Keys = mixed ^ (mixed >> np.uint64(31))
    return shuffled


def _ordered(splits: Mapping[str, Value]) -> dict[str, Value]:
    """Train, then what is dev, then what is test, then the rest."""
    kinds = ("train", "dev", "test", "")
    return {
        split: splits[split]
        for split in sorted(splits, key=lambda split: next(i for i, kind in enumerate(kinds) if split.startswith(kind)))
    }


def _rows(count: int) -> str:
    return _count(count, "row")


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
