"""Which steps of one run were begun, over all its tries: a forced step is begun anew once, and a later try goes on with it.

A try is one start of the same run: Prefect's retry of a flow run, or the plain functions that go on where Prefect was lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

from pipeline.core import storage

DIRECTORY = "_tries"  # in the run's directory: a small file a flow run, until it has made all


class BegunSteps:
    """The fingerprints of the steps that were begun. With a path they are kept in that file, for tries by other processes."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.fingerprints: set[str] = set()
        self._lock = Lock()
        if path is not None and path.exists():
            self.fingerprints.update(json.loads(path.read_text(encoding="utf-8")))

    def add(self, fingerprint: str) -> None:
        """A step is begun: its directory is claimed, and what was there before is gone."""
        with self._lock:
            self.fingerprints.add(fingerprint)
            if self.path is None:
                return
            storage.write_bytes(str(self.path), json.dumps(sorted(self.fingerprints)).encode())

    def forget(self) -> None:
        """The run is complete; whoever starts it again means it anew."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
