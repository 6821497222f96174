"""What a checkpoint costs a training: how long its steps stand still, and how much slower they are
while it is written.

    python -m benchmarks.saves [--model bert-base] [--processes 1,2] [--seconds 60] [--rounds 3]
    [--batch 8] [--zero 1] [--out DIR]

A training by our engine saves once every `--seconds`, in alternation

    waiting    it stands still until `checkpoint.json` is there
    beside     it stands still for the copy to the host's memory, and a thread of each rank writes

Medians over the rounds, by the first rank's clock: the stall and its share of the interval, seconds
from the copy to `checkpoint.json`, and of `beside` a step's time while that is written beside a
step's otherwise. The last column is the most memory that a rank held.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.data.batch import collate
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World, init_distributed
from cloze.model.train.engines.create import create_engine
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.precision import resolve
from cloze.model.train.resume.saving import CheckpointSaver
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import START
from cloze.model.train.spec.progress import RunInfo, TrainerState
from tests.model.datasets import write_dataset
from tests.model.train.ranks import start

LENGTH, ROWS = 128, 64


def steps(values: dict[str, Any], world: World, dataset: str) -> tuple[Any, Any, Any]:
    """The engine, a step of it, and what a checkpoint says of the model."""
    model = model_config(values["model"], vocab_size=values["vocab_size"])
    config = PretrainConfig(model=model, global_batch=values["batch"], steps=1000)
    precision: Any = resolve("auto", world.device)
    torch.manual_seed(1)
    scoring = PretrainModule(new_model(model), ("mlm", "nsp"), precision)
    choice = (
        EngineConfig("deepspeed", values["zero"])
        if values["zero"] and world.size > 1
        else EngineConfig("torch", 0)
    )
    mine = max(1, values["batch"] // world.size)
    engine = create_engine(
        choice,
        scoring,
        hyperparameters(config, precision, step_duration(config)),
        world,
        micro_batch=mine,
        accumulation=1,
    )
    shards, sampler = ShardedRows(dataset), Sampler(ROWS, 2, 1)
    first = world.rank * mine
    batch = collate(
        shards.take(*sampler.locate(np.arange(first, first + mine))),
        pad=0,
        longest=LENGTH,
        layout="buckets",
    )
    targets = scoring.count_targets(batch)

    def step() -> None:
        counts = torch.tensor(
            [max(1, count) for count in world.all_reduce_sum(targets)], dtype=torch.float32
        )
        engine.backward(batch, counts, last=True)
        engine.step(1e-5)

    return (
        engine,
        step,
        checkpoint.Metadata(model=model, heads=dict(model.heads), tokenizer=f"{dataset}/tokenizer"),
    )


def measured(values: dict[str, Any], directory: Path) -> dict[str, list[dict[str, float]]]:
    """Every rank runs it."""
    world = init_distributed(Execution(threads=values["threads"], device="cpu"))
    engine, step, saved = steps(values, world, str(directory / "dataset"))
    run = RunInfo(
        fingerprint="",
        build="",
        config={},
        precision="",
        compiled=False,
        engine="",
        zero=0,
        packages={},
        start_position=START,
        data="",
    )
    saver = CheckpointSaver(str(directory / "run"), world, saved=saved, run=run, keep=1)
    for _ in range(3):
        step()
    found: dict[str, list[dict[str, float]]] = {"waiting": [], "beside": []}
    number = 0
    for _ in range(values["rounds"]):
        for how, rows in found.items():
            number += 1
            began = time.perf_counter()
            saver.save_async(TrainerState(step=number), frozenset(), engine)
            if how == "waiting":
                saver.wait()
            stall = time.perf_counter() - began
            beside, alone, written = list[float](), list[float](), 0.0
            while not world.all_reduce_sum([int(time.perf_counter() - began > values["seconds"])])[
                0
            ]:
                writing, at = saver.written < number, time.perf_counter()
                step()
                (beside if writing else alone).append(time.perf_counter() - at)
            saver.wait()
            written, saver.seconds = saver.seconds, 0.0
            rows.append(
                {
                    "stall": stall,
                    "share": stall / (time.perf_counter() - began),
                    "written": written,
                    "step_beside": statistics.median(beside) if beside else 0.0,
                    "step_alone": statistics.median(alone) if alone else 0.0,
                }
            )
    return found


def _rank(directory: Path) -> None:
    values = json.loads((directory / "values.json").read_text())
    found = measured(values, directory)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    if int(os.environ.get("RANK", "0")) == 0:
        size = (
            sum(path.stat().st_size for path in (directory / "run").rglob("*") if path.is_file())
            / 1e9
        )
        (directory / "found.json").write_text(
            json.dumps({"rows": found, "memory": memory, "size": size})
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--zero", type=int, default=0, help="of several processes")
    parser.add_argument(
        "--batch", type=int, default=8, help=f"rows of {LENGTH} tokens a step, of all processes"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="between two saves")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, help="of each process; by default the cores divided by the processes"
    )
    parser.add_argument(
        "--out", help="a directory on the disk to measure; by default a temporary one"
    )
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if options.out:
        os.makedirs(options.out, exist_ok=True)
    print(
        f"{platform.processor() or platform.machine()}, {cores} cores, torch {torch.__version__}; "
        f"{options.model}"
    )
    print(
        f"{'ranks':<7}{'how':<10}{'stall s':>9}{'share':>9}{'written s':>11}{'step s':>9}"
        f"{'while writing':>15}{'GB':>7}{'memory GB':>11}"
    )
    for processes in map(int, options.processes.split(",")):
        with tempfile.TemporaryDirectory(dir=options.out) as name:
            directory = Path(name)
            write_dataset(
                directory / "dataset",
                rows=ROWS,
                length=LENGTH,
                vocab_size=options.vocab_size,
                full=True,
            )
            values = {**vars(options), "threads": options.threads or max(1, cores // processes)}
            (directory / "values.json").write_text(json.dumps(values))
            ranks = start(["-m", "benchmarks.saves", "--rank", name], processes, directory / "log")
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                print((directory / "log").read_text()[-3000:], file=sys.stderr)
                return 1
            found = json.loads((directory / "found.json").read_text())
        for how, rows in found["rows"].items():
            stall, share, written, alone = (
                statistics.median(row[key] for row in rows)
                for key in ("stall", "share", "written", "step_alone")
            )
            beside = statistics.median(row["step_beside"] for row in rows)
            slower = f"{beside:.2f}" if beside else "–"
            print(
                f"{processes:<7}{how:<10}{stall:>9.2f}{share:>9.2%}{written:>11.2f}{alone:>9.2f}"
                f"{slower:>15}"
                f"{found['size']:>7.2f}{found['memory']:>11.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(Path(sys.argv[2]))
    else:
        sys.exit(main())
