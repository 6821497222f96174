"""`--micro-batch auto`: find the number of sequences per micro-batch by trial.

Forward and backward passes of growing size run over sequences of maximum length, before engine and
optimizer exist: synthetic rows in pretraining, the longest samples in fine-tuning.
`cloze.model.train.plan.memory` estimates the memory that engine and optimizer will need. A GPU is
tried until its memory is full or a step's rows fit. On a CPU two small sizes give the memory per
row, and more than `CPU_TOKENS` are never used, because they gain nothing. All ranks use the minimum
over ranks. The result is saved with the training, so that a resume on as many ranks has the same
micro-batches and dropout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError
from cloze.core.processes import peak_memory, reset_peak_memory
from cloze.model.data.batch import AttentionModes, Batch, collate, move
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.rows import MaskedRows
from cloze.model.data.shards import RowTable
from cloze.model.families.config import ModelConfig
from cloze.model.train.distributed import World
from cloze.model.train.engines import EngineConfig
from cloze.model.train.loop.interfaces import TrainModule
from cloze.model.train.plan import memory
from cloze.model.train.plan.batch_plan import BatchPlan, plan
from cloze.model.train.plan.flops import WEIGHT_BYTES, approximate_parameters
from cloze.model.train.plan.memory import CPU_TOKENS, MARGIN, ComputeOptions
from cloze.model.train.precision import Precision
from cloze.pipeline.dataset.schema import DatasetInfo

AUTO = "auto"
# In the training's directory; the leading underscore excludes it from the artifact.
FILE = "_micro_batch.json"
LOOKED_AT = 256  # rows whose predictions are counted
CPU_TRIED = 512  # tokens of the smaller of two sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchTrial:
    """The setting of a trial.

    Attributes:
        module: network and loss, before an engine wraps them.
        loss: the module's loss of a batch with these counts, not compiled.
        batch: makes a batch of a number of sequences of maximum length.
        length: maximum length, in tokens.
        model: config of the model.
        precision: precision of the training.
        engine: engine of the training.
        checkpointing: True with activation checkpointing.
        averaging: True with EMA.
    """

    module: TrainModule
    loss: Callable[[Batch, Tensor], tuple[Tensor, Tensor]]
    batch: Callable[[int], Batch]
    length: int
    model: ModelConfig
    precision: Precision
    engine: EngineConfig
    checkpointing: bool
    averaging: bool = False

    def run(self, rows: int, device: torch.device) -> None:
        """Run forward and backward, leaving no gradients."""
        batch = move(self.batch(rows), device)
        counts = torch.ones(len(self.module.names), device=device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self.module.train()
            loss, _ = self.loss(batch, counts)
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.module.parameters():
            parameter.grad = None

    def remaining_bytes(self, world: World) -> float:
        """Estimate the bytes that only training needs: moments, EMA, copies, buckets."""
        options = ComputeOptions(
            device="cuda" if world.device.type == "cuda" else "cpu",
            bf16=self.precision != "fp32",
            checkpointing=self.checkpointing,
            offload=self.engine.offload,
            averaging=self.averaging,
            fsdp=self.engine.name == "fsdp",
        )
        weight_bytes = WEIGHT_BYTES * approximate_parameters(self.model)
        single_rank_bytes = memory.state_bytes(self.model, 1, 0, replace(options, averaging=False))
        trial_bytes = single_rank_bytes - 2.0 * weight_bytes  # a trial has no moments
        state = memory.state_bytes(self.model, world.size, self.engine.zero, options)
        return max(0.0, state - trial_bytes)


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
    key = (
        f"{world.size} ranks, {world.device.type}, {trial.length} tokens, ZeRO "
        f"{trial.engine.zero}, {trial.precision}"
    )
    key += ", layers again" if trial.checkpointing else ""
    key += ", averaged" if trial.averaging else ""
    saved_count = world.decide_on_rank_zero(lambda: _known(path, key))
    if saved_count:
        return min(saved_count, rank_batch)
    find = _on_gpu if world.device.type == "cuda" else _on_cpu
    trial.module.to(world.device)
    row_count = world.all_reduce_min(find(trial, rank_batch, world))
    if row_count < 1:
        raise ClozeError(
            f"not one row of {trial.length} tokens fits the memory next to the model; use "
            f"--zero 3 on more GPUs,"
            " --activation-checkpointing, or shorter rows"
        )
    if world.is_rank_zero:
        storage.write_bytes(
            storage.join(path, FILE),
            (json.dumps({"for": key, "micro_batch": row_count}) + "\n").encode(),
        )
    return row_count


def _known(path: str, key: str) -> int:
    """Return the saved result of a resumed training, or 0."""
    try:
        content = json.loads(storage.read_text(storage.join(path, FILE)))
        return int(content["micro_batch"]) if content["for"] == key else 0
    except (DataError, OSError, ValueError, KeyError, TypeError):
        return 0


def _on_gpu(trial: MicroBatchTrial, rank_batch: int, world: World) -> int:
    """Double the rows until memory is full, and return the number that fits under the margin."""
    free, _ = torch.cuda.mem_get_info(world.device)
    room = MARGIN * (free + torch.cuda.memory_reserved(world.device)) - trial.remaining_bytes(world)

    def peak(rows: int) -> float | None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)
        try:
            trial.run(rows, world.device)
        except torch.cuda.OutOfMemoryError:
            for parameter in trial.module.parameters():
                parameter.grad = None
            return None
        finally:
            torch.cuda.empty_cache()
        return float(torch.cuda.max_memory_reserved(world.device))

    return extrapolate_rows(peak, room, rank_batch)


def extrapolate_rows(peak: Callable[[int], float | None], room: float, most: int) -> int:
    """Return the rows that fit into `room` bytes, at most `most`; from 8 on a multiple of 8.

    If `most` rows fit, the result is `most`.

    Args:
        peak: maps a number of rows to the peak in bytes; None: out of memory.
    """
    peaks: dict[int, float] = {}
    rows, too_many = 1, most + 1
    while rows <= most:
        peak_bytes = peak(rows)
        if peak_bytes is None or peak_bytes > room:
            too_many = rows
            break
        peaks[rows] = peak_bytes
        rows = min(2 * rows, most) if rows < most else most + 1
    if not peaks:
        return 0
    if too_many > most:
        return most
    *smaller, largest = sorted(peaks)
    fitting = largest
    if smaller:
        row_bytes = (peaks[largest] - peaks[smaller[-1]]) / (largest - smaller[-1])
        if row_bytes > 0:
            fitting = min(too_many - 1, largest + int((room - peaks[largest]) / row_bytes))
    return fitting if fitting < 8 else fitting - fitting % 8


def _on_cpu(trial: MicroBatchTrial, rank_batch: int, world: World) -> int:
    """Return the rows that fit free memory, with bytes per row from two sizes or from the estimate.

    The greater of both is used.
    """
    max_rows = min(rank_batch, max(1, CPU_TOKENS // trial.length))
    few_rows = min(max_rows, max(1, CPU_TRIED // trial.length))
    options = ComputeOptions(
        device="cpu", bf16=trial.precision != "fp32", checkpointing=trial.checkpointing
    )
    row_bytes = (
        memory.activation_bytes(trial.model, trial.length, options, rows=few_rows) / few_rows
    )
    low_peak, high_peak = (_cpu_peak(trial, rows) for rows in (few_rows, 2 * few_rows))
    if low_peak is not None and high_peak is not None:
        row_bytes = max(row_bytes, (high_peak - low_peak) / few_rows)
    available = MARGIN * _free_memory() / _local_ranks(world) - trial.remaining_bytes(world)
    return max(0, min(max_rows, int(available / row_bytes)))


def _cpu_peak(trial: MicroBatchTrial, rows: int) -> float | None:
    """Return the process's peak with `rows` rows; None: the kernel cannot reset it."""
    if not reset_peak_memory():
        return None
    trial.run(rows, torch.device("cpu"))
    return float(peak_memory())


def _free_memory() -> float:
    """Return the available bytes of this machine, or of this process's control group."""
    available = float(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return min(available, float(limit) - used) if limit != "max" else available
    except (OSError, ValueError):
        return available


def _local_ranks(world: World) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world.size)))


def full_batch(
    rows: int,
    *,
    train: RowTable,
    info: DatasetInfo,
    layout: LayoutKind,
    directions: AttentionModes,
) -> Batch:
    """Return a pretraining batch of rows of maximum length; `train` gives their predictions."""
    return collate(
        full_rows(info, rows, _predictions(train, info)),
        pad=info.special.pad,
        longest=info.length,
        layout=layout,
        directions=directions,
        samples=np.arange(rows),
    )


def _predictions(train: RowTable, info: DatasetInfo) -> int:
    """Return the maximum number of predicted positions of a full row, among the first rows."""
    rows = np.arange(min(len(train), LOOKED_AT))
    masked_rows = train.take(rows, np.zeros_like(rows))
    share = float((masked_rows.counts / np.maximum(masked_rows.lengths, 1)).max(initial=0.0))
    return max(1, min(info.length - 2, round(share * info.length)))


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
