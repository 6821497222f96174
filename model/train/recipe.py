"""From a config to a training's duration and hyperparameters."""

from __future__ import annotations

from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout import SHARE, HeldoutEvaluator
from cloze.model.train.loop.duration import Duration, StepDuration, TimeBudget, TokenDuration
from cloze.model.train.loop.interfaces import START, StartPosition
from cloze.model.train.loop.train_spec import TrainingHyperparameters
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER
from cloze.model.train.plan.estimates import checkpoint_bytes
from cloze.model.train.precision import Precision

# Seconds of a command outside the training process's loop: its start, hashes, the manifest.
FINISHING = 3.0
DISK = 100e6  # bytes per second of a checkpoint that is written, synced and hashed


def training_duration(
    config: PretrainConfig,
    world: World,
    begun: StartPosition,
    measure: HeldoutEvaluator,
    parameters: int,
) -> Duration:
    """Return the duration of a phase.

    Args:
        begun: start position of the phase.
        measure: the evaluator of the last evaluation.
        parameters: number of parameters of the network.
    """
    if config.tokens is not None:
        return TokenDuration(first=begun.tokens, tokens=config.tokens)
    if config.seconds is None:
        return step_duration(config, begun)
    saving_seconds = FINISHING + checkpoint_bytes(parameters, config.ema is not None) / DISK
    evaluation_seconds = (
        SHARE / 2 * config.seconds
    )  # limit of `EvaluationSchedule` for the last evaluation
    return TimeBudget(
        seconds=config.seconds,
        cold=2 if world.size > 1 else 1,
        closing=lambda step_seconds: (
            min(measure.closing(step_seconds), evaluation_seconds) + saving_seconds
        ),
    )


def step_duration(config: PretrainConfig, begun: StartPosition = START) -> StepDuration:
    """Return the duration of a phase whose number of steps is known."""
    assert config.last_step is not None
    first, span = (
        (begun.step, config.last_step)
        if config.schedule_steps is None
        else (0, config.schedule_steps)
    )
    return StepDuration(steps=begun.step + config.last_step, first=first, span=span)


def recipe(
    config: PretrainConfig, precision: Precision, pace: Duration, begun: StartPosition = START
) -> TrainingHyperparameters:
    """Return the hyperparameters of a phase, with defaults filled in."""
    return TrainingHyperparameters(
        pace=pace,
        learning_rate=config.peak_learning_rate(begun.step),
        schedule=config.lr_schedule(pace.total),
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
        ema=config.ema,
    )
