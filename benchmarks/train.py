"""What the trainer costs: training speed in tokens a second, beside a bare loop of the same model.

    python -m benchmarks.train --model bert-tiny --vocab-size 8192 [--precision bf16] [--rounds 5]
    [--processes 2] [--compile]

In one process, in alternation (these machines drift by a third from minute to minute), medians over
the rounds:

    loader         the collator alone: sampler, memory map, masks, padding
    cloze          a step of our trainer: its engine, global counts, checks, figures
    bare           the same model and optimizer in a plain torch loop, the same batches

and with --processes N a whole run of N ranks, with one thread each where the machine has N cores.
What the model is worth beside transformers' own, `benchmarks.model` measures. Rows are synthetic
and all of full length; speed does not depend on what the tokens are.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.steps import Step, batches_of, ours, plain
from cloze.core.stages.execution import Execution
from cloze.model.data.batch import collate
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from cloze.model.families.registry import model_config
from cloze.model.layers.batch import Batch
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve
from cloze.model.train.spec.engine_choice import EngineConfig
from tests.model.datasets import write_dataset
from tests.model.train.ranks import job, run_all


def loader(dataset: str, batch: int, length: int) -> float:
    """Tokens a second of sampling and collating in one thread."""
    shards = ShardedRows(dataset)
    sampler = Sampler(len(shards), 2, 1)
    started, tokens, number = time.perf_counter(), 0, 0
    while time.perf_counter() - started < 2.0:
        rows = shards.take(*sampler.locate(np.arange(number * batch, (number + 1) * batch)))
        tokens += int(collate(rows, pad=0, longest=length)["attention_mask"].sum())
        number += 1
    return tokens / (time.perf_counter() - started)


def measure(
    steps: dict[str, Step], batches: list[Batch], rounds: int, seconds: float
) -> dict[str, float]:
    """Median tokens a second of each, in alternation."""
    for step in steps.values():  # compile, allocate, warm up
        for batch in batches[:3]:
            step(batch)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started, tokens, number = time.perf_counter(), 0, 0
            while time.perf_counter() - started < seconds or number < 2:
                batch = batches[number % len(batches)]
                step(batch)
                tokens += int(batch["attention_mask"].sum())
                number += 1
            speeds[name].append(tokens / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in speeds.items()}


def run_in_processes(
    config: PretrainConfig, dataset: str, out: Path, processes: int, steps: int, threads: int | None
) -> float:
    """Tokens a second of a whole run, as its own figures say."""
    import json

    whole = config.model_copy(
        update={
            "steps": steps,
            "log_every": max(1, steps // 5),
            "evaluate_every": steps,
            "heldout_rows": 8,
        }
    )
    run_all(
        [
            job(
                whole,
                dataset,
                out,
                zero=1,
                threads=threads or max(1, len(os.sched_getaffinity(0)) // processes),
            )
        ],
        processes,
    )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return float(statistics.median(line["tokens_per_second"] for line in lines[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bert-tiny")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument(
        "--processes", type=int, default=0, help="also whole runs of 1 and of this many ranks"
    )
    parser.add_argument("--steps", type=int, default=30, help="of a whole run")
    parser.add_argument(
        "--threads", type=int, help="of each process; by default the cores divided by the processes"
    )
    parser.add_argument("--compile", action="store_true", help="also the compiled trainer")
    options = parser.parse_args()

    model = model_config(options.model, vocab_size=options.vocab_size)
    config = PretrainConfig(model=model, global_batch=options.batch, precision=options.precision)
    world = init_distributed(Execution(threads=options.threads))
    precision: Any = resolve(options.precision, torch.device("cpu"))
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, {precision}"
    )
    print(f"{options.model}, V {options.vocab_size}, {options.batch} x {options.length}")
    with tempfile.TemporaryDirectory() as directory:
        dataset = write_dataset(
            Path(directory) / "dataset",
            rows=512,
            length=options.length,
            vocab_size=options.vocab_size,
            full=True,
        )
        print(f"{'loader':14}{loader(dataset, options.batch, options.length):12,.0f} tokens/s")
        batches = batches_of(dataset, range(512), options.batch, options.length)
        whole = EngineConfig("torch", 0)
        variants = {
            "bare": plain(config, precision, world),
            "cloze": ours(config, precision, world, whole),
        }
        if options.compile:
            variants["cloze compiled"] = ours(config, precision, world, whole, compiled=True)
        speeds = measure(variants, batches, options.rounds, options.seconds)
        for name, speed in speeds.items():
            print(f"{name:14}{speed:12,.0f} tokens/s   {speed / speeds['bare']:.2f} of bare")
        for processes in sorted({1, options.processes}) if options.processes else ():
            speed = run_in_processes(
                config,
                dataset,
                Path(directory) / f"run{processes}",
                processes,
                options.steps,
                options.threads,
            )
            print(
                f"{f'{processes} processes':14}{speed:12,.0f} tokens/s   "
                f"{speed / speeds['bare']:.2f} of bare (whole runs)"
            )


if __name__ == "__main__":
    main()
