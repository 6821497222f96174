"""Micro-batches: the split of a global batch by an estimate of memory, and the check of the disk.

The estimates are those of `cloze.model.train.plan.estimates`, which `benchmarks.memory_plan` checks
against measured peaks.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import torch

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.errors import ClozeError, UsageError
from cloze.core.humanize import format_count
from cloze.core.stages.execution import TrainingOptions
from cloze.model.train.distributed import World
from cloze.model.train.plan import estimates
from cloze.model.train.plan.estimates import ComputeOptions, StepCost, checkpoint_bytes
from cloze.model.train.precision import Precision
from cloze.model.train.spec.engine_choice import EngineConfig


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Split of a rank's step: maximum micro-batch size, and number of micro-batches."""

    micro_batch: int
    accumulation: int


def plan(global_batch: int, micro_batch: int | None, cost: StepCost, world: World) -> BatchPlan:
    """Choose the micro-batch if it is not given, and the number of micro-batches.

    Args:
        global_batch: maximum number of samples per step.
        micro_batch: the requested micro-batch; None: estimate it.
        cost: of a step with the longest samples.

    Raises:
        UsageError: there are more processes than sequences.
    """
    if world.size > global_batch:
        raise UsageError(
            f"processes ({world.size}) is more than the batch ({global_batch}); use a larger batch "
            f"or fewer processes"
        )
    rank_batch = -(-global_batch // world.size)
    limit = min(micro_batch or _estimated_rows(cost, world), rank_batch)
    accumulation = -(-rank_batch // limit)
    return BatchPlan(-(-rank_batch // accumulation), accumulation)


def _estimated_rows(cost: StepCost, world: World) -> int:
    """Estimate how many sequences fit a device at once.

    If none fits next to a whole model, the model is sharded (`engines.choose_engine`).
    """
    if world.device.type == "cpu":
        return estimates.cpu_rows(int(cost.length))
    free, _ = torch.cuda.mem_get_info(world.device)
    ways = (
        replace(cost.how, ranks=ranks, zero=zero, fsdp=zero == 3)
        for ranks, zero in ((1, 0), (world.size, 3))
    )
    return next(filter(None, (replace(cost, how=how).fitting_rows(free) for how in ways)), 1)


def compute_options(
    execution: TrainingOptions,
    precision: Precision,
    device: torch.device,
    *,
    engine: EngineConfig | None = None,
) -> ComputeOptions:
    """Return the options that affect memory."""
    return ComputeOptions(
        device="cpu" if device.type == "cpu" else "cuda",
        bf16=precision != "fp32",
        checkpointing=execution.activation_checkpointing,
        offload=engine is not None and engine.offload,
        fsdp=engine is not None and engine.name == "fsdp",
    )


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of the device's own memory, or None for a CPU."""
    return None if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[1])


def check_disk(path: str, parameters: int, keep: int) -> int:
    """Check that the disk has space for `keep` checkpoints and the one being written.

    Checkpoints that `path` has already need no space twice. Object stores are not checked.

    Returns:
        The required bytes.

    Raises:
        ClozeError: too little space is free.
    """
    storage.make_dirs(path)
    missing = max(1, keep + 1 - len(checkpoints.complete_steps(path)))
    required = checkpoint_bytes(parameters) * missing
    free = (
        shutil.disk_usage(storage.filesystem(path)[1]).free if storage.is_local(path) else required
    )
    if free < required:
        raise ClozeError(
            f"{path} has {format_count(free)}B free, {missing} checkpoints take "
            f"{format_count(required)}B; free some space, or lower keep_checkpoints"
        )
    return required
