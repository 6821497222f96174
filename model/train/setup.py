"""Assembly of a pretraining before its first step: data, model, objectives, resumed checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from cloze.core.artifacts import artifact
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, inputs_of_role
from cloze.model import checkpoint
from cloze.model.data.layouts import layout_for
from cloze.model.objectives import trained_heads
from cloze.model.train.build_model import BuiltModel, build_model
from cloze.model.train.compile_policy import compiling_seconds, first_step_failure
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.companion import Companion
from cloze.model.train.evaluate.heldout import SHARE, HeldoutEvaluator, HeldoutSet, entropy
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.data import DatasetSource, mask_rate_schedule
from cloze.model.train.monitor.stability_monitor import StabilityMonitor, high_learning_rate_warning
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import checkpoint_bytes, flops_per_token
from cloze.model.train.precision import DTYPES, Precision
from cloze.model.train.resume import continuation, state
from cloze.model.train.spec.interfaces import START, StartPosition
from cloze.model.train.spec.mixture import MixtureCounter
from cloze.model.train.spec.schedules import Duration, StepDuration, TimeBudget, TokenDuration
from cloze.model.train.spec.train_spec import (
    CheckpointSpec,
    DataSpec,
    ExecutionSpec,
    LoggingSpec,
    TrainingHyperparameters,
    TrainSpec,
)
from cloze.model.train.start import Start, find_start
from cloze.model.train.throughput import mfu_meter

# Seconds of a command outside the training process's loop: its start, hashes, the manifest.
FINISHING = 3.0
DISK = 100e6  # bytes per second of a checkpoint that is written, synced and hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainSetup:
    """A pretraining that is ready to run, with values for its summary."""

    training: TrainSpec
    scoring: PretrainModule
    companions: tuple[Companion, ...]
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
    start = find_start(config, build, world)
    config, start_position = start.config, start.start_position
    rate_warning = high_learning_rate_warning(
        config.peak_learning_rate(),
        config.default_learning_rate(),
        config.optimizer or DEFAULT_OPTIMIZER,
    )
    model = build_model(start)
    source, heldout = _source(start, model), _heldout(start, model)
    model = _compile_first_step(start, model, source)
    evaluator = _evaluator(start, model, heldout)
    _check_disk(start, model.parameters)
    teacher = None if start.teacher is None else start.teacher.model
    causal_share, meter = start.directions.causal_share, None
    step_flops = partial(flops_per_token, start.model, teacher=teacher, causal_share=causal_share)
    if world.is_rank_zero:
        meter = mfu_meter(step_flops, start.precision, world.device, world.size, start.notes)
    duration = training_duration(config, world, start_position, evaluator, model.parameters)
    if isinstance(duration, TimeBudget) and (start.own is None or not start.own.progress.budget):
        world.decide_on_rank_zero(duration.check_feasible)
    heads = trained_heads(start.model, start.names, start.directions.causal_share)
    compiling = f"compiling the training step, about {compiling_seconds(start.model):.0f} s"
    compiles = model.compiled and model.has_fixed_shape  # a GPU's layers are compiled by now
    training = TrainSpec(
        path=build.path,
        config=config.model_dump(mode="json"),
        hyperparameters=hyperparameters(config, start.precision, duration, start_position),
        trained=model.scoring,
        data=DataSpec(
            source=source,
            fingerprint=start.data.fingerprint,
            start_position=start_position,
            mixture=MixtureCounter.of(start.data.fingerprints, source.sampler, start_position),
        ),
        execution=ExecutionSpec(
            engine=model.engine,
            micro_batch=model.plan.micro_batch,
            accumulation=model.plan.accumulation,
            compiled=model.compiled,
        ),
        checkpoints=CheckpointSpec(
            metadata=checkpoint.Metadata(
                model=start.model,
                heads=heads,
                tokenizer=start.data.tokenizer,
                dataset=start.info,
                untrained=model.untrained,
            ),
            milestones=frozenset(config.milestones),
            milestone_tokens=_milestone_tokens(config, build),
            keep_for_merge=config.keep_for_merge,
        ),
        logging=LoggingSpec(
            interval=config.log_interval,
            mfu_meter=meter,
            flops_per_token=step_flops,
            words_per_token=_words_per_token(build),
            check_line=_monitor(start, model.scoring, heldout).check,
            notes=start.notes,
            warnings=() if rate_warning is None else (rate_warning,),
            figures={"note": compiling} if compiles else {},
        ),
        evaluator=evaluator if heldout.rows else None,
    )
    return PretrainSetup(
        training=training,
        scoring=model.scoring,
        companions=start.companions,
        source=source,
        heldout=heldout,
        measure=evaluator,
        resumed=start.resumed,
        parameters=model.parameters,
    )


def _compile_first_step(start: Start, model: BuiltModel, source: DatasetSource) -> BuiltModel:
    """Compile a GPU's layers with the first micro-batch; without success they run plain.

    With sharded weights the first step compiles them, because this rank alone may lack the memory.
    """
    world = start.world
    if not model.compiled or model.has_fixed_shape or model.engine.name == "fsdp":
        return model
    work = source.step_batches(source.start_position.step, world.rank, world.size)
    batch = work.micro_batches[0].batch
    failure = first_step_failure(model.scoring, batch, world.device)
    if world.all_reduce_min(not failure):
        return model
    model.scoring.set_compiled(False)
    start.notes.append(f"not compiled: {failure or 'another rank failed'}; layers run plain")
    return replace(model, compiled=False)


def _words_per_token(build: BuildContext) -> list[float]:
    """Return the words per token of each dataset's rows, NaN if its manifest does not know them."""
    summaries = (
        artifact.read_manifest(path).summary
        for path in inputs_of_role("dataset", build.inputs).values()
    )
    return [float(summary.get("words_per_token") or math.nan) for summary in summaries]


def _milestone_tokens(config: PretrainConfig, build: BuildContext) -> dict[int, float]:
    """Return the milestones in words as numbers of tokens.

    Raises:
        UsageError: the words of the dataset are not known, or there are several datasets.
    """
    if not config.milestone_words:
        return {}
    shares = _words_per_token(build)
    if len(shares) != 1 or math.isnan(shares[0]):
        raise UsageError(
            f"milestone_words ({config.milestone_words[0]:,}) needs one dataset that knows its "
            f"words (found {shares} words per token); use milestones, or make the dataset again"
        )
    return {words: words / shares[0] for words in config.milestone_words}


def _source(start: Start, model: BuiltModel) -> DatasetSource:
    """Build the batch source of the training rows."""
    config, train, thinning = start.config, start.data.train, None
    fixed = model.has_fixed_shape or model.layout == "fixed"
    if config.final_mask_rate is not None:
        duration = step_duration(config, start.start_position)
        thinning = mask_rate_schedule(config, start.info, duration)
    return DatasetSource(
        shards=train,
        info=start.info,
        sampler=start.data.order(config, start.start_position),
        batches=config.batches,
        micro_batch=model.plan.micro_batch,
        thinning=thinning,
        fixed_predictions=train.most_predictions() if fixed else None,
        layout=model.layout,
        directions=start.directions,
        start_position=start.start_position,
    )


def _heldout(start: Start, model: BuiltModel) -> HeldoutSet:
    """Select the held-out rows."""
    info, special = start.info, start.info.special
    dtype = DTYPES[start.precision]
    return HeldoutSet(
        shards=start.data.heldout,
        rows=min(start.config.heldout_rows, len(start.data.heldout)),
        batch=model.plan.micro_batch,
        pad=special.pad,
        mask=special.mask,
        longest=info.length,
        layout=layout_for(model.networks, start.world.device, dtype, packed_rows=info.packed),
        directions=start.directions,
    )


def _evaluator(start: Start, model: BuiltModel, heldout: HeldoutSet) -> HeldoutEvaluator:
    """Build the evaluator of the held-out rows."""
    config = start.config
    evaluator = HeldoutEvaluator(
        scoring=model.scoring,
        heldout=heldout,
        world=start.world,
        batches=config.batches,
        first_step=start.start_position.step,
        steps=config.phase_steps,
        every=config.evaluate_every,
    )
    if config.phase_steps is not None:
        schedule = evaluator.schedule(config.phase_steps)
        if min(schedule.rows, schedule.last) < heldout.rows:
            start.notes.append(
                f"evaluations score {schedule.rows} of {heldout.rows} held-out rows, every "
                f"{schedule.every} steps, the last one"
                f" {schedule.last}: more would take over 5% of the training"
            )
    return evaluator


def _check_disk(start: Start, parameters: int) -> None:
    """Check that all checkpoints that are kept at once fit the disk."""
    config, build, start_position = start.config, start.build, start.start_position
    last_step = start_position.step + config.phase_steps if config.phase_steps else math.inf
    milestones = sum(start_position.step < step <= last_step for step in config.milestones)
    milestones += len(config.milestone_words)
    checkpoints = build.execution.keep_checkpoints + config.keep_for_merge - 1 + milestones
    start.world.decide_on_rank_zero(
        lambda: micro_batch.check_disk(build.path, parameters, checkpoints)
    )


def _monitor(start: Start, scoring: PretrainModule, heldout: HeldoutSet) -> StabilityMonitor:
    """Build the monitor of the training's loss."""
    vocabulary, initial = start.model.predicted_vocab_size, start.initial

    def guessing() -> float | None:
        counts = heldout.target_counts(vocabulary)
        return entropy(counts) if scoring.names[0] == "mlm" and counts.sum() else None

    predicts_tokens = scoring.objectives[0].random_loss is math.log
    untrained = initial.state is None and not initial.teacher_weights
    return StabilityMonitor(
        scoring.names[0],
        guessing,
        start.config.global_batch,
        pairs=len(scoring.names) > 1,
        chance=math.log(vocabulary) if predicts_tokens else None,
        expected=scoring.chance(vocabulary) if untrained else None,
    )


def training_duration(
    config: PretrainConfig,
    world: World,
    start_position: StartPosition,
    measure: HeldoutEvaluator,
    parameters: int,
) -> Duration:
    """Return the duration of a phase.

    Args:
        start_position: start position of the phase.
        measure: the evaluator of the last evaluation.
        parameters: number of parameters of the network.
    """
    if config.tokens is not None:
        return TokenDuration(first=start_position.tokens, tokens=config.tokens)
    if config.seconds is None:
        return step_duration(config, start_position)
    saving_seconds = FINISHING + checkpoint_bytes(parameters) / DISK
    # Limit of `EvaluationSchedule` for the last evaluation.
    evaluation_seconds = SHARE / 2 * config.seconds
    return TimeBudget(
        seconds=config.seconds,
        cold=2 if world.size > 1 else 1,
        closing=lambda step_seconds: (
            min(measure.closing(step_seconds), evaluation_seconds) + saving_seconds
        ),
    )


def step_duration(config: PretrainConfig, start_position: StartPosition = START) -> StepDuration:
    """Return the duration of a phase whose number of steps is known."""
    assert config.phase_steps is not None
    first, span = (
        (start_position.step, config.phase_steps)
        if config.schedule_steps is None
        else (0, config.schedule_steps)
    )
    return StepDuration(steps=start_position.step + config.phase_steps, first=first, span=span)


def hyperparameters(
    config: PretrainConfig,
    precision: Precision,
    duration: Duration,
    start_position: StartPosition = START,
) -> TrainingHyperparameters:
    """Return the hyperparameters of a phase, with defaults filled in."""
    return TrainingHyperparameters(
        duration=duration,
        learning_rate=config.peak_learning_rate(start_position.step),
        schedule=config.lr_schedule(duration.total),
        seed=config.seed,
        precision=precision,
        grad_reduce_dtype=config.grad_reduce_dtype,
        optimizer=config.optimizer or DEFAULT_OPTIMIZER,
        rates={"embeddings": config.embedding_lr_multiplier, "hidden": config.hidden_lr_multiplier},
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        grad_clip=config.grad_clip,
        max_skipped=config.max_skipped,
    )
