"""A corpus on disk against `tokenizers` alone on the same text: reading, splitting, comparing and writing are extra.

The peer tokenizes the same documents, paragraph by paragraph, on all cores, and throws the result away. Needs the
reference data; --megabytes says how much of it.

    python -m benchmarks.corpus [--megabytes 60] [--rounds 3] [--save]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.reference import reference_data
from benchmarks.results import compared, write_results
from halfpint.artifact import read_artifact
from halfpint.data.build_corpus import build_corpus
from halfpint.data.documents import read_documents
from halfpint.data.tokenizer import Tokenizer, read_tokenizer

PARAGRAPHS_AT_ONCE = 2000


def ours(source: Path, tokenizer: Tokenizer) -> float:
    """Seconds for all of it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        build_corpus(source, tokenizer, Path(folder) / "corpus")
        return time.perf_counter() - start


def peer(paragraphs: list[str], tokenizer: Tokenizer) -> float:
    start = time.perf_counter()
    for begin in range(0, len(paragraphs), PARAGRAPHS_AT_ONCE):
        tokenizer.backend.encode_batch(paragraphs[begin : begin + PARAGRAPHS_AT_ONCE], add_special_tokens=False)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/corpus.json")
    arguments = parser.parse_args()
    data = reference_data()
    if not data.is_dir():
        raise SystemExit("the reference data is not there; name its folder in HALFPINT_DATA")
    tokenizer = read_tokenizer(read_artifact(data / "models" / "all-MiniLM-L6-v2"))
    assert tokenizer is not None
    documents, size = [], 0
    for document in read_documents(data / "corpus" / "books.jsonl.xz"):
        documents.append(document)
        size += len(document.encode())
        if size >= arguments.megabytes * 1e6:
            break
    paragraphs = [paragraph for document in documents for paragraph in document.split("\n\n")]
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "books.jsonl"
        source.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents), encoding="utf-8")
        for _ in range(arguments.rounds):
            rates["ours"].append(size / 1e6 / ours(source, tokenizer))
            rates["peer"].append(size / 1e6 / peer(paragraphs, tokenizer))
    case = f"{len(documents)} books"
    row = compared(case, "corpus on disk", "MB/s", rates["ours"], rates["peer"], higher_is_better=True)
    print(f"{row.case}: {row.ours:.2f} {row.unit}, {row.peer:.2f} at most, ratio {row.ratio:.2f}")
    if arguments.save:
        write_results("corpus", "python -m benchmarks.corpus --save", [row])


if __name__ == "__main__":
    main()
