"""What an engine costs between ranks: a step of each of ours beside torch's own
DistributedDataParallel.

    python -m benchmarks.ranks [--model bert-mini] [--vocab-size 30522] [--batch 16] [--precision
    bf16] [--engines torch,fsdp2,fsdp3,deepspeed1,deepspeed2,deepspeed3] [--rounds 5]
        [--optimizer adamw] [--grad-reduce-dtype bf16]

Two ranks on this machine, a thread each, over gloo. All variants live in the same two processes and
take turns, each with the same model,
batches and loss: `ddp` is the loop that anybody would write around DistributedDataParallel and
AdamW, `torch` our own sum of gradients, `fsdpN` and `deepspeedN` the stages as `cloze pretrain
--engine E --zero N` runs them. Tokens a second of both ranks together, medians over the rounds; where both share a core,
or other work does, the ratio of the processor time says more.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import distributed

from benchmarks.steps import batches_of, ours, plain
from cloze.core.stages.execution import Execution
from cloze.flows.launch.local import RANK_ENVIRONMENT
from cloze.model.families.registry import model_config
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import init_distributed
from cloze.model.train.optimizers import OPTIMIZERS
from cloze.model.train.precision import resolve
from cloze.model.train.spec.engine_choice import EngineConfig
from tests.model.datasets import write_dataset
from tests.model.train.ranks import environments

RANKS = 2


def rank(options: argparse.Namespace) -> None:
    """One of the two processes; the first prints."""
    world = init_distributed(Execution(threads=1, processes=RANKS, device="cpu"))
    model = model_config(options.model, vocab_size=options.vocab_size)
    config = PretrainConfig(
        model=model,
        global_batch=RANKS * options.batch,
        precision=options.precision,
        optimizer=options.optimizer,
        grad_reduce_dtype=options.grad_reduce_dtype,
    )
    precision = resolve(options.precision, torch.device("cpu"))
    first = world.rank * 128
    batches = batches_of(options.dataset, range(first, first + 128), options.batch, options.length)
    steps = {"ddp": plain(config, precision, world)}
    for name in options.engines.split(","):
        stage = name.lstrip("abcdefghijklmnopqrstuvwxyz")
        choice = EngineConfig(name.removesuffix(stage), int(stage or 0))
        steps[name] = ours(config, precision, world, choice)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    works: dict[str, list[float]] = {
        name: [] for name in steps
    }  # processor time of both ranks, with that of gloo's threads
    for number in range(options.rounds + 1):  # the first warms up
        for name, step in steps.items():
            distributed.barrier()
            began, worked = time.perf_counter(), time.process_time()
            for at in range(options.steps):
                step(batches[at % len(batches)])
            distributed.barrier()
            seconds, work = time.perf_counter() - began, torch.tensor(time.process_time() - worked)
            distributed.all_reduce(work)
            if number:
                speeds[name].append(
                    RANKS * options.steps * options.batch * options.length / seconds
                )
                works[name].append(float(work))
    if world.is_rank_zero:
        for name in steps:
            fast = [one / other for one, other in zip(speeds[name], speeds["ddp"], strict=True)]
            cheap = [other / one for one, other in zip(works[name], works["ddp"], strict=True)]
            line = f"{name:12}{statistics.median(speeds[name]):10,.0f} tokens/s  {_ratios(fast)} of ddp"
            print(f"{line}, by processor time {_ratios(cheap)}", flush=True)


def _ratios(found: Sequence[float]) -> str:
    return f"{statistics.median(found):5.2f} ({min(found):.2f} to {max(found):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="rows of a rank")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument(
        "--engines", default="torch,fsdp2,fsdp3,deepspeed1,deepspeed2,deepspeed3", help="with stage"
    )
    parser.add_argument("--grad-reduce-dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--optimizer", default="adamw", choices=list(OPTIMIZERS), help="ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--dataset", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.dataset:
        rank(options)
        return
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, 2 ranks of 1 thread"
    )
    print(
        f"{options.model}, V {options.vocab_size}, {options.precision}, {options.optimizer}, "
        f"{options.batch} x {options.length} a rank",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        dataset = write_dataset(
            Path(directory) / "dataset",
            rows=256,
            length=options.length,
            vocab_size=options.vocab_size,
            full=True,
        )
        command = [sys.executable, "-m", "benchmarks.ranks", *sys.argv[1:], "--dataset", dataset]
        ranks = [
            subprocess.Popen(command, env={**RANK_ENVIRONMENT, **env})
            for env in environments(RANKS)
        ]
        ended = [process.wait() for process in ranks]
        if any(ended):
            sys.exit("a rank failed; see above")


if __name__ == "__main__":
    main()
