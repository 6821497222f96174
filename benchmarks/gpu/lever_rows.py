"""A row of `benchmarks.gpu.levers`: today's step and one with levers, in alternation.

The child keeps today's step of a case for the rows that follow, so that it is built and compiled
once. Both are engines of the product with a world of one rank.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu import stand_ins
from benchmarks.gpu.flex import flexed
from benchmarks.gpu.place import Place
from benchmarks.gpu.speed import Case, _config, _material, _wait
from benchmarks.gpu.tiny_trainings import Skipped
from cloze.core.stages.execution import GPU_LEVERS
from cloze.model.data.batch import TokenCounts, collate, empty_batch, move, sizes
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.shards import ShardedRows
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.model.layers.attention_kernels import runs_varlen
from cloze.model.layers.batch import Batch
from cloze.model.objectives import choose
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.optimizers.parameters import freeze_unused
from cloze.model.train.plan.estimates import flops_per_token
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.levers import LeverContext, usable_levers
from cloze.model.train.throughput import mfu_meter

# 32,768 positions a step for large, as in the step of 82 ms that is to become one of 56.
CASES = (
    Case(model="bert-large", length=512, rows=64),
    Case(model="bert-base", length=512, rows=128),
    Case(model="bert-large", length=128, rows=256),
    Case(model="bert-base", length=128, rows=512),
)
TINY = (Case(model="bert-tiny", length=32, rows=8), Case(model="bert-tiny", length=16, rows=8))
# The cheapest to compile first. `flex` and `dropout` are no levers of the product.
WAYS: dict[str, tuple[str, ...]] = {
    "clip": ("clip",),
    "table": ("table",),
    "attention": ("attention",),
    "graphs": ("graphs",),
    "weights": ("weights",),
    "dropout": (),
    "flex": (),
    "shapes": ("shapes",),
    "all but whole-step": ("attention", "clip", "graphs", "shapes", "table", "weights"),
    "whole-step": ("whole-step",),
    "all but shapes": ("attention", "clip", "graphs", "table", "weights", "whole-step"),
}
BATCHES, CHECKED, ROUNDS = 3, 4, 5
CLOSE = 5e-3  # of the loss, relative, in bf16


def lever_names(tiny: bool) -> list[str]:
    """In the order of their worth: what there is no time for is missing from the end."""
    return [f"levers: {case.name}: {way}" for case in (TINY if tiny else CASES) for way in WAYS]


@dataclass(slots=True)
class Built:
    """A step, ready to run.

    Attributes:
        losses: of the first steps.
        enter, leave: what is global to the process while it runs.
    """

    step: Callable[[int], Tensor]
    counts: TokenCounts
    sizes: int
    note: str = ""
    losses: list[float] = field(default_factory=list)
    enter: Callable[[], object] = lambda: None
    leave: Callable[[], object] = lambda: None


_today: dict[str, Built] = {}


def compare(name: str, place: Place) -> Mapping[str, Any]:
    """The figures of a row.

    Raises:
        Skipped: it is not for this machine.
        AssertionError: losses differ.
    """
    label, way = name.split(": ")
    case = next(case for case in (*CASES, *TINY) if case.name == label)
    device = torch.device(place.device)
    if place.device == "cpu":
        stand_ins.install()
        if way == "flex":
            raise Skipped("torch has no gradient of FlexAttention on a CPU")
    if label not in _today:
        _today.clear()
        gc.collect()
        _today[label] = build(case, "", place)
    today, built = _today[label], build(case, way, place)
    apart = max(abs(a - b) / abs(b) for a, b in zip(built.losses, today.losses, strict=True))
    if way != "dropout" and not apart <= CLOSE:
        raise AssertionError(f"losses differ by {apart:.2g}: {built.losses} {today.losses}")
    times: tuple[list[float], list[float]] = [], []
    steps = _steps(today, place.seconds / (2 * ROUNDS), device)
    for _ in range(ROUNDS):
        for which, seconds in zip((today, built), times, strict=True):
            seconds.append(_window(which, steps, device))
    ratios = sorted(a / b for a, b in zip(*times, strict=True))
    milliseconds = [1e3 * float(np.median(seconds)) for seconds in times]
    model, _ = _material(case, place)
    meter = mfu_meter(partial(flops_per_token, model), "bf16", device, 1, [])
    whole = today.counts

    def utilisation(step_ms: float) -> float | None:
        speed = whole.tokens / BATCHES / (step_ms / 1e3)
        return None if meter is None else meter.mfu(speed, whole.attended / whole.tokens)

    return {
        "today_ms": milliseconds[0],
        "ms": milliseconds[1],
        "ratio": float(np.median(ratios)),
        "range": [ratios[0], ratios[-1]],
        "today_mfu": utilisation(milliseconds[0]),
        "mfu": utilisation(milliseconds[1]),
        "loss": apart,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None,
        "sizes": built.sizes,
        "note": built.note,
    }


def build(case: Case, way: str, place: Place) -> Built:
    """Today's step, or one with the levers of a way; its first steps are run."""
    device, notes = torch.device(place.device), list[str]()
    model, dataset = _material(case, place)
    if device.type == "cuda" and not runs_varlen(device, torch.bfloat16, model.head_size):
        raise Skipped("the kernel of variable lengths does not run here")
    still = {} if way == "dropout" else {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    scoring = _scoring(model.model_copy(update=still), dataset)
    context = LeverContext(
        device=device, engine="torch", processes=1, precision="bf16", optimizer="adamw",
        layout="packed",
    )  # fmt: skip
    if device.type == "cuda":
        levers = usable_levers(WAYS.get(way, ()), context, notes)
    else:
        levers = tuple(GPU_LEVERS[name] for name in WAYS.get(way, ()))
    notes += [note for lever in levers if (note := lever.prepare(scoring.model, context, True))]
    if way == "attention" and not stand_ins.active_kernel():
        raise Skipped(notes[-1])
    enter, leave = stand_ins.switch_kernel()
    scoring.set_compiled(
        True,
        whole=any(lever.whole_step for lever in levers),
        dynamic=not any(lever.static for lever in levers),
    )
    fixed = any(lever.fixed_sizes for lever in levers)
    batches, own = batches_of(case, dataset, "fixed" if fixed else "packed")
    if way == "flex":
        batches = [flexed(batch) for batch in batches]
    config = _config(case, model, 1)
    engine = create_engine(
        EngineConfig("torch", 0, levers=levers), scoring.to(device).train(),
        hyperparameters(config, "bf16", step_duration(config)), World(0, 1, device),
        micro_batch=case.rows, accumulation=1,
    )  # fmt: skip
    there = [move(batch, device) for batch in batches]
    targets = [
        torch.tensor([float(max(1, count)) for count in scoring.count_targets(batch)])
        for batch in batches
    ]
    counts = [each.to(device) for each in targets]

    def step(number: int) -> Tensor:
        torch.manual_seed(number)
        which = number % BATCHES
        figures = engine.backward(there[which], counts[which], last=True)
        engine.step(1e-4)
        return figures[0].sum() / counts[which].sum()

    found = Built(
        step,
        own,
        len({len(batch["layout"].flat_positions) for batch in batches}),
        "; ".join(notes),
        enter=enter,
        leave=leave,
    )
    found.enter()
    # Each batch twice and once more: compiled, captured, replayed.
    found.losses = [float(found.step(number)) for number in range(max(CHECKED, 2 * BATCHES + 1))]
    found.leave()
    return found


def _scoring(model: ModelConfig, dataset: str) -> PretrainModule:
    info = ShardedRows(dataset).info
    assert info is not None
    torch.manual_seed(0)
    # "cuda" on a CPU, too: the stand-ins compile layer by layer.
    scoring = PretrainModule(
        new_model(model), choose(model, info), "bf16", device_type="cuda",
        weights=model.loss_weights(),
    )  # fmt: skip
    freeze_unused(scoring, {**empty_batch(pad=info.special.pad), "mask_id": torch.tensor(-1)})
    return scoring


def batches_of(case: Case, dataset: str, kind: LayoutKind) -> tuple[list[Batch], TokenCounts]:
    """The batches of a case, and the tokens in all of them."""
    shards, batches = ShardedRows(dataset), []
    assert shards.info is not None
    for number in range(BATCHES):
        numbers = np.arange(number * case.rows, (number + 1) * case.rows) % len(shards)
        taken = shards.take(numbers, np.zeros_like(numbers))
        batches.append(
            collate(
                taken,
                pad=shards.info.special.pad,
                longest=shards.info.length,
                layout=kind,
                fixed_predictions=shards.most_predictions() if kind == "fixed" else None,
            )
        )
    return batches, sizes(*batches)


def _steps(built: Built, seconds: float, device: torch.device) -> int:
    """Steps of a window: whole rounds of the batches, for about so long."""
    took = _window(built, BATCHES, device)
    return BATCHES * max(1, round(seconds / max(took * BATCHES, 1e-6)))


def _window(built: Built, steps: int, device: torch.device) -> float:
    """Seconds of a step, in the mean of a window."""
    built.enter()
    _wait(device)
    began = time.perf_counter()
    for number in range(steps):
        built.step(number)
    _wait(device)
    took = (time.perf_counter() - began) / steps
    built.leave()
    return took
