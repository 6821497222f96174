"""How a global batch is cut for the machine at hand, and whether the disk holds what training will write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from model.data.sampler import share
from model.families.config import ModelConfig
from model.train.arithmetic import checkpoint_bytes
from model.train.distributed import World
from model.train.memory import CPU_TOKENS, fitting_rows
from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rank's samples of a step are cut: the most in a micro-batch, and how many of these."""

    micro_batch: int
    accumulation: int


def pieces(start: int, stop: int, rank: int, world_size: int, accumulation: int) -> list[tuple[int, int]]:
    """The ranges [start, stop) of a rank's micro-batches of a step's samples; some may be empty, where there are few samples."""
    mine = share(start, stop, rank, world_size)
    return [share(*mine, part, accumulation) for part in range(accumulation)]


def plan(
    global_batch: int,
    micro_batch: int | None,
    model: ModelConfig,
    length: int,
    world: World,
    beside: ModelConfig | None = None,
    causal_share: float = 0.0,
) -> Plan:
    """Choose the micro-batch where it is left open.

    Args:
        global_batch: the most samples of a step.
        micro_batch: what was asked for.
        length: the most tokens of a sample.
        beside: a teacher's config, which runs on the same batches.
        causal_share: of the samples, those that a model which fills masks reads from left to right.

    Raises:
        UsageError: more processes than sequences.
    """
    if world.size > global_batch:
        raise UsageError(
            f"processes ({world.size}) is more than the batch ({global_batch}); use a larger batch or fewer processes"
        )
    if micro_batch is not None and micro_batch < 1:
        raise UsageError(f"micro_batch ({micro_batch}) must be at least 1; leave it out to have it chosen")
    rank_batch = -(-global_batch // world.size)
    limit = min(micro_batch or fitting(model, length, world.device, beside, causal_share), rank_batch)
    accumulation = -(-rank_batch // limit)
    return Plan(-(-rank_batch // accumulation), accumulation)


def fitting(
    model: ModelConfig, length: int, device: torch.device, beside: ModelConfig | None = None, causal_share: float = 0.0
) -> int:
    """Sequences of `length` tokens that fit a device at once: a careful guess, without activation checkpointing."""
    if device.type == "cpu":
        return max(1, CPU_TOKENS // length)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, fitting_rows(free, model, length, beside, causal_share))


def device_memory(device: torch.device) -> int | None:
    """Bytes of the device's own memory; None where it has none (a CPU)."""
    return None if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[1])


def check_disk(path: str, parameters: int, keep: int, averaging: bool = False) -> int:
    """Refuse to begin what the disk cannot hold: `keep` checkpoints and the one being written. An object store holds anything.

    Returns:
        The bytes they take.

    Raises:
        ClozeError: too little is free.
    """
    storage.make_dirs(path)
    needed = checkpoint_bytes(parameters, averaging) * (keep + 1)
    free = shutil.disk_usage(storage.filesystem(path)[1]).free if storage.is_local(path) else needed
    if free < needed:
        raise ClozeError(
            f"{path} has {free / 1e9:.1f} GB free, {keep + 1} checkpoints take {needed / 1e9:.1f} GB;"
            " free some space, or lower keep_checkpoints"
        )
    return needed
