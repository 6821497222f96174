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
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from cloze.model.data import layouts
from cloze.model.data.batch import move
from cloze.model.data.layouts import Sequences, layout_for, make_layout
from cloze.model.families import models
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import hub_of
from cloze.model.families.registry import model_config
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.adam import adamw
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.plan.estimates import StepCost, flops_per_token
from cloze.model.train.precision import DTYPES, Precision, autocast, native_bf16
from cloze.model.train.setup import hyperparameters, step_duration

RATE = 0.15625  # of the positions are predicted: 20 of 128
SHORTEST = 8  # tokens of a sequence, where rows are not all full of one
EQUAL = {"fp32": 1e-4, "bf16": 3e-2}  # nats: what the losses of the first steps may differ by

Unpad = Literal["auto", "always", "never"]
RowKind = Literal["full", "ragged", "packed"]
Step = Callable[[Batch], float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a training step."""

    precision: Precision
    theirs: bool = False
    compiled: bool = False
    unpad: Unpad = "auto"
    kept: bool = True  # freed memory, as `cloze` has its ranks keep it

    @property
    def name(self) -> str:
        how = (
            "compiled"
            if self.compiled
            else {"auto": "", "always": "unpadded", "never": "padded"}[self.unpad]
        )
        kept = "with our memory settings" if self.theirs and self.kept else ""
        return " ".join(
            part
            for part in ("theirs" if self.theirs else "ours", self.precision, how, kept)
            if part
        )


def make_batches(
    config: ModelConfig, count: int, rows: int, length: int, kind: RowKind, device: str
) -> list[Batch]:
    """Random ids. Ragged rows have the lengths of encyclopedia paragraphs cut at `length`:
    log-normal, half of it in the mean. Packed ones are full of sequences of such lengths, of which
    the row cuts the last.
    """
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        lengths, first = torch.full((rows,), length), torch.zeros(rows, length, dtype=torch.bool)
        first[:, 0] = True
        if kind != "full":
            drawn = (
                torch.exp(torch.randn(rows, length // SHORTEST, generator=generator) * 0.7)
                * 0.42
                * length
            )
            drawn = drawn.long().clamp(SHORTEST, length)
        if kind == "ragged":
            lengths = drawn[:, 0]
        if kind == "packed":
            begins = drawn.cumsum(1)
            row = torch.arange(rows)[:, None].expand_as(begins)
            first[row[begins < length], begins[begins < length]] = True
        real = torch.arange(length) < lengths[:, None]
        ids = torch.randint(5, config.vocab_size, (rows, length), generator=generator).where(
            real, config.pad_token_id
        )
        order = torch.rand(rows, length, generator=generator).masked_fill(~real, 2.0).argsort(1)
        is_target = torch.arange(length) < (lengths[:, None] * RATE).round().clamp(min=1)
        masked = torch.zeros_like(real).scatter_(1, order, is_target)
        positions = masked.flatten().nonzero().squeeze(1)
        labels = torch.randint(5, config.vocab_size, positions.shape, generator=generator)
        filler = -len(positions) % 64
        second = (
            (torch.arange(length) >= lengths[:, None] // 2)
            & real
            & torch.tensor(config.type_vocab_size > 1)
        )
        batch = {
            "input_ids": ids,
            "attention_mask": real,
            "token_type_ids": second.long(),
            "masked_positions": nn.functional.pad(positions, (0, filler)),
            "masked_labels": nn.functional.pad(labels, (0, filler), value=IGNORE_INDEX),
            "pair_labels": torch.randint(0, 2, (rows,), generator=generator),
            **({"sequence_first": first} if kind == "packed" else {}),
        }
        batches.append(move(batch, torch.device(device)))
    return batches


def with_layouts(
    batches: list[Batch], variant: Variant, config: ModelConfig, device: str
) -> list[Batch]:
    """The batches as the variant lays them out; the collator does it in a thread of its own."""
    found = []
    with torch.device("meta"):
        network = models.new_model(config)
    kind = layout_for(
        [network], torch.device(device), DTYPES[variant.precision], compiled=variant.compiled
    )
    if variant.theirs or variant.unpad == "never":
        kind = "rows"
    for batch in batches:
        sequences = sequences_of(batch)
        forced = kind == "buckets" and variant.unpad == "always"
        lies = layouts.buckets(sequences) if forced else make_layout(kind, sequences)
        found.append(batch if lies is None else {**batch, "layout": lies.to(torch.device(device))})
    return found


def sequences_of(batch: Batch) -> Sequences:
    """Those of its rows."""
    real = batch["attention_mask"].cpu().numpy()
    if "sequence_first" not in batch:
        return Sequences.alone(real.sum(axis=1), real.shape[1])
    first = np.flatnonzero(batch["sequence_first"].cpu().numpy())  # packed rows are full
    return Sequences(
        shape=real.shape, first=first, lengths=np.diff(first, append=real.size), packed=True
    )


def make_step(variant: Variant, config: PretrainConfig, device: str) -> Step:
    """The variant's training step, with the weights that seed 0 gives."""
    torch.manual_seed(0)
    model = models.new_model(config.model)
    if variant.theirs:
        module, loss_of = theirs(variant.precision, config.model, model, device)
    else:
        module, loss_of = _ours(variant, config.model, model, device)
    module.to(device).train()
    settled = hyperparameters(config, variant.precision, step_duration(config))
    optimizer = adamw(parameter_groups(module, settled), settled)

    def step(batch: Batch) -> float:
        loss = loss_of(batch)
        loss.backward()
        if variant.theirs:
            torch.nn.utils.clip_grad_norm_(module.parameters(), config.grad_clip)
        else:
            parameters = list(module.parameters())
            norm = get_total_norm([value.grad for value in parameters if value.grad is not None])
            if float(norm) > config.grad_clip > 0:  # as the engine, which passes over them no more
                clip_grads_with_norm_(parameters, config.grad_clip, norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _ours(
    variant: Variant, config: ModelConfig, model: Any, device: str
) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    names = ("mlm", "nsp") if "pair" in config.heads else ("mlm",)
    scoring = PretrainModule(model, names, variant.precision, variant.compiled, device)

    def loss_of(batch: Batch) -> Tensor:
        counts = torch.tensor(
            [max(1, count) for count in scoring.count_targets(batch)],
            dtype=torch.float32,
            device=device,
        )
        return cast(Tensor, scoring(batch, counts)[0])

    return scoring, loss_of


def theirs(
    precision: Precision, config: ModelConfig, model: Any, device: str
) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """The class that `cloze export` names, with the weights of `model`, trained as transformers'
    documentation says.
    """
    import transformers

    hub = hub_of(config.family)
    values = hub.to_config(config, config.heads, None)
    architecture = hub.architecture(config.heads)  # of all heads; an export leaves the pair's out
    module = getattr(transformers, architecture)(transformers.AutoConfig.for_model(**values))
    module.load_state_dict(hub.to_state(model.state_dict()), strict=False)
    module.tie_weights()
    pair = {"next_sentence_label": "pair_labels"} if "pair" in config.heads else {}
    segments = ("token_type_ids",) if config.type_vocab_size > 1 else ()

    def loss_of(batch: Batch) -> Tensor:
        # no question to the device: what is filler goes to a place behind the last one
        labels = torch.full(
            (batch["input_ids"].numel() + 1,), IGNORE_INDEX, device=batch["input_ids"].device
        )
        filler = batch["masked_labels"] == IGNORE_INDEX
        labels[batch["masked_positions"].masked_fill(filler, len(labels) - 1)] = batch[
            "masked_labels"
        ]
        inputs = {name: batch[name] for name in ("input_ids", *segments)} | {
            name: batch[ours] for name, ours in pair.items()
        }
        with autocast(precision, device):
            loss: Tensor = module(
                **inputs,
                attention_mask=batch["attention_mask"].long(),
                labels=labels[:-1].view_as(batch["input_ids"]),
            ).loss
        return loss

    return module, loss_of


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
