"""What an engine costs between ranks: a step of ours at each ZeRO stage beside torch's own DistributedDataParallel.

    python -m benchmarks.ranks [--model bert-mini] [--vocab-size 30522] [--batch 16] [--precision bf16] [--zero 0,1,2,3] [--rounds 5]

Two ranks on this machine, a thread each, over gloo. All variants live in the same two processes and take turns, each with the same model,
optimizer, batches and loss: `ddp` is the loop that anybody would write around DistributedDataParallel, `zero 0` our own sum of gradients,
the others DeepSpeed's stages as `cloze pretrain --zero N` runs them. Tokens a second of both ranks together, medians over the rounds.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from flows.launchers.ranks import RANK_ENVIRONMENT
from model.data.batch import Batch
from model.data.collate import collate
from model.data.sampler import Sampler
from model.data.shards import Shards
from model.families.models import new_model
from model.families.presets import model_config
from model.train.config import PretrainConfig
from model.train.distributed import World, join
from model.train.engines import EngineChoice
from model.train.engines.create import create
from model.train.optimizers.adamw import adamw
from model.train.parameters import parameter_groups
from model.train.precision import resolve
from model.train.recipe import recipe, step_pace
from model.train.scoring import Scoring
from pipeline.core.execution import Execution
from tests.model.datasets import write_dataset
from tests.model.train.ranks import environments

RANKS = 2
Step = Callable[[Batch], None]


def scoring_of(config: PretrainConfig, precision: Any) -> Scoring:
    torch.manual_seed(0)
    return Scoring(new_model(config.model), ("mlm", "nsp"), precision)


def counts_of(scoring: Scoring, batch: Batch) -> torch.Tensor:
    """Predictions of all ranks: they read batches of one shape, so what is here times their number."""
    return torch.tensor([RANKS * max(1, count) for count in scoring.targets(batch)], dtype=torch.float32)


def ours(config: PretrainConfig, precision: Any, world: World, zero: int) -> Step:
    scoring = scoring_of(config, precision)
    settled = recipe(config, precision, step_pace(config))
    choice = EngineChoice("deepspeed" if zero else "torch", zero)
    engine = create(choice, scoring, settled, world, micro_batch=config.global_batch // RANKS, accumulation=1)

    def step(batch: Batch) -> None:
        engine.backward(batch, counts_of(scoring, batch), last=True)
        engine.step(1e-4)

    return step


def ddp(config: PretrainConfig, precision: Any, world: World) -> Step:
    scoring = scoring_of(config, precision)
    settled = recipe(config, precision, step_pace(config))
    optimizer = adamw(parameter_groups(scoring.model, settled), settled)
    wrapped = torch.nn.parallel.DistributedDataParallel(scoring)

    def step(batch: Batch) -> None:
        loss, *_ = wrapped(batch, counts_of(scoring, batch) / RANKS)  # it takes the mean over ranks
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scoring.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def rank(options: argparse.Namespace) -> None:
    """One of the two processes; the first prints."""
    world = join(Execution(threads=1, processes=RANKS, device="cpu"))
    model = model_config(options.model, vocab_size=options.vocab_size)
    config = PretrainConfig(model=model, global_batch=RANKS * options.batch, precision=options.precision)
    precision = resolve(options.precision, torch.device("cpu"))
    shards, sampler = Shards(options.dataset), Sampler(256, 2, 1)
    batches = [
        collate(
            shards.take(*sampler.locate(np.arange(start, start + options.batch))),
            pad=0,
            longest=options.length,
            layout="buckets",
        )
        for start in range(world.rank * 128, world.rank * 128 + 128, options.batch)
    ]
    steps = {"ddp": ddp(config, precision, world)}
    steps |= {f"zero {stage}": ours(config, precision, world, int(stage)) for stage in options.zero.split(",")}
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds + 1):  # the first warms up
        for name, step in steps.items():
            distributed.barrier()
            began = time.perf_counter()
            for at in range(options.steps):
                step(batches[at % len(batches)])
            distributed.barrier()
            if number:
                speeds[name].append(RANKS * options.steps * options.batch * options.length / (time.perf_counter() - began))
    if world.first:
        middle = {name: statistics.median(found) for name, found in speeds.items()}
        for name, speed in middle.items():
            ratios = [one / other for one, other in zip(speeds[name], speeds["ddp"], strict=True)]
            print(
                f"{name:8}{speed:10,.0f} tokens/s  {statistics.median(ratios):5.2f} of ddp ({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16, help="rows of a rank")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--zero", default="0,1,2,3", help="stages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--dataset", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.dataset:
        rank(options)
        return
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, 2 ranks of 1 thread"
    )
    print(
        f"{options.model}, V {options.vocab_size}, {options.precision}, {options.batch} x {options.length} a rank", flush=True
    )
    with tempfile.TemporaryDirectory() as directory:
        dataset = write_dataset(
            Path(directory) / "dataset", rows=256, length=options.length, vocab_size=options.vocab_size, full=True
        )
        command = [sys.executable, "-m", "benchmarks.ranks", *sys.argv[1:], "--dataset", dataset]
        ranks = [subprocess.Popen(command, env={**RANK_ENVIRONMENT, **env}) for env in environments(RANKS)]
        ended = [process.wait() for process in ranks]
        if any(ended):
            sys.exit("a rank failed; see above")


if __name__ == "__main__":
    main()
