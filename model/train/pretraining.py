"""The run of the stage pretrain: set up, train, and summarize."""

from __future__ import annotations

from typing import Any

import torch

from cloze.core.artifacts import checkpoints
from cloze.core.processes import peak_memory
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import StopRequest, World, init_distributed
from cloze.model.train.evaluate.heldout import target_count_rows, unigram_baselines
from cloze.model.train.loop.loop import train
from cloze.model.train.plan.sizing import describe_size
from cloze.model.train.resume import state
from cloze.model.train.setup import PretrainSetup, prepare
from cloze.model.train.spec.train_spec import TrainingResult

# In every summary, even without held-out rows.
HELDOUT_METRICS = ("heldout_loss", "heldout_accuracy", "heldout_perplexity")


def run(config: PretrainConfig, build: BuildContext) -> StageResult:
    """Train on this rank, from the run's newest checkpoint below `build.path` if one exists.

    Returns:
        The stage result on rank 0, an empty one on other ranks.

    Raises:
        StoppedError: a rank received SIGTERM or SIGINT; a checkpoint is saved.
        DataError: the dataset or every checkpoint is damaged.
        UsageError: config, machine and dataset do not fit together.
        ClozeError: the disk is full, or too many consecutive steps had no finite gradient.
    """
    with StopRequest.installed() as stop:
        world = init_distributed(build.execution, build.path)
        if world.is_rank_zero:
            build.report.progress(
                0, None, "steps", {"step": "reading the dataset, building the model"}
            )
        setup = prepare(config, build, world)
        finished = train(setup.training, build, world, stop, setup.resumed, build.report)
        memory = measure_memory(world, build.execution.nodes)
        if world.is_rank_zero:
            build.report.progress(finished.progress.step, finished.progress.step, "steps", memory)
        return _outcome(setup, finished, build, world) if world.is_rank_zero else StageResult()


def measure_memory(world: World, nodes: int) -> dict[str, int]:
    """Return peak memory: of a machine's ranks together, and of one GPU; all ranks must call it.

    The names are those of `cloze.core.stages.cost.CostEstimate`.
    """
    total = world.all_reduce_sum([peak_memory()])[0]
    gpu_bytes = torch.cuda.max_memory_reserved(world.device) if world.device.type == "cuda" else 0
    return {
        "memory_bytes": int(total) // nodes,
        "gpu_memory_bytes": -world.all_reduce_min(-gpu_bytes),
    }


def _outcome(
    setup: PretrainSetup, finished: TrainingResult, build: BuildContext, world: World
) -> StageResult:
    training, start_position = setup.training, setup.training.data.start_position
    progress, last_record = finished.progress, finished.last
    build.counters["steps/skipped"] += progress.skipped - start_position.skipped
    build.counters["steps/applied"] += progress.updates - start_position.updates
    samples = setup.source.samples(progress.step) - start_position.sample
    words = state.checkpoints_at_tokens(
        training.path, training.checkpoints.milestone_tokens, start_position.tokens
    )
    chosen = describe_size(PretrainConfig.model_validate(training.config))
    beside: dict[str, Any] = {}
    for companion in setup.companions:
        with world.fence.locked():
            beside |= companion.save(build, setup.scoring.model)
    summary = {
        "steps": progress.step,
        "begun_at": start_position.step,
        "objectives": list(setup.scoring.names),
        "loss": last_record.get("loss"),
        "first_loss": progress.first_loss,
        **{name: last_record.get(name) for name in HELDOUT_METRICS},
        **{name: value for name, value in last_record.items() if name.startswith("heldout_")},
        "heldout_rows": setup.measure.schedule(progress.step - start_position.step).last,
        "best_heldout": progress.best,
        **_baselines(setup),
        **finished.session,
        "tokens_per_second": finished.session["tokens_per_second"]
        or last_record.get("tokens_per_second"),
        "checkpoint": finished.checkpoint,
        **beside,
        "milestones": dict(finished.milestones),
        **({} if not words else {"milestone_words": words}),
        "precision": training.hyperparameters.precision,
        "compiled": training.execution.compiled,
        "device": str(world.device.type),
        "world_size": world.size,
        "engine": training.execution.engine.name,
        "zero": training.execution.engine.zero,
        "micro_batch": training.execution.micro_batch,
        "accumulation": training.execution.accumulation,
        "optimizer": training.hyperparameters.optimizer,
        "learning_rate": training.hyperparameters.learning_rate,
        "parameters": setup.parameters,
        "vocab_size": training.checkpoints.metadata["model"].vocab_size,
        "peak_flops": None
        if training.logging.mfu_meter is None
        else training.logging.mfu_meter.peak,
        "tokens": progress.tokens,
        "rows": len(setup.source.shards),
        "epochs": round(samples / len(setup.source.shards), 2),
        **(
            {}
            if training.data.mixture is None
            else {
                "datasets": training.data.mixture.summary(
                    setup.source.samples(progress.step), progress.by_source
                )
            }
        ),
        "skipped_steps": progress.skipped,
        **({"dial": chosen, **{name: training.config[name] for name in chosen}} if chosen else {}),
    }
    steps = map(checkpoints.parse_step, checkpoints.complete_steps(training.path))
    return StageResult(
        rows=samples,
        tokens=progress.tokens - start_position.tokens,
        summary=summary,
        written=state.written_hashes(training.path, map(state.step_path, steps)),
    )


def _baselines(setup: PretrainSetup) -> dict[str, Any]:
    """Return the losses of context-free guessing of masked tokens, or of a decoder's targets."""
    baselines: dict[str, Any] = {"unigram_entropy": None}
    model = setup.training.checkpoints.metadata["model"]
    if "mlm" in setup.scoring.names or model.is_encoder_decoder:
        training_rows = target_count_rows(setup.heldout, setup.source.shards)
        baselines |= unigram_baselines(training_rows, setup.heldout, model.vocab_size)
    return baselines
