"""Node reports and build starts: `NodeReporter` forwards reports, `StartedNodes` survives retries.

An attempt is one start of the same run: Prefect's retry of a flow run, or the plain run that takes
over when Prefect is lost. A forced node is rebuilt once; later attempts continue that build.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

from cloze.core import storage
from cloze.core.stages.stage import Figures, Reporter
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.run.status_file import QUEUED
from cloze.flows.run.status_writer import RunStatusFile

DIRECTORY = "_attempts"  # in the run's directory: one file per flow run, until the run is complete


class StartedNodes:
    """Fingerprints of the nodes whose build has started, over all attempts of a run.

    `path`: file that other processes read and continue; None: memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.fingerprints: set[str] = set()
        self._lock = Lock()
        with suppress(OSError, ValueError, TypeError):  # without a whole one, all are forced again
            self.fingerprints.update(json.loads(path.read_bytes()) if path else ())

    def add(self, fingerprint: str) -> None:
        """Record that the build of a node has started and replaced the earlier artifact."""
        with self._lock:
            self.fingerprints.add(fingerprint)
            if self.path is None:
                return
            storage.write_bytes(str(self.path), json.dumps(sorted(self.fingerprints)).encode())

    def forget(self) -> None:
        """Delete the file of a complete run, so that the next start forces its nodes again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class NodeReporter(Reporter):
    """Reporter that writes a node's progress to the status file and forwards reports to listeners.

    `started`: the nodes that attempts of the run have started.
    """

    def __init__(
        self,
        record: RunStatusFile,
        step: PlannedNode,
        listeners: Sequence[Reporter],
        started: StartedNodes,
        stop: Event,
    ) -> None:
        self._record, self._step, self._listeners = record, step, listeners
        self._started, self._stop = started, stop
        for kind in ("metrics", "checkpoint", "processes"):
            setattr(self, kind, partial(self._forward, kind))

    def build_started(self, build_id: str) -> None:
        self._started.add(self._step.fingerprint)
        self._record.update(begun=sorted(self._started.fingerprints))
        self._forward("build_started", build_id)

    def progress(self, done: float, total: float | None, unit: str, figures: Figures) -> None:
        self._record.progress(self._step.name, done, total, unit, figures)
        self._forward("progress", done, total, unit, figures)

    def queued(self, reason: str) -> None:
        self._record.node(self._step.name, QUEUED, why=reason)

    def shutdown_time(self, seconds: float) -> None:
        self._record.facts(self._step.name, grace_seconds=seconds)
        self._forward("shutdown_time", seconds)

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def _forward(self, kind: str, *values: Any) -> None:
        for listener in self._listeners:
            getattr(listener, kind)(*values)
