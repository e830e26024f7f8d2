"""Rows of JSON, of SQuAD's nested JSON, of CoNLL files and of plain lines, block by block; and where one is wrong.

What is notable:
- JSON is parsed by Python, since pyarrow takes strings that look like dates for dates. A column that has no one type
  (1 and "a") becomes text, strings as they are and the rest as JSON, so that an odd column that nobody asks for keeps
  nobody from reading the file.
- SQuAD's form is known by its shape, whatever the file is called, and gives one row a question.
- CoNLL files are read twice: which column has the tags is only known at the end. Where most lines of a `.txt` look
  tagged, it is one of them, so that a wrong line in it is told and not taken for a text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from halfpint.data.delimited import DataError, not_utf8, open_bytes, open_lines, reason, require_distinct
from halfpint.data.tagging import OUTSIDE, is_tag

BLOCK_ROWS = 10_000
"""Rows of a table, or fewer, if they are long."""
BLOCK_BYTES = 32 << 20
FIELD_BYTES = 64
"""What a word weighs in Python beside its letters."""

SAMPLE_BYTES = 64 << 10
"""By so much of a `.txt` is it told what it is."""
DOCUMENT = "-DOCSTART-"

SQUAD = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.struct([("text", pa.string()), ("answer_start", pa.int64())]))),
    ]
)
WORDS = pa.list_(pa.string())

Item = TypeVar("Item")


def in_blocks(items: Iterable[tuple[Item, int]]) -> Iterator[list[Item]]:
    """Items, each given with its size in bytes or so, in lists that fit into memory."""
    block: list[Item] = []
    total = 0
    for item, size in items:
        block.append(item)
        total += size
        if len(block) == BLOCK_ROWS or total > BLOCK_BYTES:
            yield block
            block, total = [], 0
    if block:
        yield block


def read_json_lines(path: Path) -> Iterator[pa.Table]:
    """The objects of a file with one a line; blank lines count for nothing."""
    for block in in_blocks(_json_lines(path)):
        rows, places = zip(*block, strict=True)
        yield read_rows(rows, places)


def _json_lines(path: Path) -> Iterator[tuple[tuple[object, str], int]]:
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                yield (_parse_line(path, number, text), f"{path}, line {number}"), len(line)


def _parse_line(path: Path, number: int, line: bytes) -> object:
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, line[error.start]) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number} is not JSON ({reason(error)}); expected one object a line") from error


def read_json(path: Path) -> Iterator[pa.Table]:
    """The rows of a `.json` file: a list of objects, one object a line, or SQuAD's articles."""
    if not _is_one_document(path):
        yield from read_json_lines(path)
        return
    document = _parse_document(path)
    if _is_squad(document):
        for rows in in_blocks(_questions(path, cast(Mapping[str, Any], document))):
            yield read_rows(rows, [f"{path}, question {row['id']!r}" for row in rows], SQUAD)
        return
    if not isinstance(document, list):
        raise DataError(
            f"{path} is {kind_of(document)}, expected a list of objects, one object a line, or articles as SQuAD has "
            "them"
        )
    for start in range(0, len(document), BLOCK_ROWS):
        block = document[start : start + BLOCK_ROWS]
        yield read_rows(block, [f"{path}, row {number}" for number in range(start + 1, start + len(block) + 1)])


def _is_one_document(path: Path) -> bool:
    """Whether a file is all one list or object, by its first line: of objects a line that is one of them."""
    with open_bytes(path) as file:
        lines = (line.removeprefix(b"\xef\xbb\xbf").strip() for line in file)
        first = next(filter(None, lines), b"{}")
    try:
        value = json.loads(first.decode())
        return isinstance(value, list) or _is_squad(value)
    except (ValueError, RecursionError):
        return True


def _parse_document(path: Path) -> object:
    with open_bytes(path) as file:
        data = file.read()
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf8(path, data.count(b"\n", 0, error.start) + 1, data[error.start]) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno} is not JSON ({error.msg}); expected a list of objects, or one object a line"
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise DataError(f"{path} cannot be read as JSON ({reason(error)})") from error


def read_rows(rows: Sequence[object], places: Sequence[str], schema: pa.Schema | None = None) -> pa.Table:
    """A table of dicts; a key that a row lacks is null. `places` says of each row where it is."""
    for row, place in zip(rows, places, strict=True):
        if not isinstance(row, Mapping):
            raise DataError(f"{place} is {kind_of(row)}, expected an object with a name for each value")
    objects = cast(Sequence[Mapping[object, object]], rows)
    names = list(dict.fromkeys(name for row in objects for name in row))
    require_distinct([str(name) for name in names], places[0] if places else "the data")
    try:
        if schema is not None:
            return pa.Table.from_pylist(list(objects), schema)
        return pa.table({str(name): to_column([row.get(name) for row in objects]) for name in names})
    except UnicodeEncodeError as error:
        place = next(place for row, place in zip(objects, places, strict=True) if not _is_unicode(row))
        raise not_unicode(place) from error


KINDS: dict[type, str] = {
    str: "a text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object",
    type(None): "null",
}  # fmt: skip


def kind_of(value: object) -> str:
    """What a value is, as JSON would call it."""
    return KINDS.get(type(value), f"a value of type {type(value).__name__}")


def not_unicode(place: str) -> DataError:
    return DataError(f"{place} has half a surrogate pair (\\ud800 to \\udfff), which is no text; mend it")


def _is_unicode(row: Mapping[object, object]) -> bool:
    try:
        _as_json(dict(row)).encode()
    except UnicodeEncodeError:
        return False
    return True


def to_column(values: Any) -> pa.Array:
    """Values of one type as they are, others as text."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        values = values.tolist()
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return to_texts(values)


def to_texts(values: Iterable[object]) -> pa.Array:
    """Strings as they are, the rest as JSON."""
    texts = (value if value is None or isinstance(value, str) else _as_json(value) for value in values)
    return pa.array(list(texts), pa.string())


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_squad(document: object) -> bool:
    articles = document.get("data") if isinstance(document, Mapping) else None
    return isinstance(articles, list) and any(isinstance(each, Mapping) and "paragraphs" in each for each in articles)


def _questions(path: Path, document: Mapping[str, Any]) -> Iterator[tuple[dict[str, object], int]]:
    """A row of each question, and its size; without answers where it has none or is said to have none."""
    for article_number, article in enumerate(document["data"], 1):
        in_article = f"{path}, article {article_number}"
        for paragraph_number, paragraph in enumerate(_field(article, "paragraphs", list, in_article), 1):
            in_paragraph = f"{in_article}, paragraph {paragraph_number}"
            context = _field(paragraph, "context", str, in_paragraph)
            for number, question in enumerate(_field(paragraph, "qas", list, in_paragraph), 1):
                place = f"{in_paragraph}, question {number}"
                row = {
                    "id": _id(question, place),
                    "title": _field(article, "title", str, in_article) if article.get("title") is not None else None,
                    "context": context,
                    "question": _field(question, "question", str, place),
                    "answers": _answers(question, place),
                }
                yield row, len(context)


def _id(question: Mapping[str, Any], place: str) -> str:
    is_number = isinstance(question, Mapping) and isinstance(question.get("id"), int)
    return str(_field(question, "id", int if is_number else str, place))


def _answers(question: Mapping[str, Any], place: str) -> list[dict[str, object]]:
    if question.get("is_impossible") or question.get("answers") is None:  # those of a test set are kept secret
        return []
    return [
        {
            "text": _field(answer, "text", str, f"{place}, answer {number}"),
            "answer_start": _field(answer, "answer_start", int, f"{place}, answer {number}"),
        }
        for number, answer in enumerate(_field(question, "answers", list, place), 1)
    ]


def _field(value: object, name: str, kind: type, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise DataError(f"{place} is {kind_of(value)}, expected an object, as SQuAD has it")
    if name not in value:
        raise DataError(f"{place} has no {name}; in SQuAD's form it has {KINDS[kind]} of this name")
    if not isinstance(value[name], kind) or isinstance(value[name], bool):
        raise DataError(f"{place} has {kind_of(value[name])} as its {name}, expected {KINDS[kind]}")
    return value[name]


def read_text(path: Path) -> Iterator[pa.Table]:
    """The rows of a `.txt` file: tagged sentences where it looks so, else a text a line."""
    return read_conll(path) if _looks_tagged(path) else _read_lines(path)


def _read_lines(path: Path) -> Iterator[pa.Table]:
    for texts in in_blocks(_texts(path)):
        yield pa.table({"text": pa.array(texts, pa.string())})


def _texts(path: Path) -> Iterator[tuple[str, int]]:
    """Every line, and its size; blank ones are empty texts, except after the last that is not."""
    blank = 0
    with open_lines(path) as lines:
        for line in lines:
            if not line.strip():
                blank += 1
                continue
            for _ in range(blank):
                yield "", 0
            blank = 0
            yield line.rstrip("\r\n"), len(line)


def _looks_tagged(path: Path) -> bool:
    """Whether most lines are columns, as many in each, with a tag in the same one after the first."""
    with open_bytes(path) as file:
        sample = file.read(SAMPLE_BYTES)
    lines = re.split("\r\n?|\n", sample.decode("utf-8-sig", errors="replace"))
    if len(sample) == SAMPLE_BYTES:
        lines = lines[:-1]  # the rest of it is elsewhere
    words = [_split(line, "\t" in line) for line in lines if not _is_between(line)]
    tagged: Counter[tuple[int, int]] = Counter()
    certain: set[tuple[int, int]] = set()
    for fields in words:
        for column, value in enumerate(fields[1:], 1):
            if is_tag(value):
                tagged[len(fields), column] += 1
                if value == OUTSIDE or len(value) > 2:  # and not the B of "vitamin B"
                    certain.add((len(fields), column))
    return any(2 * tagged[place] > len(words) for place in certain)


def read_conll(path: Path) -> Iterator[pa.Table]:
    """The sentences of a CoNLL file: `tokens`, the first column, and `tags`, the last that has only tags.

    Where words are all that a line has, there are no tags.
    """
    tags = _find_tags(path)
    columns = {"tokens": 0} if tags is None else {"tokens": 0, "tags": tags}
    for sentences in in_blocks(_sentences(path)):
        yield pa.table(
            {
                name: pa.array([[fields[column] for fields in words] for words in sentences], WORDS)
                for name, column in columns.items()
            }
        )


def _find_tags(path: Path) -> int | None:
    left: list[int] | None = None
    for number, fields in _word_lines(path):
        if not fields:
            continue
        before = list(range(1, len(fields))) if left is None else left
        left = [column for column in before if is_tag(fields[column])]
        if before and not left:
            raise DataError(
                f"{path}, line {number} has {fields[before[-1]]!r} where a tag is expected (O, or B-, I-, E- or S- and "
                "a type), and no other column has tags in every line; mend it, or give JSONL with tokens and tags"
            )
    return left[-1] if left else None


def _sentences(path: Path) -> Iterator[tuple[list[list[str]], int]]:
    """The words of each sentence, every one with all its columns, and the size of the sentence."""
    words: list[list[str]] = []
    for _, fields in chain(_word_lines(path), [(0, [])]):
        if fields:
            words.append(fields)
        elif words:
            yield words, sum(FIELD_BYTES + len(field) for word in words for field in word)
            words = []


def _word_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of every line and its columns; none between sentences."""
    first, width, tabbed = 0, 0, False
    with open_lines(path) as lines:
        for number, line in enumerate(lines, 1):
            if _is_between(line):
                yield number, []
                continue
            if not first:
                tabbed = "\t" in line
            fields = _split(line.rstrip("\r\n"), tabbed)
            if not first:
                first, width = number, len(fields)
            elif len(fields) != width:
                raise DataError(
                    f"{path}, line {number} has {len(fields)} column{'s' if len(fields) > 1 else ''}, expected {width} "
                    f"with {'tabs' if tabbed else 'spaces'} between them, as in line {first}; a word has its line, and "
                    "sentences have a blank line between them"
                )
            yield number, fields


def _is_between(line: str) -> bool:
    return not line.strip() or line.startswith(DOCUMENT)


def _split(line: str, tabbed: bool) -> list[str]:
    # Not at any white space: a word may be a no-break space.
    return line.split("\t") if tabbed else [field for field in line.split(" ") if field]
