"""`python -m cloze.labs.kubernetes.progress LAUNCH`: the progress of a TrainJob, for `kubectl`.

It runs beside the agent of the first pod. Kubeflow Trainer takes progress from a pod if its feature
gate TrainJobStatus is on (KEP-2779): the pod then has an address, a token and a certificate. The
source is the event file of the agent, whose lines the coordinator reads, too. Trainer's address is
called at most once in `SECONDS`; a call that fails costs nothing but the newest figures.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.flows.launch.event_files import EventReader

URL = "KUBEFLOW_TRAINER_SERVER_URL"  # variables that Trainer sets
CERTIFICATE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
SECONDS, CALL_SECONDS = 15.0, 10.0  # between calls, which Trainer limits; for one of them
MOST_METRICS, MOST_CHARACTERS, MOST_LEFT = 256, 64, 2**31 - 1  # limits of the custom resource


@dataclass(slots=True)
class Progress:
    """A training's figures as last reported by rank 0.

    Attributes:
        done: finished steps; `total`: all of them, None as long as it is unknown.
        first: time in seconds and steps when this process saw its first step, to tell the speed.
        metrics: numbers of the last log entry.
    """

    done: float = 0
    total: float | None = None
    first: tuple[float, float] | None = None
    metrics: Mapping[str, Any] | None = None

    def see(self, events: Iterable[Mapping[str, Any]], now: float) -> bool:
        """Take the agent's new events; return whether any was of progress. `now` in seconds."""
        own = [event for event in events if event.get("rank") == 0]
        for event in own:
            if "progress" in event:
                self.done, self.total = event["progress"][:2]
                self.first = self.first or (now, self.done)
            self.metrics = event.get("metrics", self.metrics)
        return any("progress" in event or "metrics" in event for event in own)

    def status(self, now: float) -> dict[str, Any]:
        """Return the body of a call: Trainer's `ProgressStatus`. `now` in seconds since 1970."""
        at = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        status: dict[str, Any] = {"lastUpdatedTime": at}
        if self.total:
            status["progressPercentage"] = max(0, min(100, int(100 * self.done / self.total)))
            began, steps = self.first or (now, self.done)
            if self.done > steps:
                left = (self.total - self.done) * (now - began) / (self.done - steps)
                status["estimatedRemainingSeconds"] = max(0, min(MOST_LEFT, round(left)))
        numbers = [
            {"name": name[:MOST_CHARACTERS], "value": str(value)[:MOST_CHARACTERS]}
            for name, value in (self.metrics or {}).items()
            if isinstance(value, (int, float)) and name != "time"
        ]
        return {"trainerStatus": {**status, "metrics": numbers[:MOST_METRICS]}}


def send(status: Mapping[str, Any]) -> None:
    """Send a status to Trainer.

    Raises:
        OSError: it does not take it.
    """
    token = Path(os.environ[TOKEN]).read_text("utf-8").strip()  # Kubernetes renews it
    call = urllib.request.Request(
        os.environ[URL],
        data=json.dumps(status).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=os.environ[CERTIFICATE])
    urllib.request.urlopen(call, timeout=CALL_SECONDS, context=context).close()


def follow(directory: str, goes_on: Callable[[], bool]) -> None:
    """Send the progress of the launch in `directory` until `goes_on` is false."""
    events, progress, failed = EventReader(storage.join(directory, "node0")), Progress(), ""
    while goes_on():
        time.sleep(SECONDS)
        try:
            if progress.see(events.read(), time.time()):
                send(progress.status(time.time()))
            failed = ""
        except Exception as error:  # the training must not notice
            if (reason := f"{type(error).__name__}: {error}") != failed:
                print(f"cloze: Kubeflow Trainer has no progress of this job ({reason})", flush=True)
            failed = reason


if __name__ == "__main__":
    agent = os.getppid()
    follow(sys.argv[1], lambda: os.getppid() == agent)
