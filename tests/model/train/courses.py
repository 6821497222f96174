"""How trainings go, to the number, as text: rates, batches, ends, evaluations, engines, limits.

    python -m tests.model.train.courses     writes courses.txt beside it

As `plan/figures.py`: what a constant or a condition decides is recorded over a grid of cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.model.data.sampler import micro_batch_ranges
from cloze.model.families.registry import model_config
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import WorkEstimate
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World, assign_owners
from cloze.model.train.evaluate.heldout import EvaluationSchedule, HeldoutEvaluator
from cloze.model.train.loop.data import attention_modes, objective_weights
from cloze.model.train.monitor.watchdog import ShutdownTimeEstimator
from cloze.model.train.optimizers import parameters
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import StepCost
from cloze.model.train.setup import hyperparameters, step_duration, training_duration
from cloze.model.train.spec.engine_choice import choose_engine
from cloze.model.train.spec.interfaces import StartPosition
from cloze.model.train.spec.schedules import (
    SCHEDULES,
    BatchSizeSchedule,
    Schedule,
    ScheduleProgress,
    StepDuration,
    TimeBudget,
    TokenDuration,
)
from tests.model.train.plan.figures import plain

FILE = Path(__file__).with_suffix(".txt")
CPU = torch.device("cpu")
LATER = StartPosition(step=40, sample=300, updates=39, tokens=5000, skipped=1)


def _rates() -> Iterator[tuple[str, Any]]:
    steps = (0, 4, 9, 10, 30, 79, 80, 85, 99)
    for name, warmup, final in product(SCHEDULES, (1.0, 10.0), (0.0, 0.1)):
        schedule = Schedule(name=name, warmup=warmup, decay=0.2, final=final)
        yield f"{name} {warmup} {final}", [schedule.factor(step, 100) for step in steps]
    unwarmed = [Schedule(name=name).factor(40, 100, 2) for name in ("linear", "wsd")]
    yield "without a warm-up", [*unwarmed, Schedule(name="linear", warmup=200).factor(50, 100, 3)]
    for last, first, growing in ((256, 32, 10), (6, 2, 5), (8, 0, 0), (8, 8, 3), (9, 3, 1)):
        batches = BatchSizeSchedule(last, first, growing)
        sizes = [batches.size(step) for step in range(12)]
        yield f"batch {last} {first} {growing}", [*sizes, batches.samples_before(12)]


def _ends() -> Iterator[tuple[str, Any]]:
    for duration in (
        StepDuration(steps=30, span=20, first=10),
        TokenDuration(first=100, tokens=50),
    ):
        places = [(10, 100, 7), (29, 149, 1), (12, 110, 0)]
        yield (
            type(duration).__name__,
            [
                [duration.progress_at(*place) for place in places],
                [duration.last(*place[:2]) for place in places],
                [duration.progress_at(*place).crosses(10) for place in places],
                [duration.progress_at(*place).fraction for place in places],
            ],
        )
    for seconds, step_seconds, cold, first in product(
        (100.0, 4000.0), (0.01, 2.0, 30.0), (1, 2), (20.0,)
    ):
        now, step, last = [5.0], 0, 0
        budget = TimeBudget(
            seconds=seconds,
            cold=cold,
            closing=lambda took: 7.0 + took,
            clock=lambda now=now: now[0],  # type: ignore[misc]
        )
        while not last and step < 10_000:
            last = budget.fix(step)
            now[0] += step_seconds if step >= cold - 1 + (step == 0) else first
            step += 1
        yield f"budget {seconds} {step_seconds} {cold}", [step, last, budget.fix(0)]
    budget = TimeBudget(seconds=9.0, cold=1, closing=lambda took: 0.0, clock=lambda: 1.0)
    yield "of a budget", [budget.progress_at(3), budget.progress_at(13, budget=[10, 14])]
    measure: Any = SimpleNamespace(closing=lambda took: 1000.0 * took)
    for values in ({"tokens": 70}, {"steps": 20}, {"steps": 20, "schedule_steps": 90}, {}):
        config = PretrainConfig(**values)  # type: ignore[arg-type]
        found: Any = training_duration(config, World(0, 1, CPU), LATER, measure, 10**6)
        yield f"duration {values}", [found.total, found.steps, found.first]
    for ranks, took in product((1, 2), (0.001, 10.0)):
        config = PretrainConfig(max_time="10m")
        found = training_duration(config, World(0, ranks, CPU), LATER, measure, 10**6)
        yield f"time {ranks} {took}", [found.seconds, found.cold, found.closing(took)]
    config = PretrainConfig(steps=50, learning_rate=3e-4, embedding_lr_multiplier=2.0)
    recipe = hyperparameters(config, "fp32", step_duration(config, LATER), LATER)
    rates = [recipe.learning_rates_at(recipe.duration.progress_at(step)) for step in (40, 60, 89)]
    yield "rates of a phase", [rates, recipe.optimizer, recipe.rates, recipe.max_skipped]


def _evaluations() -> Iterator[tuple[str, Any]]:
    for steps, batch, most, every in product((1, 100, 5500), (8, 256), (40, 2048), (None, 10)):
        found = EvaluationSchedule.within(steps, steps * batch, most, every)
        affordable = EvaluationSchedule.affordable(steps * batch, most)
        yield f"evaluations {steps} {batch} {most} {every}", [found, affordable]
    for steps, every in ((None, None), (None, 7), (60, None)):
        evaluator = HeldoutEvaluator(
            scoring=cast(Any, None),
            heldout=cast(Any, SimpleNamespace(rows=500)),
            world=cast(Any, None),
            batches=BatchSizeSchedule(64, 32, 10),
            first_step=40,
            steps=steps,
            every=every,
        )
        found_rows = []
        for step in (41, 50, 98, 100):
            done = ScheduleProgress(done=step - 41, step_size=1, total=60, last=step == 100)
            found_rows.append([evaluator.should_evaluate(step, done), evaluator.rows(step, done)])
        unknown = ScheduleProgress(done=0, step_size=0, total=60, last=False)
        found_rows.append([evaluator.rows(41, unknown)])
        closing = [evaluator.closing(0.5)]
        evaluator.row_seconds = 0.25
        yield f"evaluator {steps} {every}", [found_rows, *closing, evaluator.closing(0.5)]


def _engines() -> Iterator[tuple[str, Any]]:
    for engine, zero, offload, processes, memory in product(
        ("auto", "torch", "fsdp", "deepspeed"), (None, 0, 1, 2, 3), ("none", "cpu"), (1, 2),
        (None, 1600, 3200),
    ):  # fmt: skip
        execution = Execution(engine=engine, zero=zero, offload=offload)  # type: ignore[arg-type]
        try:
            found: Any = choose_engine(execution, processes, 100, memory)
        except UsageError as error:
            found = str(error)
        yield f"engine {engine} {zero} {offload} {processes} {memory}", found


def _compiling() -> Iterator[tuple[str, Any]]:
    mini, base = (model_config(f"bert-{name}", vocab_size=30_522) for name in ("mini", "base"))
    yield (
        "seconds of compiling",
        [compile_policy.compiling_seconds(model) for model in (mini, base)],
    )
    for model, work in product((mini, base), (10.0, 1e3, 1e4, 1e5)):
        estimate = WorkEstimate(micro_batches=work, positions=4096)
        found = [
            estimate.expected_seconds(model, 1e11),
            compile_policy.decide_on_gpu(model, estimate).compiled,
        ]
        yield f"work {model.num_hidden_layers} {work}", found


def _limits() -> Iterator[tuple[str, Any]]:
    told: list[float] = []
    report = SimpleNamespace(shutdown_time=told.append)
    model = torch.nn.Linear(999, 1000)
    estimator = ShutdownTimeEstimator(cast(Reporter, report), model, World(0, 1, CPU))
    for observe, seconds in (("save", 2.0), ("step", 0.2), ("step", 5.0), ("save", 1.0)):
        getattr(estimator, f"observe_{observe}")(seconds)
        told.append(-estimator.seconds)
    ShutdownTimeEstimator(cast(Reporter, report), model, World(1, 2, CPU)).observe_save(99.0)
    yield "seconds of a stop", told
    base = model_config("bert-base", vocab_size=30_522)
    for batch, rows, length, ranks in (
        (256, None, 128, 1),
        (100, 7, 64, 3),
        (9, None, 512, 9),
        (8, None, 9000, 1),
    ):
        found = micro_batch.plan(batch, rows, StepCost(base, length), World(0, ranks, CPU))
        yield f"micro-batch {batch} {rows} {length} {ranks}", found
    yield "ranges", [micro_batch_ranges(10, 33, rank, 2, 3) for rank in range(2)]
    sizes = {"a": 5, "b": 9, "c": 5, "d": 1}
    yield "owners", [assign_owners(sizes, ranks) for ranks in (1, 2, 3)]


NAMES = (
    "encoder.embeddings.word.weight", "encoder.layers.0.attention.in.weight", "encoder.layers.11.norm.bias",
    "encoder.norm.weight", "encoder.decoder.embeddings.word.weight", "encoder.decoder.layers.1.x.weight",
    "pooler.dense.weight", "head.dense.weight", "beside_retriever.encoder.layers.0.x.weight",
    "beside_retriever.pooler.weight", "encoder.layers.3.attention.segment.weight", "encoder.groups.0.x.weight",
)  # fmt: skip


def _parameters() -> Iterator[tuple[str, Any]]:
    rate = parameters.layerwise_lr_multipliers(NAMES, 0.9)
    first = parameters.gradual_unfreezing(NAMES, 2, 10)
    never = parameters.gradual_unfreezing(NAMES, None, 10)
    for name, size in product(NAMES, ((3,), (3, 3))):
        role = parameters.parameter_role(name, torch.zeros(size))
        yield f"{name} {len(size)}", [role, rate(name), first(name), never(name)]


def _configs() -> Iterator[tuple[str, Any]]:
    yield "exclusive", PretrainConfig.mutually_exclusive
    for values in (
        {}, {"steps": 700}, {"steps": 50}, {"steps": 5}, {"tokens": 10**6}, {"max_time": "90s"},
        {"max_time": 90}, {"steps": 20_000_000}, {"log_every": 7}, {"warmup_share": 0.3, "steps": 200},
        {"schedule": "wsd", "decay_share": 0.4, "min_lr_ratio": 0.1},
        {"schedule": "inverse-sqrt", "steps": 6}, {"initial_batch": 64, "batch_ramp_steps": 9},
        {"model": "bert-mini"}, {"model": "bert-large", "learning_rate": 1e-3},
    ):  # fmt: skip
        config = PretrainConfig.model_validate(values)
        whole = 1000.0 if config.phase_steps is None else float(config.phase_steps)
        yield f"config {values}", [
            config.phase_steps, config.seconds, config.log_interval, config.lr_schedule(whole),
            config.batches, config.peak_learning_rate(), config.peak_learning_rate(500),
        ]  # fmt: skip
    for names, share in (
        (("mlm",), None),
        (("clm", "mlm"), None),
        (("clm", "mlm"), 0.25),
        (("clm",), None),
        (("mntp", "clm"), None),
    ):
        modes = attention_modes(names, share, 256)
        yield (
            f"ways {names} {share}",
            [modes.causal_share, modes.before, objective_weights(names, modes)],
        )


def lines() -> Iterator[str]:
    """Yield a line for each case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_policy, "find_spec", lambda name: object())
        for part in (
            _rates, _ends, _evaluations, _engines, _compiling, _limits, _parameters, _configs,
        ):  # fmt: skip
            for name, value in part():
                yield f"{name}: {json.dumps(plain(value), ensure_ascii=False)}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
