"""The writer of a run's status file, which `cloze.flows.run.status_file` describes and reads.

Also how a run or a node ended, in words: state and message for its record.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core import accounts, storage
from cloze.core.accounts import open_record
from cloze.core.artifacts import lock
from cloze.core.errors import is_stop
from cloze.core.secrets import redact
from cloze.flows.graph import schedule, stages
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.run import status_file

RETAINED_RECORDS = 50  # records per run
SECONDS = 1.0
RENEW_SECONDS, LOOK_SECONDS = 30.0, 2.0


class RunStatusFile:
    """Writer of the record of one start. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        run: str,
        steps: Iterable[PlannedNode],
        parameters: Mapping[str, Any],
        config: Mapping[str, Any],
        begun: Iterable[str] = (),
        source: str | None = None,
    ) -> None:
        """Write the first record, and delete all but the newest 50.

        Args:
            config: values from which the run can be started again.
            begun: fingerprints of the nodes that earlier starts have begun.
            source: the run's source, see `cloze.flows.run.source`.
        """
        earlier = status_file.records_in(directory)
        self.id, number = uuid.uuid4().hex, 1 + max(map(status_file.number_of, earlier), default=0)
        self.path = directory / status_file.DIRECTORY / f"{number}-{self.id[:8]}.json"
        self.content: dict[str, Any] = {
            "id": self.id,
            "run": run,
            "state": status_file.RUNNING,
            **lock.process_identity(),
            "owner": _owner(directory, earlier),
            "account": accounts.user_name(),
            "started": time.time(),
            "ended": None,
            "error": None,
            "parameters": redact(parameters),
            "config": redact(config),
            "prefect": None,
            "begun": sorted(begun),
            "source": source,
            "nodes": {
                step.name: {
                    "stage": step.node.stage,
                    "section": step.node.section,
                    "state": status_file.WAITING,
                    "why": step.reason,
                    "artifact": storage.absolute(step.artifact),
                    "inputs": [storage.absolute(path) for path in step.inputs.values()],
                    "after": list(step.node.depends_on),
                }
                for step in steps
            },
        }
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._written = 0.0
        self.write()
        threading.Thread(target=self._renew, name="cloze-status", daemon=True).start()
        for old in status_file.records_in(directory)[:-RETAINED_RECORDS]:
            old.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the file atomically. A full disk is ignored, so that the run can continue."""
        with self._lock, suppress(OSError):
            self._written = time.monotonic()
            content = json.dumps(self.content).encode()
            storage.write_bytes(str(self.path), content, opener=open_record)

    def _renew(self) -> None:
        is_asked = False  # a second signal may end a process at once
        while not self._ended.wait(LOOK_SECONDS):
            if not is_asked and self._cancel_mark().partition("\n")[2] == status_file.SELF:
                is_asked = True
                os.kill(os.getpid(), signal.SIGTERM)
            is_due = time.monotonic() - self._written > RENEW_SECONDS
            if is_due and self.path.exists():  # not after the run's directory was removed
                self.write()

    def update(self, **values: Any) -> None:
        self.content |= values
        self.write()

    def node(self, name: str, state: str, **values: Any) -> None:
        """Set the state of a node; `started` and `ended` follow from it."""
        node = self.content["nodes"][name]
        node |= {"state": state, **redact(values)}
        if state == status_file.RUNNING:  # an earlier attempt's progress is not this one's
            for key in ("ended", "error", "done", "total", "figures", "part", "begun"):
                node.pop(key, None)
            node["started"] = time.time()
        elif state not in (status_file.WAITING, status_file.QUEUED):
            node["ended"] = time.time()
            node.pop("seconds_left", None)
        if state != status_file.CACHED or time.monotonic() - self._written > SECONDS:
            self.write()

    def facts(self, name: str, **values: Any) -> None:
        self.content["nodes"][name] |= values
        self.write()

    def progress(
        self, name: str, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        """Record the progress of a node; written at most once a second."""
        node = self.content["nodes"][name]
        if node["state"] == status_file.QUEUED:  # the scheduler has started it
            node["state"] = status_file.RUNNING
            node.pop("begun", None)
        step = figures.get("step")
        part = step if isinstance(step, str) else None  # the parts of a stage count separately
        if node.get("part") != part or "begun" not in node:
            node |= {"part": part, "begun": [time.time(), done]}
        values = {
            key: value for key, value in figures.items() if isinstance(value, (int, float, str))
        }
        node |= {"done": done, "total": total, "unit": unit}
        node["figures"] = {**node.get("figures", {}), **values}
        seconds, finished = time.time() - node["begun"][0], done - node["begun"][1]
        is_known = total is not None and finished > 0 and seconds >= 0  # the clock may be set back
        left = ((total or 0.0) - done) * seconds / finished if is_known else None
        node["seconds_left"] = None if left is None else round(left, 1)
        if time.monotonic() - self._written > SECONDS:
            self.write()

    @property
    def cancel_requested(self) -> bool:
        """Report whether another process has asked to cancel this run."""
        return status_file.cancel_mark(self.path).exists()

    @property
    def cancelled_by(self) -> str:
        """Return the other account that has asked to cancel this run; empty: none."""
        by = self._cancel_mark().partition("\n")[0]
        return "" if by == self.content["account"] else by

    def _cancel_mark(self) -> str:
        with suppress(OSError, UnicodeDecodeError):
            return status_file.cancel_mark(self.path).read_text(encoding="utf-8")
        return ""

    def end(self, state: str, error: str | None = None) -> None:
        self._ended.set()
        status_file.end_nodes(self.content, status_file.STOPPED)
        if by := self.cancelled_by:
            error = f"cancelled by {by}: {error or 'stopped'}"
        self.update(state=state, ended=time.time(), error=redact(error))
        with suppress(OSError):
            status_file.cancel_mark(self.path).unlink()


def _owner(directory: Path, earlier: Sequence[Path]) -> str:
    """Return the account that a run belongs to: that of its first start."""
    before = status_file.read_file(earlier[-1]) if earlier else None
    return (before or {}).get("owner") or accounts.owner(directory) or accounts.user_name()


def final_state(error: BaseException | None) -> str:
    if error is None:
        return status_file.FINISHED
    return status_file.CANCELLED if is_stop(error) else status_file.FAILED


def message(
    error: BaseException | None, step: PlannedNode | None = None, state: str = ""
) -> str | None:
    """Return what happened; None: nothing.

    `step`, `state`: node that was interrupted, and its state until then.
    """
    if error is None:
        return None
    if not isinstance(error, KeyboardInterrupt):
        return schedule.describe_error(error)
    if state in (status_file.QUEUED, status_file.WAITING):
        return "stopped while it waited, before it started; run again"
    if step is not None and stages.stage(step.node.stage).parallel:
        return "stopped before the first checkpoint; run again"
    return "stopped; run again"
