"""Is fine-tuning here as good as a plain loop over `transformers`? From the same weights, rows, epochs, batch and rate.

Ours is `halfpint.finetune` as anybody calls it. The peer is the loop that everybody writes: `AutoModelFor…` with its
own loss and dropouts, padded batches, AdamW, warm-up and linear decay, clipping, bf16 autocast, the best epoch on dev.
Both are judged by the same code on the same rows: of test, or of dev where the labels of test are not public. Three
seeds, and five where those rows are fewer than 2,000. `spread` is the 95% interval of the difference in points (Welch).

Each run leaves a file in --out, and one that is there is not made again, so this can be ended and goes on.

    python -m benchmarks.finetune_quality --out build/quality [--tasks rte,mrpc] [--processes 6] [--save]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from benchmarks.reference import reference_data
from benchmarks.results import Row, write_results
from halfpint.data.encoded import Encoded
from halfpint.data.sources import Dataset, read
from halfpint.data.task import Array, score_of
from halfpint.data.tasks import find_task
from halfpint.data.text_task import header_of
from halfpint.engines.model import load
from halfpint.train.finetune import finetune
from halfpint.train.prepare import Prepared, fit_length, prepare
from halfpint.train.recipe import usual_settings

MODEL = "models/all-MiniLM-L6-v2"
SIDES = ("ours", "peer")
FEW_ROWS = 2000
WARM_UP = 0.1


@dataclass(frozen=True)
class Case:
    """Where a task's data lies, and what is to be said of it."""

    splits: dict[str, str]
    task: str | None = None
    num_seeds: int = 3
    max_length: int | None = None
    level: str | None = None
    """Of RACE."""


def in_folder(folder: str, ending: str, *splits: str) -> dict[str, str]:
    return {split: f"{folder}/{split}{ending}" for split in splits}


CASES = {
    "ag_news": Case(in_folder("ag_news", ".csv", "train", "test"), max_length=128),
    "sst2": Case(in_folder("glue/sst2", ".tsv", "train", "dev"), "sst2", num_seeds=5, max_length=128),
    "cola": Case(in_folder("glue/cola", ".tsv", "train", "dev"), "cola", num_seeds=5, max_length=128),
    "mrpc": Case(in_folder("glue/mrpc", ".tsv", "train", "dev"), "mrpc", num_seeds=5, max_length=128),
    "stsb": Case(in_folder("glue/stsb", ".tsv", "train", "dev"), "stsb", num_seeds=5, max_length=128),
    "rte": Case(in_folder("glue/rte", ".tsv", "train", "dev"), "rte", num_seeds=5),
    "conll": Case({**in_folder("conll2003", ".txt", "train", "test"), "dev": "conll2003/valid.txt"}, "conll"),
    "squad": Case({"train": "squad/train-v1.1.json", "dev": "squad/dev-v1.1.json"}, "squad", num_seeds=5),
    "toxicity": Case(in_folder("toxicity", ".csv.xz", "train", "test"), max_length=128),
    "imdb": Case(in_folder("imdb", ".parquet", "train", "test")),
    "race_middle": Case(in_folder("race", ".jsonl.xz", "train", "dev", "test"), "race", level="middle"),
}


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    side: str
    seed: int
    out: Path
    device: str
    rows: int | None
    epochs: int | None
    deadline: float
    """When it may no longer begin."""

    @property
    def path(self) -> Path:
        return self.out / f"{self.name}-{self.side}-{self.seed}.json"


def read_case(case: Case, rows: int | None) -> Dataset:
    """All of its splits; with `rows`, so many of each, for trying it out."""
    tables: dict[str, pa.Table] = {}
    for split, path in case.splits.items():
        (table,) = read(reference_data() / path, columns=header_of(case.task)).tables.values()
        if case.level is not None:
            table = table.filter(pc.equal(table["level"], case.level))
        tables[split] = table if rows is None else table.slice(0, rows)
    return Dataset(Path(case.splits["train"]).parts[-2], tables, {split: str(case.splits[split]) for split in tables})


def run_job(job: Job) -> dict[str, Any]:
    case = CASES[job.name]
    start = time.perf_counter()
    metrics = {"ours": run_ours, "peer": run_peer}[job.side](job, case)
    return {"metrics": metrics, "metric": next(iter(metrics)), "seconds": time.perf_counter() - start}


def run_ours(job: Job, case: Case) -> dict[str, float]:
    done = finetune(
        read_case(case, job.rows),
        model=reference_data() / MODEL,
        out=job.out / "models" / f"{job.name}-{job.seed}",
        task=case.task,
        seed=job.seed,
        epochs=job.epochs,
        max_length=case.max_length,
        device=job.device,
        precision="bf16",
        allow_weak=True,
        overwrite=True,
    )
    return {name: interval.mean for name, interval in done.metrics.items()}


def run_peer(job: Job, case: Case) -> dict[str, float]:
    dataset = read_case(case, job.rows)
    task = find_task(dataset, case.task)
    start = load(reference_data() / MODEL)
    assert start.tokenizer is not None and start.config is not None
    length = fit_length(task, case.max_length, start.max_length)
    prepared = prepare(dataset, task, start.tokenizer, length, seed=job.seed)
    usual = usual_settings(dataset.tables["train"].num_rows, start.config.encoder.hidden_size, from_scratch=False)
    return Peer(prepared, job, job.epochs or usual["epochs"], usual["batch"], usual["lr"]).run()


class Peer:
    """The plain loop."""

    def __init__(self, prepared: Prepared, job: Job, epochs: int, batch: int, lr: float) -> None:
        self.prepared, self.task, self.device = prepared, prepared.task, job.device
        self.epochs, self.batch, self.lr = epochs, batch, lr
        torch.manual_seed(job.seed)
        self.order = np.random.default_rng(job.seed)
        self.model = make_model(prepared).to(job.device)

    def run(self) -> dict[str, float]:
        encoded = self.prepared.splits["train"].encoded
        steps = self.epochs * -(-encoded.num_rows // self.batch)
        optimizer = torch.optim.AdamW(
            [
                {"params": [each for each in self.model.parameters() if each.dim() > 1], "weight_decay": 0.01},
                {"params": [each for each in self.model.parameters() if each.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=self.lr,
            fused=True,
        )
        rising = max(1, round(WARM_UP * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / rising, (steps - step) / max(1, steps - rising))
        )
        best, best_score = {}, -np.inf
        for _ in range(self.epochs):
            self.model.train()
            order = self.order.permutation(encoded.num_rows)
            for begin in range(0, len(order), self.batch):
                loss = self.loss(encoded.select(order[begin : begin + self.batch]))
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
            dev = self.prepared.splits["dev"]
            score = score_of(self.task, self.task.measure(self.task.judge(dev.table, dev.encoded, self.scores("dev"))))
            if score > best_score:
                best, best_score = {name: value.clone() for name, value in self.model.state_dict().items()}, score
        self.model.load_state_dict(best)
        dev, judged = self.prepared.splits["dev"], self.prepared.splits[self.prepared.judged]
        task = self.task.calibrate(dev.table, dev.encoded, self.scores("dev"))
        return task.measure(task.judge(judged.table, judged.encoded, self.scores(self.prepared.judged)))

    def loss(self, rows: Encoded) -> torch.Tensor:
        inputs = {name: value.to(self.device) for name, value in self.inputs(rows, labelled=True).items()}
        with torch.autocast(self.device, torch.bfloat16):
            loss: torch.Tensor = self.model(**inputs).loss
        return loss

    def inputs(self, rows: Encoded, *, labelled: bool) -> dict[str, torch.Tensor]:
        """Padded to the longest, as the model's class takes them."""
        ids = padded(rows, rows.ids, 0)
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(rows.lengths)[:, None]
        given = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": padded(rows, rows.segments, 0)}
        form = self.task.form
        if form == "choice":
            given = {name: value.unflatten(0, (rows.num_rows, -1)) for name, value in given.items()}
        if not labelled:
            return given
        if form == "tagging":
            return given | {"labels": padded(rows, rows.per_token["label"], -100)}
        labels = torch.from_numpy(rows.per_sequence["label"])
        if form == "span":
            return given | {"start_positions": labels[:, 0].long(), "end_positions": labels[:, 1].long()}
        if form == "choice":
            return given | {"labels": labels[torch.from_numpy(rows.row_starts[:-1])].long()}
        return given | {"labels": labels.float() if self.task.problem == "regression" else labels.long()}

    def scores(self, split: str) -> Array:
        """As our heads give them: of every sequence, or of every token."""
        encoded = self.prepared.splits[split].encoded
        self.model.eval()
        found = []
        for begin in range(0, encoded.num_rows, 128):
            rows = encoded.select(np.arange(begin, min(begin + 128, encoded.num_rows)))
            inputs = {name: value.to(self.device) for name, value in self.inputs(rows, labelled=False).items()}
            with torch.inference_mode(), torch.autocast(self.device, torch.bfloat16):
                found.append(self.flat(self.model(**inputs), rows).float().cpu().numpy())
        return np.concatenate(found)

    def flat(self, output: Any, rows: Encoded) -> torch.Tensor:
        form = self.task.form
        if form == "choice":
            return output.logits.flatten()
        if form not in ("span", "tagging"):
            return output.logits
        scores = torch.stack([output.start_logits, output.end_logits], dim=-1) if form == "span" else output.logits
        return torch.cat([each[:length] for each, length in zip(scores, rows.lengths.tolist(), strict=True)])


def padded(rows: Encoded, values: Array, fill: int) -> torch.Tensor:
    lengths = rows.lengths
    out = np.full((len(lengths), int(lengths.max())), fill, np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = values
    return torch.from_numpy(out)


def make_model(prepared: Prepared) -> torch.nn.Module:
    import transformers

    task = prepared.task
    folder = str(reference_data() / MODEL)
    names = {"span": "QuestionAnswering", "choice": "MultipleChoice", "tagging": "TokenClassification"}
    made = getattr(transformers, f"AutoModelFor{names.get(task.form, 'SequenceClassification')}")
    options = {"num_labels": len(task.labels)} if task.labels else {}
    model: torch.nn.Module = made.from_pretrained(folder, dtype=torch.float32, **options)
    return model


def difference(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, float, float]:
    """Of the means, and the ends of its interval."""
    from scipy import stats

    found = stats.ttest_ind(ours, peer, equal_var=False).confidence_interval(0.95)
    return float(np.mean(ours) - np.mean(peer)), float(found.low), float(found.high)


def collect(out: Path, names: Sequence[str]) -> list[Row]:
    rows, differences, variances = [], [], []
    for name in names:
        found: dict[str, list[float]] = {}
        metric = ""
        for side in SIDES:
            paths = [out / f"{name}-{side}-{seed}.json" for seed in range(CASES[name].num_seeds)]
            told = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
            found[side] = [100 * each["metrics"][each["metric"]] for each in told]
            metric = told[0]["metric"] if told else metric
        if min(map(len, found.values())) < 2:
            continue
        mean, low, high = difference(found["ours"], found["peer"])
        means = {side: float(np.mean(values)) for side, values in found.items()}
        seeds = f"{len(found['ours'])} seeds"
        ratio = means["ours"] / means["peer"] if means["peer"] else None
        rows.append(Row(f"{name}, {seeds}", metric, "points", means["ours"], means["peer"], ratio, (low, high)))
        differences.append(mean)
        variances.append(sum(np.var(values, ddof=1) / len(values) for values in found.values()))
    if rows:
        centre, reach = float(np.mean(differences)), 1.96 * float(np.sqrt(np.sum(variances))) / len(rows)
        ends = (centre - reach, centre + reach)
        rows.append(Row("mean over tasks", "ours less the peer's", "points", centre, spread=ends))
    return rows


def jobs_of(arguments: argparse.Namespace, deadline: float) -> Iterator[Job]:
    """The peer's longest first, so that no process is left with one at the end."""
    for side in reversed(SIDES):
        for name in arguments.tasks.split(","):
            for seed in range(arguments.seeds or CASES[name].num_seeds):
                job = Job(name, side, seed, arguments.out, arguments.device, arguments.rows, arguments.epochs, deadline)
                if side in arguments.sides.split(",") and not job.path.exists():
                    yield job


def work(job: Job) -> str:
    if time.time() > job.deadline:
        return f"{job.path.stem}: not begun"
    torch.set_num_threads(1 if job.device == "cuda" else 2)
    try:
        found = run_job(job)
    except Exception as error:  # the others go on
        return f"{job.path.stem}: {type(error).__name__}: {error}"
    job.path.write_text(json.dumps(found), encoding="utf-8")
    return f"{job.path.stem}: {found['metric']} {found['metrics'][found['metric']]:.4f}, {found['seconds']:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(CASES))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--seeds", type=int, help="fewer or more than usual")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--rows", type=int, help="of each split, for trying it out")
    parser.add_argument("--epochs", type=int, help="likewise")
    parser.add_argument("--save", action="store_true", help="write results/finetune_quality.json")
    arguments = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    arguments.out.mkdir(parents=True, exist_ok=True)
    jobs = list(jobs_of(arguments, time.time() + 60 * arguments.minutes))
    with multiprocessing.get_context("spawn").Pool(arguments.processes, maxtasksperchild=4) as pool:
        for told in pool.imap_unordered(work, jobs):
            print(told, flush=True)
    rows = collect(arguments.out, arguments.tasks.split(","))
    for row in rows:
        low, high = row.spread or (float("nan"), float("nan"))
        print(f"{row.case}: {row.metric} {row.ours:.2f}, peer {row.peer or 0:.2f}, difference {low:+.2f} … {high:+.2f}")
    if arguments.save:
        write_results("finetune_quality", "python -m benchmarks.finetune_quality --out build/quality --save", rows)


if __name__ == "__main__":
    main()
