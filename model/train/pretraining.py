"""The stage pretrain, once torch is there: prepare, train, say what came of it."""

from __future__ import annotations

from typing import Any

import torch

from model.train.config import PretrainConfig
from model.train.distributed import StopRequest, World, join
from model.train.heldout import counted, unigram_baselines
from model.train.loop import Finished, train
from model.train.setup import Setup, prepare
from pipeline.core.processes import peak_memory
from pipeline.core.stage import Build, Outcome

TOLD = ("heldout_loss", "heldout_accuracy", "heldout_perplexity")  # in every summary, even where there are no held-out rows


def run(config: PretrainConfig, build: Build) -> Outcome:
    """Train on this rank, from the newest checkpoint of the same run below `build.path` if there is one.

    Returns:
        The true outcome on rank 0, an empty one on the others.

    Raises:
        Stopped: SIGTERM or SIGINT came to any rank; a checkpoint is saved.
        DataError: the dataset or every checkpoint is damaged.
        UsageError: config, machine and dataset do not fit together.
        ClozeError: the disk is full, or too many steps in a row had no finite gradient.
    """
    with StopRequest.heeded() as stop:
        world = join(build.execution)
        if world.first:
            build.report.progress(0, None, "steps", {"step": "reading the dataset, building the model"})
        setup = prepare(config, build, world)
        finished = train(setup.training, build, world, stop, setup.resumed, build.report)
        taken = memory_taken(world, build.execution.nodes)
        if world.first:
            build.report.progress(finished.progress.step, finished.progress.step, "steps", taken)
        return _outcome(setup, finished, build, world) if world.first else Outcome()


def memory_taken(world: World, nodes: int) -> dict[str, int]:
    """What the ranks took at their peaks, as `pipeline.core.cost.Cost` has it: those of a machine together, and of one GPU. All call it."""
    whole = world.total([peak_memory()])[0]
    gpu = torch.cuda.max_memory_reserved(world.device) if world.device.type == "cuda" else 0
    return {"memory_bytes": int(whole) // nodes, "gpu_memory_bytes": -world.least(-gpu)}


def _outcome(setup: Setup, finished: Finished, build: Build, world: World) -> Outcome:
    training, progress, last, begun = setup.training, finished.progress, finished.last, setup.training.begun
    build.counters["steps/skipped"] += progress.skipped - begun.skipped
    build.counters["steps/applied"] += progress.updates - begun.updates
    summary = {
        "steps": progress.step,
        "begun_at": begun.step,
        "objectives": list(setup.scoring.names),
        "loss": last.get("loss"),
        "first_loss": progress.first_loss,
        **{name: last.get(name) for name in TOLD},
        **{name: value for name, value in last.items() if name.startswith("heldout_")},
        "heldout_rows": _scored(setup, progress.step),
        "best_heldout": progress.best,
        **_baselines(setup),
        **finished.session,
        "tokens_per_second": finished.session["tokens_per_second"] or last.get("tokens_per_second"),
        "checkpoint": finished.checkpoint,
        "milestones": dict(finished.milestones),
        "precision": training.recipe.precision,
        "compiled": training.compiled,
        "device": str(world.device.type),
        "world_size": world.size,
        "engine": training.engine.name,
        "zero": training.engine.zero,
        "micro_batch": training.micro_batch,
        "accumulation": training.accumulation,
        "optimizer": training.recipe.optimizer,
        "learning_rate": training.recipe.learning_rate,
        "parameters": setup.parameters,
        "peak_flops": None if training.utilisation is None else training.utilisation.peak,
        "tokens": progress.tokens,
        **(
            {}
            if training.mixed is None
            else {"datasets": training.mixed.told(setup.source.samples(progress.step), progress.by_source)}
        ),
        "skipped_steps": progress.skipped,
        **({} if training.recipe.ema is None else {"ema": training.recipe.ema}),
    }
    rows, tokens = setup.source.samples(progress.step) - begun.sample, progress.tokens - begun.tokens
    return Outcome(rows=rows, tokens=tokens, summary=summary)


def _scored(setup: Setup, steps: int) -> int:
    """Held-out rows of the last evaluation."""
    return setup.measure.looks(steps - setup.training.begun.step).last


def _baselines(setup: Setup) -> dict[str, Any]:
    """What a guesser that sees no context would lose; of the masked tokens."""
    found: dict[str, Any] = {"unigram_entropy": None}
    if "mlm" in setup.scoring.names:
        train = counted(setup.heldout, setup.source.shards)
        found |= unigram_baselines(train, setup.heldout, setup.training.saved.model.vocab_size)
    return found
