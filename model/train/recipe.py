"""A config's recipe: how long the training is, and how hard."""

from __future__ import annotations

from model.train.arithmetic import checkpoint_bytes
from model.train.config import PretrainConfig
from model.train.distributed import World
from model.train.heldout import SHARE, HeldOutMeasure
from model.train.interfaces import START, Position, Recipe
from model.train.optimizers import DEFAULT_OPTIMIZER
from model.train.pace import Pace, StepPace, TimePace, TokenPace
from model.train.precision import Precision

FINISHING = 3.0  # seconds of a command beside the training of a process: its own start, hashes, the manifest
DISK = 100e6  # bytes a second of a checkpoint that is written, synced and hashed


def pace_of(config: PretrainConfig, path: str, world: World, begun: Position, measure: HeldOutMeasure, parameters: int) -> Pace:
    """How long a phase is that begins there.

    Args:
        path: the directory of its metrics.
        measure: what the last evaluation is made by.
        parameters: of the network.
    """
    if config.tokens is not None:
        return TokenPace(first=begun.tokens, tokens=config.tokens)
    if config.seconds is None:
        return step_pace(config, begun)
    saving = FINISHING + checkpoint_bytes(parameters, config.ema is not None) / DISK
    measuring = SHARE / 2 * config.seconds  # what `Looks` leaves the last evaluation
    return TimePace(
        seconds=config.seconds,
        begun=begun.step,
        path=path,
        world=world,
        closing=lambda step_seconds: min(measure.closing(step_seconds), measuring) + saving,
    )


def step_pace(config: PretrainConfig, begun: Position = START) -> StepPace:
    """Of a phase that begins there and knows its steps."""
    assert config.last_step is not None
    first, span = (begun.step, config.last_step) if config.schedule_steps is None else (0, config.schedule_steps)
    return StepPace(steps=begun.step + config.last_step, first=first, span=span)


def recipe(config: PretrainConfig, precision: Precision, pace: Pace, begun: Position = START) -> Recipe:
    """The config's, with what it leaves open settled, for a training of that length that begins there."""
    return Recipe(
        pace=pace,
        learning_rate=config.peak_learning_rate(begun.step),
        schedule=config.course(pace.whole),
        seed=config.seed,
        precision=precision,
        reduce=config.reduce,
        optimizer=config.optimizer or DEFAULT_OPTIMIZER,
        rates={"embeddings": config.embedding_rate, "hidden": config.hidden_rate},
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        clip=config.clip,
        max_skipped=config.max_skipped,
        ema=config.ema,
    )
