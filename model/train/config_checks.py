"""Checks between the fields of the config of pretrain. A failure is a `ValueError`. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloze.model.train.loop.schedules import SCHEDULES

if TYPE_CHECKING:
    from cloze.model.train.config import PretrainConfig

DECAY_SHARE = 0.2


def check_duration(config: PretrainConfig) -> None:
    """Check that one option sets the duration, and that no other one contradicts it."""
    durations = [name for name in config.mutually_exclusive[0] if getattr(config, name) is not None]
    if len(durations) > 1:
        raise ValueError(
            f"{' and '.join(durations)} exclude each other: each says how long to train; take one "
            f"out ({durations[0]}=null)"
        )
    if config.last_step is None:
        for name, remedy in (
            ("schedule_steps", "leave it out"),
            ("warmup_steps", "use warmup_share"),
            ("final_mask_rate", "leave it out, or give steps"),
        ):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"{name} goes by steps, and {durations[0]} says how long to train; {remedy}"
                )
    if config.warmup_steps is not None and config.warmup_share is not None:
        raise ValueError("warmup_steps and warmup_share exclude each other; give one of them")


def check_schedule_options(config: PretrainConfig) -> None:
    """Check that the learning-rate schedule reads the options that are set."""
    kind = SCHEDULES[config.schedule]
    if config.decay_share is not None and not kind.reads_decay:
        schedules = [name for name, other in SCHEDULES.items() if other.reads_decay]
        raise ValueError(
            f"decay_share is not for schedule {config.schedule}; leave it out, or use "
            f"{' or '.join(schedules)}"
        )
    if kind.needs_warmup and 0 in (config.warmup_steps, config.warmup_share):
        raise ValueError(
            f"schedule {config.schedule} begins to fall where the warm-up ends, and there is "
            f"none; warm up for some steps"
        )
    share = config.decay_share or DECAY_SHARE
    if kind.reads_decay and (config.warmup_share or 0.0) + share > 1:
        raise ValueError(
            f"warmup_share ({config.warmup_share}) and decay_share ({share}) are more than the "
            f"whole; lower one of them"
        )


def check_schedule_length(config: PretrainConfig) -> None:
    """Check that warm-up and steps are within the schedule."""
    steps = config.last_step
    if steps is None:
        return
    name, spanned = (
        ("steps", steps)
        if config.schedule_steps is None
        else ("schedule_steps", config.schedule_steps)
    )
    if spanned < steps:
        raise ValueError(
            f"schedule_steps ({spanned}) is less than steps ({steps}); use {steps} or more"
        )
    if config.warmup_steps is not None and config.warmup_steps > spanned:
        raise ValueError(
            f"warmup_steps ({config.warmup_steps}) is more than {name} ({spanned}); warm up for "
            f"fewer steps"
        )


def check_batch_ramp(config: PretrainConfig) -> None:
    """Check that a batch that grows has a first size, a final size and a length."""
    first, steps = config.initial_batch, config.batch_ramp_steps
    if (first is None) != (steps is None):
        missing = "batch_ramp_steps" if steps is None else "initial_batch"
        raise ValueError(
            f"a batch that grows needs initial_batch and batch_ramp_steps; give {missing}, too,"
            f" or "
            f"leave both out"
        )
    if first is not None and (first >= config.global_batch or config.global_batch % first):
        raise ValueError(
            f"global_batch ({config.global_batch}) is no multiple of initial_batch ({first}) "
            f"that is more; use such a number"
        )
    if steps is not None and config.last_step is not None and steps > config.last_step:
        raise ValueError(
            f"batch_ramp_steps ({steps}) is more than steps ({config.last_step}); let the batch "
            f"grow "
            f"in fewer"
        )


CHECKS = (
    check_duration,
    check_schedule_options,
    check_schedule_length,
    check_batch_ramp,
)
