"""`--micro-batch auto`: how many sequences a rank takes at once, found by trying.

Forward and backward passes of growing size run over made-up rows of the greatest length, before the engine and the optimizer's state are
there; what these will take is left free by arithmetic (`model.train.memory`). A GPU is tried until its memory is out or the step's rows are
all in; of a CPU, two small sizes say what a row takes, and more than `CPU_TOKENS` are never taken, for they gain nothing. All ranks take the
least that one of them found. The number is written down beside the training, so that one that is resumed on as many ranks cuts its batch,
and draws its dropout, as before.
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

from model.data.batch import Batch, move
from model.data.collate import collate
from model.data.directions import Directions
from model.data.layouts import Kind
from model.data.rows import MaskedRows
from model.data.shards import Rows
from model.families.config import ModelConfig
from model.train import memory
from model.train.distributed import World
from model.train.memory import CPU_TOKENS, MARGIN, Computing
from model.train.scoring import Scoring
from pipeline.core import storage
from pipeline.core.errors import ClozeError
from pipeline.core.processes import peak_memory, reset_peak_memory
from pipeline.dataset.schema import DatasetInfo

AUTO = "auto"
FILE = "_micro_batch.json"  # in the training's directory; a leading underscore: no part of the artifact
LOOKED_AT = 256  # rows whose predictions are counted
CPU_TRIED = 512  # tokens of the smaller of two sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is tried.

    Attributes:
        scoring: the network and its objectives, before an engine has them.
        model: its config.
        train: the rows of the training, of which the first say how many positions are predicted.
        info: of the dataset.
        layout, directions: as the training's batches have them.
        zero: the ZeRO stage that the training will have.
        checkpointing: whether layers are computed again.
        offload: whether the optimizer's state lies in the machine's memory.
        averaging: whether an average of the weights is kept.
    """

    scoring: Scoring
    model: ModelConfig
    train: Rows
    info: DatasetInfo
    layout: Kind
    directions: Directions
    zero: int
    checkpointing: bool
    offload: bool = False
    averaging: bool = False

    def batch(self, rows: int) -> Batch:
        """So many rows of the greatest length."""
        made = full_rows(self.info, rows, _predictions(self.train, self.info))
        samples = np.arange(rows)
        return collate(
            made,
            pad=self.info.special.pad,
            longest=self.info.length,
            layout=self.layout,
            directions=self.directions,
            samples=samples,
        )

    def run(self, rows: int, device: torch.device) -> None:
        """Forward and backward, leaving nothing behind."""
        batch = move(self.batch(rows), device)
        counts = torch.ones(len(self.scoring.names), device=device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self.scoring.train()
            loss, _ = self.scoring.uncompiled(batch, counts)
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.scoring.parameters():
            parameter.grad = None

    def beside(self, world: World) -> float:
        """Bytes that the training will take beside what a trial does: moments, copies, buckets."""
        how = Computing(
            device="cuda" if world.device.type == "cuda" else "cpu",
            bf16=self.scoring.precision != "fp32",
            checkpointing=self.checkpointing,
            offload=self.offload,
            averaging=self.averaging,
        )
        of = memory.training_memory(
            self.model, self.info.length, 0, ranks=world.size, zero=self.zero, accumulating=True, how=how
        )
        here = memory.training_memory(self.model, self.info.length, 0, accumulating=True, how=replace(how, averaging=False))
        return max(0.0, of.training - of.process - (here.training - here.process - here.moments))


def micro_batch(trial: Trial, rank_batch: int, world: World, path: str) -> int:
    """The rows that fit, on all ranks; at most `rank_batch`.

    Args:
        path: the training's directory.

    Raises:
        ClozeError: not even one row fits.
    """
    key = f"{world.size} ranks, {world.device.type}, {trial.info.length} tokens, ZeRO {trial.zero}, {trial.scoring.precision}"
    key += ", layers again" if trial.checkpointing else ""
    key += ", averaged" if trial.averaging else ""
    known = world.first_decides(lambda: _known(path, key))
    if known:
        return min(known, rank_batch)
    find = _on_gpu if world.device.type == "cuda" else _on_cpu
    trial.scoring.to(world.device)
    found = world.least(find(trial, rank_batch, world))
    if found < 1:
        raise ClozeError(
            f"not one row of {trial.info.length} tokens fits the memory beside the model; use --zero 3 on more GPUs,"
            " --activation-checkpointing, or shorter rows"
        )
    if world.first:
        storage.write_bytes(str(Path(path) / FILE), (json.dumps({"for": key, "micro_batch": found}) + "\n").encode())
    return found


def _known(path: str, key: str) -> int:
    """What was found before, of a training that is resumed; 0: nothing."""
    try:
        content = json.loads((Path(path) / FILE).read_text(encoding="utf-8"))
        return int(content["micro_batch"]) if content["for"] == key else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _on_gpu(trial: Trial, rank_batch: int, world: World) -> int:
    """Doubles the rows until memory is out, and says how many fit under the margin."""
    free, _ = torch.cuda.mem_get_info(world.device)
    room = MARGIN * (free + torch.cuda.memory_reserved(world.device)) - trial.beside(world)

    def peak(rows: int) -> float | None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)
        try:
            trial.run(rows, world.device)
        except torch.cuda.OutOfMemoryError:
            for parameter in trial.scoring.parameters():
                parameter.grad = None
            return None
        finally:
            torch.cuda.empty_cache()
        return float(torch.cuda.max_memory_reserved(world.device))

    return grown(peak, room, rank_batch)


def grown(peak: Callable[[int], float | None], room: float, most: int) -> int:
    """The rows that fit into `room` bytes, at most `most`; from 8 on a multiple of 8, where these are fewer.

    Args:
        peak: what so many rows take at their peak; None: more than there is.
    """
    measured: dict[int, float] = {}
    rows, out = 1, most + 1
    while rows <= most:
        found = peak(rows)
        if found is None or found > room:
            out = rows
            break
        measured[rows] = found
        rows = min(2 * rows, most) if rows < most else most + 1
    if not measured:
        return 0
    if out > most:
        return most
    *before, largest = sorted(measured)
    fitting = largest
    if before:
        a_row = (measured[largest] - measured[before[-1]]) / (largest - before[-1])
        if a_row > 0:
            fitting = min(out - 1, largest + int((room - measured[largest]) / a_row))
    return fitting if fitting < 8 else fitting - fitting % 8


def _on_cpu(trial: Trial, rank_batch: int, world: World) -> int:
    """What a row takes, from two sizes and from arithmetic, whichever is more; then what the memory that is free has room for."""
    most = min(rank_batch, max(1, CPU_TOKENS // trial.info.length))
    small = min(most, max(1, CPU_TRIED // trial.info.length))
    how = Computing(device="cpu", bf16=trial.scoring.precision != "fp32", checkpointing=trial.checkpointing)
    a_row = memory.activation_bytes(trial.model, trial.info.length, how, rows=small) / small
    first, second = (_cpu_peak(trial, rows) for rows in (small, 2 * small))
    if first is not None and second is not None:
        a_row = max(a_row, (second - first) / small)
    room = MARGIN * _free_memory() / _local_ranks(world) - trial.beside(world)
    return max(0, min(most, int(room / a_row)))


def _cpu_peak(trial: Trial, rows: int) -> float | None:
    """The process's peak while it runs so many rows; None: the kernel does not tell."""
    if not reset_peak_memory():
        return None
    trial.run(rows, torch.device("cpu"))
    return float(peak_memory())


def _free_memory() -> float:
    """Bytes that this machine, or the control group that we are in, still has."""
    found = float(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return min(found, float(limit) - used) if limit != "max" else found
    except (OSError, ValueError):
        return found


def _local_ranks(world: World) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world.size)))


def _predictions(train: Rows, info: DatasetInfo) -> int:
    """The most positions that one of the first rows predicts, of a full row."""
    rows = np.arange(min(len(train), LOOKED_AT))
    found = train.take(rows, np.zeros_like(rows))
    share = float((found.counts / np.maximum(found.lengths, 1)).max(initial=0.0))
    return max(1, min(info.length - 2, round(share * info.length)))


def full_rows(info: DatasetInfo, rows: int, predictions: int) -> MaskedRows:
    """Rows of the greatest length that say nothing: their first positions are predicted."""
    whole = np.full(rows, info.length, np.int64)
    return MaskedRows(
        ids=np.full(rows * info.length, info.special.unk, np.int64),
        lengths=whole,
        segment_start=whole // 2 if info.pair_task else whole,
        pair_labels=np.full(rows, 0 if info.pair_task else -100, np.int64),
        positions=np.tile(np.arange(1, predictions + 1), rows),
        replacements=np.full(rows * predictions, info.special.mask, np.int64),
        counts=np.full(rows, predictions, np.int64),
        documents=np.arange(rows).astype(np.uint64),
        sentences=np.zeros(rows, np.int64),
        boundaries=np.zeros(rows if info.packed else 0, np.int64),
        boundary_counts=np.ones(rows, np.int64) if info.packed else None,
    )
