"""The table of engines, and the choice of one. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cloze.core.errors import UsageError
from cloze.core.stages.execution import TrainingOptions

if TYPE_CHECKING:
    from cloze.model.train.spec.levers import Lever

ENGINES: dict[str, str] = {
    "torch": "cloze.model.train.engines.torch:TorchEngine",
    "fsdp": "cloze.model.train.engines.fsdp:FSDPEngine",
    "deepspeed": "cloze.model.train.engines.deepspeed:engine",
}
# ZeRO stages of the engines that shard; the first is the default.
STAGES: dict[str, tuple[int, ...]] = {"fsdp": (3, 2), "deepspeed": (1, 2, 3)}
BUCKET_NUMBERS = 1 << 25  # gradients in a bucket of ZeRO
STATE_BYTES = 16  # bytes per parameter: weight, gradient and two moments in fp32
STATE_SHARE = 0.5  # of a device's memory; activations take the rest


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The chosen engine.

    Attributes:
        name: key in `ENGINES`.
        zero: ZeRO stage: 1 shards the optimizer state, 2 also gradients (and with fsdp the weights
            between steps), 3 also weights; 0: no sharding.
        reason: why `auto` chose it, or why ZeRO is not used; empty if obvious.
        offload: True if the optimizer state is in host memory; with fsdp, also sharded weights and
            gradients.
        levers: GPU levers of the steps.
    """

    name: str
    zero: int
    reason: str = ""
    offload: bool = False
    levers: tuple[Lever, ...] = ()


def choose_engine(
    execution: TrainingOptions, processes: int, parameters: int, memory: int | None
) -> EngineConfig:
    """Choose the engine.

    `auto` chooses DeepSpeed if a ZeRO stage is requested, fsdp if the state does not fit a device,
    else torch.

    Args:
        execution: its `engine`, `zero` and `offload` are requested.
        processes: number of ranks.
        parameters: number of trained parameters.
        memory: bytes of a device; None: not bounded by a device (CPU).

    Raises:
        UsageError: engine, stage and offload do not fit together.
    """
    config = _choose(execution.engine, execution.zero, processes, parameters, memory)
    if (offload := execution.offload) == "none":
        return config
    if memory is None:
        raise UsageError(
            f"offload ({offload}) is for GPUs, training is on the CPU, where the state is already; "
            f"leave it out"
        )
    if not config.zero:
        raise UsageError(
            f"offload ({offload}) needs an engine that shards, this is engine torch; use "
            f"--engine fsdp"
        )
    return replace(config, offload=True)


def _choose(
    requested: str, zero: int | None, processes: int, parameters: int, memory: int | None
) -> EngineConfig:
    if requested == "torch" and zero:
        raise UsageError(
            f"zero ({zero}) needs an engine that shards, engine is torch; use --engine deepspeed, "
            f"or leave one of them out"
        )
    if requested in STAGES:
        stages = STAGES[requested]
        if zero is not None and zero not in stages:
            raise UsageError(
                f"zero ({zero}) with engine {requested} must be one of {sorted(stages)}; use "
                f"--zero {stages[0]}, or another engine"
            )
        return EngineConfig(requested, stages[0] if zero is None else zero)
    if requested == "torch" or zero == 0:
        return EngineConfig("torch", 0)
    if processes == 1:
        return EngineConfig(
            "torch", 0, f"one process has nothing to share out at ZeRO {zero}" if zero else ""
        )
    if zero:
        return EngineConfig("deepspeed", zero)
    state = parameters * STATE_BYTES
    if memory is not None and state > STATE_SHARE * memory:
        reason = f"weights and optimizer take {state / 1e9:.1f} of {memory / 1e9:.1f} GB a device"
        return EngineConfig("fsdp", 3, reason)
    return EngineConfig("torch", 0)
