"""`run.profile_steps`: `torch.profiler` over several steps of training, on rank 0.

  _logs/profile/trace.json.gz     for ui.perfetto.dev or chrome://tracing
  _logs/profile/operations.txt    table of the slowest operations, by input shape

Tracing slows training by about a tenth, does not change its result, and is not part of a
fingerprint.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from cloze.core import storage
from cloze.core.humanize import agree
from cloze.core.stages.worker import LOGS
from cloze.model.train.distributed import World

DIRECTORY, TRACE, TABLE = f"{LOGS}/profile", "trace.json.gz", "operations.txt"
WARMUP_STEPS = 5  # steps that allocate, compile, and meet the first shapes
ROWS = 30  # of the table


class Profiler:
    """Traces steps after a warm-up on rank 0, and writes the profile."""

    def __init__(self, steps: int | None, path: str, world: World) -> None:
        """Prepare a profiler. Args: steps: steps to trace, or None. path: the artifact's path."""
        self._steps = steps if steps is not None and world.is_rank_zero else 0
        self._left = self._steps + WARMUP_STEPS if self._steps else 0
        self._directory, self._device = storage.join(path, DIRECTORY), world.device
        self._running: profile | None = None

    @property
    def active(self) -> bool:
        """True while steps remain to be traced."""
        return self._left > 0

    def stepped(self, step: int) -> str | None:
        """Count step `step` (from 1); return a message when the profile is written."""
        self._left -= 1
        if self._left == self._steps:
            cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
            activities = [ProfilerActivity.CPU, *cuda]
            self._running = profile(activities=activities, record_shapes=True, profile_memory=True)
            self._running.start()
        return None if self._left else self._write(step, self._steps)

    def close(self, step: int) -> str | None:
        """Write the steps traced so far if training ends early; return a message."""
        if not self._left:
            return None
        traced, self._left = self._steps - self._left, 0
        if traced > 0:
            return self._write(step, traced)
        if self._running is not None:
            self._running.stop()
        return f"nothing was profiled: training ended after step {step}, and {WARMUP_STEPS} warm up"

    def _write(self, step: int, steps: int) -> str:
        """Stop tracing after step `step`, the last of `steps`, and write trace and table."""
        profiler = self._running
        assert profiler is not None
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
        profiler.stop()
        sort_key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        report = profiler.key_averages(group_by_input_shape=True).table(sort_key, row_limit=ROWS)
        storage.make_dirs(self._directory)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / TRACE
            profiler.export_chrome_trace(str(file))
            storage.write_bytes(storage.join(self._directory, TRACE), file.read_bytes())
        table = storage.join(self._directory, TABLE)
        storage.write_bytes(table, report.encode())
        return f"profiled {agree(f'{steps} steps')} from step {step + 1 - steps} on: {table}"
