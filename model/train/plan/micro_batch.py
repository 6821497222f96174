"""Micro-batches: the split of a global batch, by estimate or by trial, and the check of the disk.

`--micro-batch auto` tries on a GPU: forward and backward passes of growing size run over sequences
of maximum length, before engine and optimizer exist, until the memory is full or a step's rows fit.
The sequences are synthetic rows in pretraining, the longest samples in fine-tuning. What engine and
optimizer will need is estimated (`cloze.model.train.plan.estimates`). On a CPU the estimate alone
decides, because more than `CPU_TOKENS` gain nothing. All ranks use the minimum over ranks. The
result is saved with the training, so that a resume on as many ranks has the same micro-batches and
dropout.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor

from cloze.core import processes, storage
from cloze.core.artifacts import checkpoints
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.humanize import format_count
from cloze.core.stages.execution import TrainingOptions
from cloze.model.data.batch import AttentionModes, collate
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.rows import MaskedRows
from cloze.model.data.shards import RowTable
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import Batch
from cloze.model.train.distributed import World
from cloze.model.train.plan import estimates
from cloze.model.train.plan.estimates import (
    MARGIN,
    ON_GPU,
    WEIGHT_BYTES,
    ComputeOptions,
    approximate_parameters,
    checkpoint_bytes,
    fitting_rows,
)
from cloze.model.train.precision import Precision
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import TrainModule, leaving_no_trace
from cloze.pipeline.dataset.schema import DatasetInfo

AUTO = "auto"
# In the training's directory; the leading underscore excludes it from the artifact.
FILE = "_micro_batch.json"
COUNTED_ROWS = 256  # rows whose predictions are counted


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Split of a rank's step: maximum micro-batch size, and number of micro-batches."""

    micro_batch: int
    accumulation: int


def plan(
    global_batch: int,
    micro_batch: int | None,
    model: ModelConfig,
    length: int,
    world: World,
    teacher_model: ModelConfig | None = None,
    causal_share: float = 0.0,
    how: ComputeOptions = ON_GPU,
) -> BatchPlan:
    """Choose the micro-batch if it is not given, and the number of micro-batches.

    Args:
        global_batch: maximum number of samples per step.
        micro_batch: the requested micro-batch; None: estimate it.
        length: maximum number of tokens per sample.
        teacher_model: config of a teacher that runs on the same batches.
        causal_share: share of samples that a fill-mask model reads left to right.
        how: precision and copies of the weights, for a GPU.

    Raises:
        UsageError: there are more processes than sequences, or micro_batch is less than 1.
    """
    if world.size > global_batch:
        raise UsageError(
            f"processes ({world.size}) is more than the batch ({global_batch}); use a larger batch "
            f"or fewer processes"
        )
    if micro_batch is not None and micro_batch < 1:
        raise UsageError(
            f"micro_batch ({micro_batch}) must be at least 1; leave it out to have it chosen"
        )
    rank_batch = -(-global_batch // world.size)
    limit = min(
        micro_batch or _estimated_rows(model, length, world, teacher_model, causal_share, how),
        rank_batch,
    )
    accumulation = -(-rank_batch // limit)
    return BatchPlan(-(-rank_batch // accumulation), accumulation)


def _estimated_rows(
    model: ModelConfig,
    length: int,
    world: World,
    teacher_model: ModelConfig | None,
    causal_share: float,
    how: ComputeOptions,
) -> int:
    """Estimate how many sequences of `length` tokens fit a device at once.

    If none fits next to a whole model, the model is sharded (`engines.choose_engine`).
    """
    if world.device.type == "cpu":
        return estimates.cpu_rows(length)
    free, _ = torch.cuda.mem_get_info(world.device)
    counts = (
        fitting_rows(
            free, model, length, teacher_model, causal_share, ranks=ranks, zero=zero,
            how=replace(how, fsdp=zero == 3),
        )
        for ranks, zero in ((1, 0), (world.size, 3))
    )  # fmt: skip
    return next(filter(None, counts), 1)


def compute_options(
    execution: TrainingOptions,
    precision: Precision,
    device: torch.device,
    *,
    averaging: bool = False,
    engine: EngineConfig | None = None,
) -> ComputeOptions:
    """Return the options that affect memory. Args: averaging: True with EMA."""
    return ComputeOptions(
        device="cpu" if device.type == "cpu" else "cuda",
        bf16=precision != "fp32",
        checkpointing=execution.activation_checkpointing,
        offload=engine is not None and engine.offload,
        averaging=averaging,
        fsdp=engine is not None and engine.name == "fsdp",
    )


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of the device's own memory, or None for a CPU."""
    return None if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[1])


def check_disk(path: str, parameters: int, keep: int, averaging: bool = False) -> int:
    """Check that the disk has space for `keep` checkpoints and the one being written.

    Checkpoints that `path` has already need no space twice. Object stores are not checked.

    Returns:
        The required bytes.

    Raises:
        ClozeError: too little space is free.
    """
    storage.make_dirs(path)
    missing = max(1, keep + 1 - len(checkpoints.complete_steps(path)))
    required = checkpoint_bytes(parameters, averaging) * missing
    free = (
        shutil.disk_usage(storage.filesystem(path)[1]).free if storage.is_local(path) else required
    )
    if free < required:
        raise ClozeError(
            f"{path} has {format_count(free)}B free, {missing} checkpoints take "
            f"{format_count(required)}B; free some space, or lower keep_checkpoints"
        )
    return required


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTrial:
    """The setting of a trial.

    Attributes:
        module: network and loss, before an engine wraps them.
        loss: the module's loss of a batch with these counts, not compiled.
        batch: makes a batch of a number of sequences of maximum length.
        length: maximum length, in tokens.
        model: config of the model.
        zero: ZeRO stage of the engine.
        how: precision, engine and copies of the weights.
    """

    module: TrainModule
    loss: Callable[[Batch, Tensor], tuple[Tensor, Tensor]]
    batch: Callable[[int], Batch]
    length: int
    model: ModelConfig
    zero: int
    how: ComputeOptions

    def peak(self, rows: int, device: torch.device) -> float | None:
        """Return the bytes reserved by forward and backward on a GPU; None: out of memory."""
        # Blocks that a smaller trial left would count in this one's peak.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        try:
            with leaving_no_trace(self.module, device):
                self.module.forward_backward(self.batch(rows), device, self.loss)
        except torch.cuda.OutOfMemoryError:
            return None
        finally:
            torch.cuda.empty_cache()
        return float(torch.cuda.max_memory_reserved(device))

    def remaining_bytes(self, ranks: int) -> float:
        """Estimate the bytes that only training needs: moments, EMA, copies, buckets."""
        weight_bytes = WEIGHT_BYTES * approximate_parameters(self.model)
        plain = estimates.state_bytes(self.model, 1, 0, replace(self.how, averaging=False))
        trial_bytes = plain - 2.0 * weight_bytes  # a trial has no moments
        return max(0.0, estimates.state_bytes(self.model, ranks, self.zero, self.how) - trial_bytes)


def plan_by_trial(
    trial: MicroBatchTrial,
    global_batch: int,
    world: World,
    path: str,
    notes: list[str],
) -> BatchPlan:
    """Return the split of a step into the micro-batches that fit, and note their size."""
    row_count = find_micro_batch(trial, -(-global_batch // world.size), world, path)
    split = plan(global_batch, row_count, trial.model, trial.length, world)
    notes.append(
        f"micro-batch {split.micro_batch}: {row_count} rows of {trial.length} tokens fit at once"
    )
    return split


def find_micro_batch(trial: MicroBatchTrial, rank_batch: int, world: World, path: str) -> int:
    """Return the rows that fit on all ranks, at most `rank_batch`.

    Args:
        path: directory of the training.

    Raises:
        ClozeError: not even one row fits.
    """
    key = f"{world.size} ranks, {trial.length} tokens, ZeRO {trial.zero}, {trial.how}"
    saved_count = world.decide_on_rank_zero(lambda: _saved_rows(path, key))
    if saved_count:
        return min(saved_count, rank_batch)
    find = _on_gpu if world.device.type == "cuda" else _on_cpu
    row_count = world.all_reduce_min(find(trial, rank_batch, world))
    if row_count < 1:
        raise ClozeError(
            f"not one row of {trial.length} tokens fits the memory next to the model; use "
            f"--zero 3 on more GPUs, --activation-checkpointing, or shorter rows"
        )
    if world.is_rank_zero:
        content = json.dumps({"for": key, "micro_batch": row_count}) + "\n"
        storage.write_bytes(storage.join(path, FILE), content.encode())
    return row_count


def _saved_rows(path: str, key: str) -> int:
    """Return the saved result of a resumed training, or 0."""
    try:
        content = json.loads(storage.read_text(storage.join(path, FILE)))
        return int(content["micro_batch"]) if content["for"] == key else 0
    except (DataError, OSError, ValueError, KeyError, TypeError):
        return 0


def _on_gpu(trial: MicroBatchTrial, rank_batch: int, world: World) -> int:
    """Double the rows until memory is full, and return the number that fits under the margin."""
    trial.module.to(world.device)
    free, _ = torch.cuda.mem_get_info(world.device)
    # What torch's allocator holds for the weights is not free, and counts in each peak.
    available = MARGIN * (free + torch.cuda.memory_reserved(world.device))
    available -= trial.remaining_bytes(world.size)
    return extrapolate_rows(lambda rows: trial.peak(rows, world.device), available, rank_batch)


def extrapolate_rows(peak: Callable[[int], float | None], available: float, limit: int) -> int:
    """Return the rows that fit into `available` bytes, at most `limit`; from 8 a multiple of 8.

    If `limit` rows fit, the result is `limit`.

    Args:
        peak: maps a number of rows to the peak in bytes; None: out of memory.
    """
    peaks: dict[int, float] = {}
    rows, too_many = 1, limit + 1
    while rows <= limit:
        peak_bytes = peak(rows)
        if peak_bytes is None or peak_bytes > available:
            too_many = rows
            break
        peaks[rows] = peak_bytes
        rows = min(2 * rows, limit) if rows < limit else limit + 1
    if not peaks:
        return 0
    if too_many > limit:
        return limit
    *smaller, largest = sorted(peaks)
    fitting = largest
    if smaller:
        # The slope between two trials: weights and the process are in both and cancel.
        row_bytes = (peaks[largest] - peaks[smaller[-1]]) / (largest - smaller[-1])
        if row_bytes > 0:
            fitting = min(too_many - 1, largest + int((available - peaks[largest]) / row_bytes))
    return fitting if fitting < 8 else fitting - fitting % 8


def _on_cpu(trial: MicroBatchTrial, rank_batch: int, world: World) -> int:
    """Return the rows that fit free memory by the estimate, at most `CPU_TOKENS`."""
    limit = min(rank_batch, estimates.cpu_rows(trial.length))
    # All ranks of a host take rows from the same memory.
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", str(world.size)))
    free = processes.free_memory(psutil.virtual_memory().available)
    available = MARGIN * free / local_ranks - trial.remaining_bytes(world.size)

    def fits(rows: int) -> bool:
        needed = estimates.activation_bytes(trial.model, trial.length, trial.how, rows=rows)
        return needed <= available

    return estimates.largest(fits, limit)


def full_batch(
    rows: int,
    *,
    train: RowTable,
    info: DatasetInfo,
    layout: LayoutKind,
    directions: AttentionModes,
) -> Batch:
    """Return a pretraining batch of rows of maximum length; `train` gives their predictions."""
    numbers = np.arange(min(len(train), COUNTED_ROWS))
    counted = train.take(numbers, np.zeros_like(numbers))
    # The largest share: a trial with fewer predictions could fit where a step does not.
    share = float((counted.counts / np.maximum(counted.lengths, 1)).max(initial=0.0))
    predictions = max(1, min(info.length - 2, round(share * info.length)))
    return collate(
        full_rows(info, rows, predictions),
        pad=info.special.pad,
        longest=info.length,
        layout=layout,
        directions=directions,
        samples=np.arange(rows),
    )


def full_rows(info: DatasetInfo, rows: int, predictions: int) -> MaskedRows:
    """Return rows of maximum length without content, whose first positions are predicted."""
    lengths = np.full(rows, info.length, np.int64)
    return MaskedRows(
        ids=np.full(rows * info.length, info.special.unk, np.int64),
        lengths=lengths,
        segment_start=lengths // 2 if info.pair_task else lengths,
        pair_labels=np.full(rows, 0 if info.pair_task else -100, np.int64),
        positions=np.tile(np.arange(1, predictions + 1), rows),
        replacements=np.full(rows * predictions, info.special.mask, np.int64),
        counts=np.full(rows, predictions, np.int64),
        documents=np.arange(rows).astype(np.uint64),
        sentences=np.zeros(rows, np.int64),
        boundaries=np.zeros(rows if info.packed else 0, np.int64),
        boundary_counts=np.ones(rows, np.int64) if info.packed else None,
    )
