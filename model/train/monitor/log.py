"""The log of a training: metrics since the last line, three files, and reports.

  metrics.jsonl   one JSON object per logged step
  skipped.jsonl   one per step skipped for a non-finite gradient, with the step's rows
  cost.jsonl      one per checkpoint, with the totals of `cloze.model.train.monitor.cost`

A resume truncates them to its step, so no step is missing or repeated.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.artifacts import checkpoints
from cloze.core.errors import naming
from cloze.core.processes import peak_memory
from cloze.core.stages.stage import METRICS_LOG, Reporter
from cloze.model.train.distributed import World
from cloze.model.train.resume import state
from cloze.model.train.spec.train_spec import TrainSpec

SKIPPED, COST = "skipped.jsonl", "cost.jsonl"
GB = 1e9
REPORT_SECONDS = 1.0

log = logging.getLogger(__name__)


def memory(device: torch.device) -> dict[str, float]:
    """Return this process's peak memory in GB: resident, and allocated on its GPU."""
    peaks = {"memory_gb": round(peak_memory() / GB, 3)}
    if device.type == "cuda":
        peaks["gpu_memory_gb"] = round(torch.cuda.max_memory_allocated(device) / GB, 3)
    return peaks


class JsonlLog:
    """A file of JSON lines, each with its `step`. Only rank 0 writes.

    An object store cannot append: there the lines stay in memory and are written as a whole with
    each checkpoint.
    """

    def __init__(self, path: str, world: World) -> None:
        self.path, self._writes, self._fence = path, world.is_rank_zero, world.fence
        self._local = storage.is_local(path)
        self._file = Path(storage.filesystem(path)[1])
        self._lines: list[str] | None = None  # lines for the object store, once read
        self._written = 0  # number of lines in the object store

    def truncate(self, step: int) -> int:
        """Drop every line after `step` and all damaged lines; return their number."""
        if not self._writes:
            return 0
        old_text = self._text()
        # A resumed training writes the lines after its checkpoint again.
        lines = old_text.splitlines()
        retained = [line for line in lines if _step(line) <= step]
        new_text = "".join(f"{line}\n" for line in retained)  # the last line may lack its newline
        if new_text != old_text:
            with self._fence.locked():
                storage.write_bytes(self.path, new_text.encode())
        if not self._local:
            self._lines, self._written = new_text.splitlines(keepends=True), len(retained)
        return len(lines) - len(retained)

    def add(self, line: Mapping[str, Any]) -> None:
        if not self._writes:
            return
        text = json.dumps(line) + "\n"
        if not self._local:
            if self._lines is None:
                self._lines = self._text().splitlines(keepends=True)
            self._lines.append(text)
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with (
            naming(self.path),
            self._fence.locked(),
            open(self._file, "a", encoding="utf-8", opener=open_unlinked) as stream,
        ):
            stream.write(text)

    def read(self) -> list[dict[str, Any]]:
        """Return all undamaged lines."""
        return [
            json.loads(line) for line in self._text().splitlines() if _step(line) < float("inf")
        ]

    def last(self) -> dict[str, Any]:
        """Return the newest line, or an empty dict."""
        return next(iter(self.read()[-1:]), {})

    def sync(self) -> None:
        """Flush the lines, before a checkpoint relies on them. Any thread may call it."""
        if not self._writes:
            return
        if self._local:
            if self._file.exists():
                with open(self._file, "ab", opener=open_unlinked) as stream:
                    os.fsync(stream.fileno())
        elif self._lines is not None and len(self._lines) > self._written:
            # A copy: this is the thread of a save, and training goes on adding lines.
            lines = list(self._lines)
            storage.write_bytes(self.path, "".join(lines).encode())
            self._written = len(lines)

    def _text(self) -> str:
        if self._lines is not None:
            return "".join(self._lines)
        try:
            return storage.read_at_once(self.path).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


def _step(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


class TrainingReporter:
    """Log lines and reports of one rank; only rank 0 writes and reports.

    Args:
        where: returns the newest step, and the last step or None.
    """

    def __init__(
        self,
        training: TrainSpec,
        world: World,
        report: Reporter,
        where: Callable[[], tuple[int, int | None]],
    ) -> None:
        self._training, self._report, self._where = training, report, where
        self._first = world.is_rank_zero
        self.metrics = JsonlLog(storage.join(training.path, METRICS_LOG), world)
        self.skipped_steps = JsonlLog(storage.join(training.path, SKIPPED), world)
        self.costs = JsonlLog(storage.join(training.path, COST), world)
        self._reported_at = 0.0  # time of the last progress report

    def resume(self, step: int, pending: bool) -> int:
        """Drop the lines after `step` and an unfinished one; return their number.

        The other lines are reported again.
        """
        dropped = self.metrics.truncate(step - pending)
        self.skipped_steps.truncate(step)
        self.costs.truncate(step)
        if self._first:
            for record in self.metrics.read():  # a kill may have come between a line and its report
                self._report.metrics(record)
                self._alarms(record)
            # A kill may also have come between a checkpoint and its report.
            for path in state.milestone_checkpoints(
                self._training.path, self._training.checkpoints.milestones
            ).values():
                self._report.checkpoint(
                    checkpoints.parse_step(path), storage.join(self._training.path, path)
                )
        return dropped

    def costs_at(self, step: int) -> dict[str, Any] | None:
        """Return the newest line of cost.jsonl for a checkpoint; None: there is none."""
        lines = reversed(self.costs.read())
        return next((line for line in lines if line["step"] == step), None)

    def report_progress(self, figures: Mapping[str, Any]) -> None:
        """Report the progress, with additional metrics or messages."""
        if self._first:
            self._reported_at = time.monotonic()
            self._report.progress(*self._where(), "steps", figures)

    def report_progress_throttled(self) -> None:
        """Report the progress unless it was reported within the last second."""
        if time.monotonic() - self._reported_at > REPORT_SECONDS:
            self.report_progress({})

    def message(self, note: str, kind: str = "note") -> None:
        log.warning("%s", note)
        self.report_progress({kind: note})

    def log(self, line: Mapping[str, Any]) -> None:
        """Write and report a log line, with its warnings."""
        self.metrics.add(line)
        if self._first:
            self._report.metrics(line)
            for sentence in self._alarms(line):
                self.message(sentence, "warning")
        self.report_progress(
            {name: value for name, value in line.items() if name not in ("step", "time")}
        )

    def checkpoint(self, step: int) -> None:
        """Report that the checkpoint of `step` is complete, if it is a milestone."""
        if self._first and step in self._training.checkpoints.milestones:
            path = storage.join(self._training.path, state.step_path(step))
            self._report.checkpoint(step, path)

    def sync(self) -> None:
        """Flush the log files to disk."""
        for file in (self.metrics, self.skipped_steps, self.costs):
            file.sync()

    def _alarms(self, line: Mapping[str, Any]) -> Sequence[str]:
        """Return the warnings for a log line, including lines of earlier sessions."""
        check = self._training.logging.check_line
        return () if check is None else check(line)
