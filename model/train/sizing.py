"""How a global batch is cut for the machine at hand, and whether the disk holds what training will write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import torch

from model.data.sampler import share
from model.families.config import ModelConfig
from model.train.distributed import World
from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError

CPU_TOKENS = 4096  # a micro-batch of 32 x 128: larger ones gain nothing on a CPU and cost memory
CUDA_SHARE = 0.6  # of the GPU's memory, for activations; weights and optimizer have been taken off
BYTES_A_WEIGHT = 12  # fp32 weight and two moments, in a checkpoint
MASK_SHARE = 0.16  # of the positions are predicted, roughly


@dataclass(frozen=True, slots=True)
class Plan:
    """How each step's samples are cut: among ranks, then into the same number of micro-batches on every rank."""

    global_batch: int
    micro_batch: int  # the most sequences in one
    accumulation: int

    def pieces(self, step: int, rank: int, world_size: int) -> list[tuple[int, int]]:
        """The global sample numbers [start, stop) of the rank's micro-batches in step `step` (from 0); some may be empty."""
        start = step * self.global_batch
        mine = share(start, start + self.global_batch, rank, world_size)
        return [share(*mine, part, self.accumulation) for part in range(self.accumulation)]


def plan(global_batch: int, micro_batch: int | None, model: ModelConfig, length: int, world: World) -> Plan:
    """Choose the micro-batch where it is left open.

    Raises:
        UsageError: more processes than sequences.
    """
    if world.size > global_batch:
        raise UsageError(
            f"processes ({world.size}) is more than global_batch ({global_batch}); use a larger batch or fewer processes"
        )
    if micro_batch is not None and micro_batch < 1:
        raise UsageError(f"micro_batch ({micro_batch}) must be at least 1; leave it out to have it chosen")
    rank_batch = -(-global_batch // world.size)
    limit = min(micro_batch or fitting(model, length, world.device), rank_batch)
    accumulation = -(-rank_batch // limit)
    return Plan(global_batch, -(-rank_batch // accumulation), accumulation)


def fitting(model: ModelConfig, length: int, device: torch.device) -> int:
    """Sequences of `length` tokens that fit a device at once: a careful guess, without activation checkpointing."""
    if device.type == "cpu":
        return max(1, CPU_TOKENS // length)
    # 34 D + 5 N L bytes a token and layer in 16 bits (Korthikanti et al., 2022, equation 2), and fp32 logits three times.
    layer = 34 * model.hidden_size + 5 * model.num_attention_heads * length
    row = length * (model.num_hidden_layers * layer + MASK_SHARE * 3 * 4 * model.vocab_size)
    memory = torch.cuda.get_device_properties(device).total_memory * CUDA_SHARE - 16 * approximate_parameters(model)
    found = max(1, int(memory // row))
    return found if found < 8 else found - found % 8


def approximate_parameters(model: ModelConfig) -> int:
    """Weights of the encoder, to a few per cent."""
    layer = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.intermediate_size
    return model.num_hidden_layers * layer + (model.vocab_size + model.max_position_embeddings) * model.hidden_size


def check_disk(path: str, parameters: int, keep: int) -> int:
    """Refuse to begin what the disk cannot hold: `keep` checkpoints and the one being written.

    Returns:
        The bytes they take.

    Raises:
        ClozeError: too little is free.
    """
    storage.make_dirs(path)
    needed = parameters * BYTES_A_WEIGHT * (keep + 1)
    free = shutil.disk_usage(storage.filesystem(path)[1]).free
    if free < needed:
        raise ClozeError(
            f"{path} has {free / 1e9:.1f} GB free, {keep + 1} checkpoints take {needed / 1e9:.1f} GB;"
            " free some space, or lower keep_checkpoints"
        )
    return needed
