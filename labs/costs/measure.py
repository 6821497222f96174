"""Measures the latency and energy of an encoder, alone or in alternation with the champion's.

Every pair of passes is one of each model, and every second pair is in the other order: load of the
machine hits both, and their ratio keeps none of it.
"""

from __future__ import annotations

import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.costs.limits import OWN, THEIRS, TIMES, quantile, ratios
from cloze.labs.costs.stage import CELL, METRICS_FILE, NOTES, LatencyConfig, describe
from cloze.model import checkpoint, hardware
from cloze.model.families.models import load_backbone
from cloze.model.families.pretraining import encode
from cloze.model.tasks.files import write_json
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import Precision, autocast, place, resolve

WARM, FEWEST = 3, 10  # passes before timing; timed ones at least
BUSY = 0.5  # load per core, above which a note says so
POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Energy of the processor packages (RAPL), of all programs together and without GPUs.

    Attributes:
        absent: why there is none; empty: it is measured.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        files = sorted(root.glob("*-rapl:?/energy_uj"))
        self._files = [file for file in files if os.access(file, os.R_OK)]
        reason = "root alone reads the counters" if files else "there are no counters"
        self.absent = "" if self._files else f"energy is not measured: {reason} in {root}"

    def read(self) -> list[int]:
        """Return the counters in microjoules, which restart at their range."""
        return [int(file.read_text()) for file in self._files]

    def since(self, before: list[int]) -> int:
        ranges = (file.with_name("max_energy_range_uj") for file in self._files)
        pairs = zip(self.read(), before, ranges, strict=True)
        return sum(new - old + (new < old and int(path.read_text())) for new, old, path in pairs)


def run(config: LatencyConfig, build: BuildContext) -> StageResult:
    """Measure every combination of length, batch size and threads.

    Raises:
        UsageError: the device does not compute in the precision.
        DataError: a checkpoint is missing or damaged.
    """
    device = init_distributed(build.execution).device
    precision, on_cpu = resolve(config.precision, device), device.type == "cpu"
    meter = EnergyMeter()
    roles = {OWN: "checkpoint", THEIRS: "champion"}
    loaded = {
        name: checkpoint.load_input(build, build.inputs[role])
        for name, role in roles.items()
        if role in build.inputs
    }
    cores = len(os.sched_getaffinity(0))
    longest = min(own.model.max_position_embeddings for own in loaded.values())
    lengths = dict.fromkeys(min(length, longest) for length in config.lengths)
    threads = dict.fromkeys(config.thread_counts or (1, cores)) if on_cpu else [1]
    notes = [meter.absent] if meter.absent else []
    if max(config.lengths) > longest:
        notes.append(f"lengths above {longest} are cut to it: the models read no more")
    if on_cpu and max(threads) > cores:
        notes.append(f"{max(threads)} threads share {cores} cores")
    if (load := os.getloadavg()[0]) > BUSY * cores:
        notes.append(
            f"{load:.1f} programs shared {cores} cores before: times are longer than on a quiet "
            f"machine, ratios to another model are not"
        )
    encoders = {
        name: place(load_backbone(own.model, own.state).encoder, device, precision)
        for name, own in loaded.items()
    }
    vocab_size = min(own.model.vocab_size for own in loaded.values())
    cells: list[dict[str, Any]] = []
    combinations = list(product(lengths, config.batch_sizes, threads))
    for number, (length, rows, count) in enumerate(combinations):
        build.report.progress(number, len(combinations), "combinations", {})
        torch.set_num_threads(count)
        ids = torch.randint(1, vocab_size, (rows, length), device=device)
        cell = _measure(config, encoders, ids, precision, meter)
        cells.append({**dict(zip(CELL, (length, rows, count), strict=True)), **cell})
    if noisy := [cell for cell in cells if "latency_ratio" in cell and _is_open(cell)]:
        notes.append(
            f"too noisy to tell the two apart at {', '.join(map(describe, noisy))}: give more "
            f"passes or seconds"
        )
    state, cpu = loaded[OWN].state.values(), hardware.cpu_info().get("model name", "")
    summary = {
        "parameters": sum(tensor.numel() for tensor in state),
        "bytes": sum(tensor.nbytes for tensor in state),
        "precision": precision,
        "device_name": cpu if on_cpu else torch.cuda.get_device_name(device),
        NOTES: notes,
    }
    write_json(build.file(METRICS_FILE), {**summary, "cells": cells})
    brief = [{key: cell[key] for key in cell if not key.endswith(TIMES)} for cell in cells]
    return StageResult(rows=len(cells), summary={**summary, "cells": brief})


def _is_open(cell: dict[str, Any]) -> bool:
    low, high = cell["latency_ratio_interval"]
    return bool(low <= 1 <= high)


@torch.inference_mode()
def _measure(
    config: LatencyConfig,
    encoders: dict[str, torch.nn.Module],
    ids: torch.Tensor,
    precision: Precision,
    meter: EnergyMeter,
) -> dict[str, Any]:
    """Return the times of each model in milliseconds, and their quantiles, ratio and energy."""
    batch = {"token_type_ids": torch.zeros_like(ids)}
    times: dict[str, list[float]] = {name: [] for name in encoders}
    energy = dict.fromkeys(encoders, 0)

    def once(name: str) -> float:
        before, begin = meter.read(), time.perf_counter()
        encode(encoders[name], ids, batch).flatten()[0].item()  # waits for a GPU
        seconds = time.perf_counter() - begin
        energy[name] += meter.since(before)
        return 1e3 * seconds

    with autocast(precision, ids.device.type):
        for name in [*encoders] * WARM:
            once(name)
        energy, end = dict.fromkeys(encoders, 0), time.perf_counter() + config.seconds * len(times)
        for turn in range(config.passes):
            if turn >= FEWEST and time.perf_counter() > end:
                break
            for name in [*encoders][:: -1 if turn % 2 else 1]:
                times[name].append(once(name))
    found = {
        "passes": len(times[OWN]),
        "latency_ms": quantile(times[OWN], 0.5),
        "latency_ms_interval": quantile(times[OWN], 0.5, 0.95),
        "latency_p99_ms": quantile(times[OWN], 0.99),
        **{f"{name}_{TIMES}": [round(value, 4) for value in own] for name, own in times.items()},
    }
    if not meter.absent:
        found["energy_mj"] = energy[OWN] / 1e3 / len(times[OWN]) / len(ids)  # of a sequence
    if THEIRS in times:
        found["champion_ms"] = quantile(times[THEIRS], 0.5)
        found["latency_ratio"] = quantile(ratios(found), 0.5)
        found["latency_ratio_interval"] = quantile(ratios(found), 0.5, 0.95)
    return found
