"""The training step of our model beside transformers' own class, and without padding beside with
it.

    python -m benchmarks.model --model bert-mini [--batch 32] [--length 128] [--threads 2]
    python -m benchmarks.model --model bert-mini --ragged  # unpadded against padded
    python -m benchmarks.model --model bert-mini --packed  # compiled against plain
    python -m benchmarks.model --model longformer-tiny --memory-by-length 1024 2048 4096

Same shapes, same initial weights, same batches, torch.optim.AdamW, a step of which is forward,
backward, clipping, update. First three steps without dropout, whose losses must be equal; then the
timing, with dropout, in alternation (these machines drift by a third from minute to minute): in
each round every variant once, in a process of its own (`--together`: all in one); medians over the
rounds. Peak memory is what the steps take above what the process took before.

    theirs fp32     transformers' BertForPreTraining as it comes: a head at every position
    theirs bf16     the same under autocast
    … with our memory settings
                    the same in the environment that `cloze` gives its ranks
                    (flows/launch/local.py)
    ours fp32, bf16 our model and objectives in that environment: the head, and most of the last
                    layer, where the heads read
    ours compiled   ours at its best: bf16 and torch.compile, where the hardware multiplies bf16

Also the operations per second by which `cloze plan` estimates
(`cloze.model.train.plan.estimates.StepCost.operations`), or on a GPU (`--device cuda`) the
share of the card's peak (`--peak-tflops`) without the overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any, cast

import torch

from benchmarks.model_steps import (
    RowKind,
    Step,
    Unpad,
    Variant,
    make_batches,
    make_step,
    with_layouts,
)
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.layers.batch import Batch
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan.estimates import StepCost, flops_per_token
from cloze.model.train.precision import Precision, native_bf16

EQUAL = {"fp32": 1e-4, "bf16": 3e-2}  # nats: what the losses of the first steps may differ by


def first_losses(
    variant: Variant, config: PretrainConfig, batches: list[Batch], device: str
) -> list[float]:
    """Of three steps without dropout."""
    plain = config.model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    step = make_step(
        replace(variant, compiled=False), config.model_copy(update={"model": plain}), device
    )
    return [step(batch) for batch in batches[:3]]


def row_kind(options: argparse.Namespace) -> RowKind:
    """What was asked for."""
    return "ragged" if options.ragged else "packed" if options.packed else "full"


def run(options: argparse.Namespace, config: PretrainConfig) -> list[dict[str, Any]]:
    """The variants that the process which `measure` starts was given, in alternation: their real
    tokens a second in each round, and the memory that their steps take, which is that of all before
    it, too.
    """
    assert config.model is not None
    made = make_batches(
        config.model, 8, options.batch, options.length, row_kind(options), options.device
    )
    found: list[dict[str, Any]] = []
    steps: list[tuple[Step, list[Batch]]] = []
    for values in json.loads(options.some):
        variant = Variant(**values)
        batches = with_layouts(made, variant, config.model, options.device)
        if options.losses:
            found.append({"losses": first_losses(variant, config, batches, options.device)})
            continue
        step = make_step(variant, config, options.device)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for batch in (
            batches if row_kind(options) == "ragged" else batches[:3]
        ):  # compile, allocate, meet every shape
            step(batch)
        steps.append((step, batches))
        found.append({"before": before, "speeds": []})
    for _ in range(0 if options.losses else options.rounds):
        for (step, batches), figures in zip(steps, found, strict=True):
            figures["speeds"].append(speed(step, batches, options))
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - figures["before"]) / 2**20
            figures["gib"] = (
                torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else peak
            )
    return found


def speed(step: Step, batches: list[Batch], options: argparse.Namespace) -> float:
    """Real tokens a second."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    started, tokens, number = clock(), 0, 0
    while clock() - started < options.seconds:
        batch = batches[number % len(batches)]
        step(batch)
        tokens += int(batch["attention_mask"].sum())
        number += 1
    return tokens / (clock() - started)


def measure(
    options: argparse.Namespace, chosen: list[Variant], **changes: Any
) -> list[dict[str, Any]]:
    """What `run` finds in one process: ours with the environment that `cloze` gives its ranks,
    theirs as it comes.
    """
    given = {
        **vars(options),
        **changes,
        "some": json.dumps([asdict(variant) for variant in chosen]),
    }
    command = [sys.executable, "-m", "benchmarks.model"]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            command.append(option)
        elif not isinstance(value, bool | list | None):
            command += [option, str(value)]
    from cloze.flows.launch.local import (
        RANK_ENVIRONMENT,
    )  # benchmarks.gpu imports this file where there are no flows

    environment = {**(RANK_ENVIRONMENT if chosen[0].kept else {}), **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{', '.join(variant.name for variant in chosen)} failed:\n{done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def variants(options: argparse.Namespace) -> list[Variant]:
    """What is compared: everything, or, of ragged rows, padding alone."""
    bf16 = native_bf16(torch.device(options.device))
    precisions: list[Precision] = ["fp32", "bf16"] if bf16 else ["fp32"]
    if options.only:
        precisions = [precision for precision in precisions if precision == options.only]
    best = [] if options.no_compile else [Variant(precision=precisions[-1], compiled=True)]
    if options.packed:
        return [Variant(precision=p, compiled=c) for p in precisions for c in (False, True)]
    if options.ragged:
        return [
            Variant(precision=p, unpad=u)
            for p in precisions
            for u in cast(list[Unpad], ["never", "always"])
        ] + best
    found = []
    for precision in precisions:
        found += [
            Variant(precision=precision, theirs=True, kept=False),
            Variant(precision=precision, theirs=True),
        ]
        found += [Variant(precision=precision)]
    return found + best


def check_losses(options: argparse.Namespace, chosen: list[Variant]) -> None:
    """Ends the program unless the first steps of all of them lose the same."""
    processes = [chosen] if options.together else [[variant] for variant in chosen]
    found = [figures for some in processes for figures in measure(options, some, losses=True)]
    losses = {
        variant.name: figures["losses"] for variant, figures in zip(chosen, found, strict=True)
    }
    first = losses[chosen[0].name]
    for variant in chosen:
        differences = [abs(a - b) for a, b in zip(first, losses[variant.name], strict=True)]
        if max(differences) > EQUAL[variant.precision]:
            sys.exit(
                f"{variant.name} has the losses {losses[variant.name]}, {chosen[0].name} has "
                f"{first}"
            )


def compare(options: argparse.Namespace, config: ModelConfig) -> None:
    """Print a line a variant: medians over the rounds, each of which runs every variant once."""
    chosen = variants(options)
    check_losses(options, chosen)
    found: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in chosen}
    if options.together:
        for variant, figures in zip(chosen, measure(options, chosen), strict=True):
            found[variant.name].append(figures)
    else:
        for _ in range(options.rounds):
            for variant in chosen:
                found[variant.name] += measure(options, [variant], rounds=1)
    speeds = {
        name: statistics.median(one for run in runs for one in run["speeds"])
        for name, runs in found.items()
    }
    for variant in chosen:
        speed, base = speeds[variant.name], speeds[chosen[0].name]
        same = next(speeds[other.name] for other in chosen if other.precision == variant.precision)
        line = (
            f"{variant.name:34}{speed:10,.0f} tokens/s  {speed / base:6.2f} x  {speed / same:6.2f} "
            f"x in its precision"
        )
        if options.device == "cuda":
            share = speed * flops_per_token(config, options.length) / (options.peak_tflops * 1e12)
            line += f"  {share:.1%} of the peak"
        else:
            work = StepCost.of(config, options.length, device=options.device).operations
            line += f"  {speed * work / 1e9:.0f} GFLOP/s"
        memory = max(run["gib"] for run in found[variant.name])
        print(line if options.together else f"{line}  {memory:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--changes", default="{}", help="of the model's config, as JSON")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--ragged", action="store_true")
    kinds.add_argument("--packed", action="store_true")
    parser.add_argument("--only", choices=["fp32", "bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument(
        "--memory-by-length", type=int, nargs="+", help="only peak memory, at these lengths"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--peak-tflops",
        type=float,
        default=989.0,
        help="of the GPU in bf16, without sparsity (H100 SXM)",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the process's time: for one thread on a machine in use",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="all variants in one process: compiled once, no figure of memory",
    )
    parser.add_argument("--some", help=argparse.SUPPRESS)
    parser.add_argument("--losses", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_config(
        {"preset": options.model, **json.loads(options.changes)}, vocab_size=options.vocab_size
    )
    if options.some:
        print(json.dumps(run(options, PretrainConfig(model=model, global_batch=options.batch))))
        return
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {options.threads} threads, torch {torch.__version__}, {options.device}")
    if options.memory_by_length:
        for length in options.memory_by_length:
            variant = Variant(precision=options.only or "fp32", unpad="never")
            used = measure(options, [variant], length=length, seconds=0.0, rounds=1)[0]["gib"]
            print(f"{options.model}, {options.batch} x {length}: {used:.2f} GiB for a step")
        return
    batches = make_batches(model, 8, options.batch, options.length, row_kind(options), "cpu")
    real = sum(int(batch["attention_mask"].sum()) for batch in batches) / (
        8 * options.batch * options.length
    )
    shape = f"V {options.vocab_size}, {options.batch} x {options.length}"
    print(f"{options.model}, {shape}, {real:.0%} of the positions are tokens")
    compare(options, model)


if __name__ == "__main__":
    main()


def reset_peak_memory() -> bool:
    """Reset the peak memory (man 5 proc, clear_refs); return False if that is impossible."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
            stream.write("5")
    except OSError:
        return False
    return True
