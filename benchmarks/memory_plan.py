"""What the plan says that a training's ranks take, beside what they took: the memory model of
`cloze.model.train.plan.estimates`, on this CPU.

    python -m benchmarks.memory_plan [--shapes bert-medium:8x128:bf16,…] [--zero 0,1,2,3]
    [--engine fsdp] [--checkpointing] [--steps 3]
        [--save-once | --save-seconds 0]

A shape is PRESET[@LAYERSxWIDTH]:ROWSxLENGTH[xMICRO-BATCHES]:PRECISION, with a vocabulary of 8,192.
Each is trained for a few steps, with a save after each, in one process, and in two at every ZeRO
stage; `took` is the highest resident set of the rank that takes most, less that of a training of a
model of a few thousand weights, and `planned` what the plan says of it without the process itself.
Every rank is forked off a process that has imported everything, under the memory settings that
`cloze` gives its ranks.

The plan counts on a save that is still being written at the next step's peak. On a quick disk it
may be over by then: `--save-seconds` makes each file of a save take so much longer.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.model import reset_peak_memory
from cloze.core.processes import peak_memory
from cloze.core.stages.worker import Job, PipeReporter
from cloze.core.stages.worker import run as run_job
from cloze.flows.launch.local import RANK_ENVIRONMENT
from cloze.model.families.registry import model_config
from cloze.model.tensors import write_tensors
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan.estimates import ComputeOptions, StepCost
from cloze.model.train.resume import saving
from tests.model.datasets import write_dataset
from tests.model.train.ranks import environments, job

SHAPES = (
    "bert-medium:8x128:bf16,bert-base:2x128:bf16,roberta-tiny:64x128:fp32,modern-tiny:16x512:bf16"
)
VOCABULARY = 8192


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, its rows at once, their length, and how many micro-batches a step has."""

    model: str
    rows: int
    length: int
    accumulation: int
    precision: str
    changes: Mapping[str, int] = field(default_factory=lambda: {"vocab_size": VOCABULARY})

    @classmethod
    def parse(cls, text: str) -> Shape:
        model, cut, precision = text.split(":")
        rows, length, *accumulation = map(int, cut.split("x"))
        preset, _, size = model.partition("@")
        changes = {"vocab_size": VOCABULARY}
        if size:  # of the preset's proportions
            of, (layers, width) = model_config(preset), map(int, size.split("x"))
            changes |= {
                "num_hidden_layers": layers,
                "hidden_size": width,
                "num_attention_heads": width // of.head_size,
            }
            changes["intermediate_size"] = of.intermediate_size * width // of.hidden_size
        return cls(preset, rows, length, *(accumulation or [1]), precision, changes)


def slow_disk(seconds: float) -> None:
    """Have every file of a checkpoint take so many seconds more, until this process ends."""

    def write(*arguments: Any) -> tuple[str, int]:
        time.sleep(seconds)
        return write_tensors(*arguments)

    mock.patch.object(saving, "write_tensors", write).start()


def took(job: Job, world: int, save_seconds: float) -> int:
    """The most bytes that a rank of the job had resident."""
    pipes = []
    for environment in environments(world):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(read)
                os.environ.update(environment)
                reset_peak_memory()
                slow_disk(save_seconds)
                run_job(job, "cloze.model", PipeReporter())
                os.write(write, str(peak_memory()).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        pipes.append((pid, read))
    found = []
    for pid, read in pipes:
        with os.fdopen(read) as stream:
            found.append(int(stream.read() or 0))
        os.waitpid(pid, 0)
    if not all(found):
        raise SystemExit("a rank failed; see above")
    return max(found)


def measured(
    shape: Shape,
    world: int,
    zero: int,
    steps: int,
    checkpointing: bool,
    save_once: bool = False,
    save_seconds: float = 0.0,
    engine: str = "auto",
) -> tuple[int, int]:
    """What was planned, and what was taken: bytes."""
    model = model_config(shape.model, **shape.changes)
    with tempfile.TemporaryDirectory() as directory:
        data = write_dataset(
            Path(directory) / "data", rows=64, heldout=4, length=shape.length,
            vocab_size=model.vocab_size, full=True,
            pair_task=next((task for task in ("nsp",
            "sop") if task in model.default_objectives(task)), None),
        )  # fmt: skip
        config = PretrainConfig(
            model=model,
            steps=steps,
            global_batch=shape.rows * shape.accumulation * world,
            precision="bf16" if shape.precision == "bf16" else "fp32",
            heldout_rows=2,
        )
        item = job(
            config, data, Path(directory) / "run", zero=zero, micro_batch=shape.rows, device="cpu",
            compile=False, engine=engine if zero else "auto",
            threads=1, activation_checkpointing=checkpointing,
            checkpoint_every=steps if save_once else 1,
        )  # fmt: skip
        found = took(item, world, save_seconds)
    how = ComputeOptions(
        device="cpu",
        bf16=shape.precision == "bf16",
        checkpointing=checkpointing,
        fsdp=engine == "fsdp",
    )
    plan = StepCost.of(model, shape.length, how, ranks=world, zero=zero).memory(shape.rows)
    return round((plan.training if save_once else plan.total) - plan.process), found


NOTHING = Shape(
    "bert-tiny",
    1,
    16,
    1,
    "fp32",
    {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 16},
)


def warm() -> None:
    """Import what a rank imports, and no more: a process that has run threads cannot be forked."""
    from cloze.model.train import pretraining
    from cloze.model.train.engines import fsdp
    from cloze.model.train.engines.deepspeed_setup import import_deepspeed

    import_deepspeed("cpu")
    del pretraining, fsdp
    gc.freeze()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--zero", default="0,1,2,3", help="stages of two processes")
    parser.add_argument("--engine", default="auto", help="of two processes that shard")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="one process only")
    parser.add_argument("--save-once", action="store_true", help="after the last step alone")
    parser.add_argument(
        "--save-seconds", type=float, default=0.0, help="that each file of a save takes longer"
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="with --activation-checkpointing"
    )
    options = parser.parse_args(arguments)
    if any(os.environ.get(name) != value for name, value in RANK_ENVIRONMENT.items()):
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.memory_plan", *sys.argv[1:]],
            {**os.environ, **RANK_ENVIRONMENT},
        )
    warm()
    worlds = (
        [(1, 0)]
        if options.alone
        else [(1, 0), *((2, int(stage)) for stage in options.zero.split(","))]
    )
    print(
        f"{platform.machine()}, {os.cpu_count()} cores; MB of a rank beside its process", flush=True
    )
    print(f"{'shape':34}{'ranks':>6}{'ZeRO':>6}{'planned':>10}{'took':>8}{'off':>8}", flush=True)
    process = {
        kind: measured(NOTHING, *kind, options.steps, False, engine=options.engine)[1]
        for kind in {(world, zero and worlds[-1][1]) for world, zero in worlds}
    }
    for text in options.shapes.split(","):
        for world, zero in worlds:
            shape, saves = Shape.parse(text), (options.save_once, options.save_seconds)
            planned, found = measured(
                shape, world, zero, options.steps, options.checkpointing, *saves, options.engine
            )
            found -= process[world, zero and worlds[-1][1]]
            off = planned / found - 1
            print(
                f"{text:34}{world:>6}{zero:>6}{planned / 1e6:>10,.0f}{found / 1e6:>8,.0f}"
                f"{off:>+8.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
