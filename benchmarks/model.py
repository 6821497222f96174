"""The training step of our model beside transformers' own class, and without padding beside with it.

    python -m benchmarks.model --model bert-mini [--batch 32] [--length 128] [--threads 2] [--rounds 5] [--no-compile]
    python -m benchmarks.model --model bert-mini --ragged          # rows of several lengths: unpadded against padded
    python -m benchmarks.model --model longformer-tiny --memory-by-length 1024 2048 4096

Same shapes, same initial weights, same batches, torch.optim.AdamW, a step of which is forward, backward, clipping, update. First
three steps without dropout, whose losses must be equal; then the timing, with dropout, in alternation (these machines drift by
a third from minute to minute), medians over the rounds. Peak memory is that of a process of its own a variant.

    theirs fp32      transformers' BertForPreTraining as it comes: a head at every position
    theirs bf16      the same under autocast
    ours fp32, bf16  our model and objectives: the head at masked positions, as batches are collated
    ours compiled    ours at its best: bf16 and torch.compile, where the hardware multiplies bf16

On a GPU (`--device cuda`) also the share of the card's peak that the model's arithmetic reaches (`--peak-tflops`), by the count
of floating point operations a token: 72 layers h^2 + 12 layers h L + 6 rate (h^2 + h V) for forward and backward.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from model import families
from model.config import ModelConfig
from model.hub import hub_of
from model.layers.encoder import Unpad
from model.objectives import IGNORE
from model.presets import model_config
from model.train.config import PretrainConfig
from model.train.optimizers import adamw, parameter_groups
from model.train.precision import Precision, autocast, native_bf16
from model.train.scoring import Scoring

RATE = 0.15625  # of the positions are predicted: 20 of 128
EQUAL = {"fp32": 1e-4, "bf16": 3e-2}  # nats: what the losses of the first steps may differ by

Batch = dict[str, Tensor]
Step = Callable[[Batch], float]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run a training step."""

    theirs: bool
    precision: Precision
    compiled: bool = False
    unpad: Unpad = "auto"

    @property
    def name(self) -> str:
        how = "compiled" if self.compiled else {"auto": "", "always": "unpadded", "never": "padded"}[self.unpad]
        return " ".join(["theirs" if self.theirs else "ours", self.precision, how]).strip()


def make_batches(config: ModelConfig, count: int, rows: int, length: int, ragged: bool, device: str) -> list[Batch]:
    """Random ids. Ragged rows have the lengths of encyclopedia paragraphs cut at `length`: log-normal, half of it in the mean."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        lengths = torch.full((rows,), length)
        if ragged:
            drawn = torch.exp(torch.randn(rows, generator=generator) * 0.7) * 0.42 * length
            lengths = drawn.long().clamp(8, length)
        real = torch.arange(length) < lengths[:, None]
        ids = torch.randint(5, config.vocab_size, (rows, length), generator=generator).where(real, config.pad_token_id)
        order = torch.rand(rows, length, generator=generator).masked_fill(~real, 2.0).argsort(1)
        wanted = torch.arange(length) < (lengths[:, None] * RATE).round().clamp(min=1)
        masked = torch.zeros_like(real).scatter_(1, order, wanted)
        positions = masked.flatten().nonzero().squeeze(1)
        labels = torch.randint(5, config.vocab_size, positions.shape, generator=generator)
        filler = -len(positions) % 64
        second = (torch.arange(length) >= lengths[:, None] // 2) & real & torch.tensor(config.type_vocab_size > 1)
        batch = {
            "input_ids": ids,
            "attention_mask": real,
            "token_type_ids": second.long(),
            "masked_positions": nn.functional.pad(positions, (0, filler)),
            "masked_labels": nn.functional.pad(labels, (0, filler), value=IGNORE),
            "pair_labels": torch.randint(0, 2, (rows,), generator=generator),
        }
        batches.append({name: tensor.to(device) for name, tensor in batch.items()})
    return batches


def make_step(variant: Variant, config: PretrainConfig, device: str) -> Step:
    """The variant's training step, with the weights that seed 0 gives."""
    torch.manual_seed(0)
    model = families.build(config.model)
    build = _theirs if variant.theirs else _ours
    module, loss_of = build(variant, config.model, model, device)
    module.to(device).train()
    optimizer = adamw(parameter_groups(module, config.weight_decay), config)

    def step(batch: Batch) -> float:
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _ours(variant: Variant, config: ModelConfig, model: Any, device: str) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    model.encoder.unpad = variant.unpad
    names = ("mlm", "nsp") if "pair" in config.heads else ("mlm",)
    scoring = Scoring(model, names, variant.precision, variant.compiled, device)

    def loss_of(batch: Batch) -> Tensor:
        counts = torch.tensor([max(1, count) for count in scoring.targets(batch)], dtype=torch.float32, device=device)
        return cast(Tensor, scoring(batch, counts)[0])

    return scoring, loss_of


def _theirs(variant: Variant, config: ModelConfig, model: Any, device: str) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """The class that `cloze export` names, trained as transformers' documentation says."""
    import transformers

    hub = hub_of(config.family)
    values = hub.to_config(config, config.heads, None)
    theirs = getattr(transformers, values["architectures"][0])(transformers.AutoConfig.for_model(**values))
    theirs.load_state_dict(hub.to_state(model.state_dict()), strict=False)
    theirs.tie_weights()
    pair = {"next_sentence_label": "pair_labels"} if "pair" in config.heads else {}
    segments = ("token_type_ids",) if config.type_vocab_size > 1 else ()

    def loss_of(batch: Batch) -> Tensor:
        labels = torch.full_like(batch["input_ids"], IGNORE).flatten()
        real = batch["masked_labels"] != IGNORE
        labels[batch["masked_positions"][real]] = batch["masked_labels"][real]
        inputs = {name: batch[name] for name in ("input_ids", *segments)} | {name: batch[ours] for name, ours in pair.items()}
        with autocast(variant.precision, device):
            loss: Tensor = theirs(
                **inputs, attention_mask=batch["attention_mask"].long(), labels=labels.view_as(batch["input_ids"])
            ).loss
        return loss

    return theirs, loss_of


def first_losses(variant: Variant, config: PretrainConfig, batches: list[Batch], device: str) -> list[float]:
    """Of three steps without dropout."""
    plain = config.model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    step = make_step(replace(variant, compiled=False), config.model_copy(update={"model": plain}), device)
    return [step(batch) for batch in batches[:3]]


def measure(
    steps: dict[str, Step], batches: list[Batch], rounds: int, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Median real tokens a second of each, in alternation."""
    for step in steps.values():  # compile, allocate, and meet every shape once
        for batch in batches:
            step(batch)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started, tokens, number = clock(), 0, 0
            while clock() - started < seconds or number < 2:
                batch = batches[number % len(batches)]
                step(batch)
                tokens += int(batch["attention_mask"].sum())
                number += 1
            speeds[name].append(tokens / (clock() - started))
    return {name: statistics.median(values) for name, values in speeds.items()}


def flops_per_token(config: ModelConfig, length: int) -> float:
    """Forward and backward, of BERT's shape (the formula of the module's docstring)."""
    layers, h = config.num_hidden_layers, config.hidden_size
    return 72 * layers * h * h + 12 * layers * h * length + 6 * RATE * (h * h + h * config.vocab_size)


def peak_memory(options: argparse.Namespace, variant: Variant, length: int) -> float:
    """GiB that a process of its own takes for three steps, above what it takes before the first."""
    command = [sys.executable, "-m", "benchmarks.model", "--model", options.model, "--vocab-size", str(options.vocab_size)]
    command += ["--batch", str(options.batch), "--length", str(length), "--device", options.device]
    command += ["--threads", str(options.threads), "--one", "theirs" if variant.theirs else "ours", variant.precision]
    command += [variant.unpad, str(int(variant.compiled))] + (["--ragged"] if options.ragged else [])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def run_one(options: argparse.Namespace, config: PretrainConfig) -> float:
    """In the process that `peak_memory` starts."""
    who, precision, unpad, compiled = options.one
    variant = Variant(
        theirs=who == "theirs", precision=cast(Precision, precision), compiled=compiled == "1", unpad=cast(Unpad, unpad)
    )
    step = make_step(variant, config, options.device)
    batches = make_batches(config.model, 3, options.batch, options.length, options.ragged, options.device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for batch in batches:
        step(batch)
    if options.device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def variants(options: argparse.Namespace) -> list[Variant]:
    """What is compared: everything, or, of ragged rows, padding alone."""
    bf16 = native_bf16(torch.device(options.device))
    precisions: list[Precision] = ["fp32", "bf16"] if bf16 else ["fp32"]
    if options.only:
        precisions = [precision for precision in precisions if precision == options.only]
    best: list[Variant] = []
    if not options.no_compile:
        best = [Variant(theirs=False, precision=precisions[-1], compiled=True)]
    if options.ragged:
        ours = [Variant(theirs=False, precision=p, unpad=u) for p in precisions for u in cast(list[Unpad], ["never", "always"])]
        return ours + best
    return [Variant(theirs=theirs, precision=p) for p in precisions for theirs in (True, False)] + best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--only", choices=["fp32", "bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory-by-length", type=int, nargs="+", help="only peak memory, at these lengths")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of the GPU in bf16, without sparsity (H100 SXM)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--cpu-time", action="store_true", help="count the process's time: for one thread on a machine in use")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_config(options.model, vocab_size=options.vocab_size)
    config = PretrainConfig(model=model, global_batch=options.batch)
    if options.one:
        print(run_one(options, config))
        return
    print(
        f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}, {options.device}"
    )
    if options.memory_by_length:
        for length in options.memory_by_length:
            used = peak_memory(options, Variant(theirs=False, precision=options.only or "fp32", unpad="never"), length)
            print(f"{options.model}, {options.batch} x {length}: {used:.2f} GiB for a step")
        return
    batches = make_batches(model, 8, options.batch, options.length, options.ragged, options.device)
    real = sum(int(batch["attention_mask"].sum()) for batch in batches) / (8 * options.batch * options.length)
    print(
        f"{options.model}, V {options.vocab_size}, {options.batch} x {options.length}, {real:.0%} of the positions are tokens"
    )
    chosen = variants(options)
    losses = {variant.name: first_losses(variant, config, batches, options.device) for variant in chosen}
    first = losses[chosen[0].name]
    for variant in chosen:
        differences = [abs(a - b) for a, b in zip(first, losses[variant.name], strict=True)]
        if max(differences) > EQUAL[variant.precision]:
            sys.exit(f"{variant.name} has the losses {losses[variant.name]}, {chosen[0].name} has {first}")
    steps = {variant.name: make_step(variant, config, options.device) for variant in chosen}
    clock = time.process_time if options.cpu_time else time.perf_counter
    speeds = measure(steps, batches, options.rounds, options.seconds, clock)
    for variant in chosen:
        line = (
            f"{variant.name:20}{speeds[variant.name]:10,.0f} tokens/s  {speeds[variant.name] / speeds[chosen[0].name]:6.2f} x"
        )
        same = next((other.name for other in chosen if other.precision == variant.precision), variant.name)
        line += f"  {speeds[variant.name] / speeds[same]:6.2f} x in its precision"
        if options.device == "cuda":
            share = speeds[variant.name] * flops_per_token(model, options.length) / (options.peak_tflops * 1e12)
            line += f"  {share:.1%} of the peak"
        if not options.no_memory:
            line += f"  {peak_memory(options, variant, options.length):.2f} GiB"
        print(line)


if __name__ == "__main__":
    main()
