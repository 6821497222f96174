"""Checks of a pretraining's config: options that contradict each other or lack another one."""

from __future__ import annotations

from typing import ClassVar, Protocol

from cloze.model.train.dial import Dial
from cloze.model.train.spec.schedules import SCHEDULES

DECAY_SHARE = 0.2  # default of decay_share


class DurationFields(Protocol):
    """Fields of a pretraining's config that say how long it goes on, and with which batches."""

    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]]
    schedule: str
    schedule_steps: int | None
    warmup_steps: int | None
    warmup_share: float | None
    decay_share: float | None
    global_batch: int
    initial_batch: int | None
    batch_ramp_steps: int | None
    size: Dial | None

    @property
    def phase_steps(self) -> int | None: ...


def check_duration(config: DurationFields) -> None:
    """Check that one option sets the duration, one the warm-up, and that no other contradicts."""
    durations, warmups = (
        [name for name in group if getattr(config, name) is not None]
        for group in config.mutually_exclusive[:2]
    )
    for names in (durations, warmups):
        if len(names) > 1:
            raise ValueError(
                f"{' and '.join(names)} exclude each other; take one out ({names[0]}=null)"
            )
    if config.size is not None and "model" in config.size.by_hand:
        raise ValueError(
            f"model and size ({config.size.parameters:,}) exclude each other; take one out "
            f"(model=null)"
        )
    if config.size is not None and config.phase_steps is not None:
        raise ValueError(
            f"size ({config.size.parameters:,}) chooses batch and rates by the tokens; give tokens "
            f"or max_time instead of steps"
        )
    if config.phase_steps is None:
        for name, remedy in (
            ("schedule_steps", "leave it out"),
            ("warmup_steps", "use warmup_share"),
            ("final_mask_rate", "leave it out, or give steps"),
        ):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"{name} goes by steps, and {durations[0]} says how long to train; {remedy}"
                )


def check_schedule(config: DurationFields) -> None:
    """Check the options of the learning-rate schedule, and that warm-up and steps are within it."""
    kind, steps = SCHEDULES[config.schedule], config.phase_steps
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
    if steps is None:
        return
    name = "steps" if config.schedule_steps is None else "schedule_steps"
    length = config.schedule_steps or steps
    if length < steps:
        raise ValueError(
            f"schedule_steps ({length}) is less than steps ({steps}); use {steps} or more"
        )
    if config.warmup_steps is not None and config.warmup_steps > length:
        raise ValueError(
            f"warmup_steps ({config.warmup_steps}) is more than {name} ({length}); warm up for "
            f"fewer steps"
        )


def check_batch_ramp(config: DurationFields) -> None:
    """Check that a batch that grows has a first size, a final size and a length."""
    first, steps = config.initial_batch, config.batch_ramp_steps
    if (first is None) != (steps is None):
        missing = "batch_ramp_steps" if steps is None else "initial_batch"
        raise ValueError(
            f"a batch that grows needs initial_batch and batch_ramp_steps; give {missing}, too, or "
            f"leave both out"
        )
    if first is not None and (first >= config.global_batch or config.global_batch % first):
        raise ValueError(
            f"global_batch ({config.global_batch}) is no multiple of initial_batch ({first}) that "
            f"is more; use such a number"
        )
    if steps is not None and config.phase_steps is not None and steps > config.phase_steps:
        raise ValueError(
            f"batch_ramp_steps ({steps}) is more than steps ({config.phase_steps}); let the batch "
            f"grow in fewer"
        )
