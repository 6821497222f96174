"""Assembly of a pretraining before its first step: data, model, objectives, resumed checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloze.core.stages.stage import BuildContext
from cloze.model.data.layouts import layout_for
from cloze.model.families.config import ModelConfig
from cloze.model.objectives import trained_heads
from cloze.model.train.build_model import (
    BuiltModel,
    SetupJob,
    Start,
    build_model,
    compile_first_step,
    find_start,
    fit_batch,
    plan_batch,
)
from cloze.model.train.compile_policy import compiling_seconds
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout import HeldoutEvaluator
from cloze.model.train.evaluate.heldout_set import (
    HeldoutSet,
    entropy,
    training_bands,
)
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.batch_source import DatasetSource, MixtureCounter, mask_rate_schedule
from cloze.model.train.loop.data import open_data
from cloze.model.train.loop.duration import TimeBudget
from cloze.model.train.loop.train_spec import (
    CheckpointMetadata,
    CheckpointSpec,
    DataSpec,
    ExecutionSpec,
    LoggingSpec,
    TrainSpec,
)
from cloze.model.train.monitor.stability_monitor import StabilityMonitor, high_learning_rate_warning
from cloze.model.train.monitor.throughput import mfu_meter
from cloze.model.train.plan import micro_batch
from cloze.model.train.precision import DTYPES, resolve_for_run
from cloze.model.train.recipe import recipe, training_duration
from cloze.model.train.resume import continuation, state
from cloze.model.train.resume.initialization import InitialModel


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainSetup:
    """A pretraining that is ready to run, with values for its summary."""

    training: TrainSpec
    scoring: PretrainModule
    source: DatasetSource
    heldout: HeldoutSet
    measure: HeldoutEvaluator
    resumed: state.ResumeState | None
    parameters: int


def prepare(config: PretrainConfig, build: BuildContext, world: World) -> PretrainSetup:
    """Open the dataset, build or restore the model, and split the batch; every rank must call it.

    Raises:
        DataError: the dataset or every checkpoint is damaged, or there is nothing to train on.
        UsageError: the model cannot read the dataset, or the machine cannot run the configuration.
    """
    continuation.check_inputs(build.inputs)
    job = SetupJob(build=build, world=world, data=open_data(config, build, world), notes=[])
    start = find_start(config, job)
    config, begun = start.config, start.begun
    rate_warning = high_learning_rate_warning(
        config.peak_learning_rate(), config.default_learning_rate(), start.optimizer
    )
    precision = resolve_for_run(
        config.precision, start.own.run.precision if start.own else None, world.device, job.notes
    )
    plan = plan_batch(job, start, precision)
    model = build_model(job, start, plan, precision)
    plan = fit_batch(job, start, model, plan)
    source, heldout = _source(job, start, model, plan), _heldout(job, start, model, plan)
    model = compile_first_step(job, model, source)
    evaluator = _measure(job, start, model, heldout)
    _check_disk(job, start, model.parameters)
    meter = None
    if world.is_rank_zero:
        meter = mfu_meter(start.model, precision, world.device, world.size, job.notes)
    pace = training_duration(config, world, begun, evaluator, model.parameters)
    if isinstance(pace, TimeBudget) and (start.own is None or not start.own.progress.budget):
        world.decide_on_rank_zero(pace.check_feasible)
    heads = trained_heads(start.model, start.names)
    compiling = f"compiling the training step, about {compiling_seconds(start.model):.0f} s"
    compiles = model.compiled and model.has_fixed_shape  # a GPU's layers are compiled by now
    training = TrainSpec(
        path=build.path,
        config=config.model_dump(mode="json"),
        recipe=recipe(config, precision, pace, begun),
        trained=model.scoring,
        data=DataSpec(
            source=source,
            fingerprint=job.data.fingerprint,
            begun=begun,
            mixture=MixtureCounter.of(job.data, source.sampler, begun),
        ),
        execution=ExecutionSpec(
            engine=model.engine,
            micro_batch=plan.micro_batch,
            accumulation=plan.accumulation,
            compiled=model.compiled,
        ),
        checkpoints=CheckpointSpec(
            metadata=CheckpointMetadata(
                model=start.model, heads=heads, tokenizer=job.data.tokenizer, dataset=job.info
            ),
            milestones=frozenset(config.milestones),
            keep_for_merge=config.keep_for_merge,
        ),
        logging=LoggingSpec(
            interval=config.log_interval,
            expected_first_loss=_chance(model.scoring, start.beginning),
            mfu_meter=meter,
            check_line=_alarms(config, model.scoring, heldout, start.model).check,
            notes=job.notes,
            warnings=() if rate_warning is None else (rate_warning,),
            figures={"note": compiling} if compiles else {},
        ),
        evaluator=evaluator if heldout.rows else None,
    )
    return PretrainSetup(
        training=training,
        scoring=model.scoring,
        source=source,
        heldout=heldout,
        measure=evaluator,
        resumed=start.resumed,
        parameters=model.parameters,
    )


def _source(
    job: SetupJob, start: Start, model: BuiltModel, plan: micro_batch.BatchPlan
) -> DatasetSource:
    """Build the batch source of the training rows."""
    config, train = start.config, job.data.train
    return DatasetSource(
        shards=train,
        info=job.info,
        sampler=job.data.order(config, start.begun),
        batches=config.batches,
        micro_batch=plan.micro_batch,
        thinning=mask_rate_schedule(config, job.info, start.begun),
        fixed_predictions=train.most_predictions() if model.has_fixed_shape else None,
        layout=model.layout,
        directions=start.directions,
        begun=start.begun,
    )


def _heldout(
    job: SetupJob, start: Start, model: BuiltModel, plan: micro_batch.BatchPlan
) -> HeldoutSet:
    """Select the held-out rows."""
    info, special = job.info, job.info.special
    dtype = DTYPES[model.precision]
    return HeldoutSet(
        shards=job.data.heldout,
        rows=min(start.config.heldout_rows, len(job.data.heldout)),
        batch=plan.micro_batch,
        pad=special.pad,
        mask=special.mask,
        longest=info.length,
        layout=layout_for(model.networks, job.world.device, dtype, packed_rows=info.packed),
        directions=start.directions,
        bands=training_bands(job.data.train, special, start.model.vocab_size),
    )


def _measure(
    job: SetupJob, start: Start, model: BuiltModel, heldout: HeldoutSet
) -> HeldoutEvaluator:
    """Build the evaluator of the held-out rows."""
    config = start.config
    evaluator = HeldoutEvaluator(
        scoring=model.scoring,
        heldout=heldout,
        world=job.world,
        batches=config.batches,
        begun=start.begun.step,
        steps=config.last_step,
        every=config.evaluate_every,
        passes=1 if config.ema is None else 2,
    )
    if config.last_step is not None:
        schedule = evaluator.looks(config.last_step)
        if min(schedule.rows, schedule.last) < heldout.rows:
            job.notes.append(
                f"evaluations score {schedule.rows} of {heldout.rows} held-out rows, every "
                f"{schedule.every} steps, the last one"
                f" {schedule.last}: more would take over 5% of the training"
            )
    return evaluator


def _check_disk(job: SetupJob, start: Start, parameters: int) -> None:
    """Check that all checkpoints that are kept at once fit the disk."""
    config, build, begun = start.config, job.build, start.begun
    last_step = begun.step + config.last_step if config.last_step else math.inf
    milestones = sum(begun.step < step <= last_step for step in config.milestones)
    checkpoints = build.execution.keep_checkpoints + config.keep_for_merge - 1 + milestones
    averaged = config.ema is not None
    job.world.decide_on_rank_zero(
        lambda: micro_batch.check_disk(build.path, parameters, checkpoints, averaged)
    )


def _alarms(
    config: PretrainConfig, scoring: PretrainModule, heldout: HeldoutSet, model: ModelConfig
) -> StabilityMonitor:
    """Build the monitor of the training's loss."""

    def guessing() -> float | None:
        counts = heldout.target_counts(model.vocab_size)
        return entropy(counts) if scoring.names[0] == "mlm" and counts.sum() else None

    predicts_tokens = scoring.objectives[0].random_loss is math.log
    return StabilityMonitor(
        scoring.names[0],
        guessing,
        config.global_batch,
        pairs=len(scoring.names) > 1,
        chance=math.log(model.vocab_size) if predicts_tokens else None,
    )


def _chance(scoring: PretrainModule, beginning: InitialModel) -> float | None:
    """Return the expected loss of untrained weights; None: unknown.

    It is ln V, plus ln 2 for a pair task.
    """
    untrained = beginning.state is None and not beginning.teacher_weights
    return scoring.chance(beginning.model.vocab_size) if untrained else None
