"""A Slurm job that is followed from outside, through its event files and the queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cloze.core import storage
from cloze.core.errors import BY_EXIT_CODE, ClozeError
from cloze.flows.launch import cancel_requests, event_files
from cloze.flows.launch.protocol import LaunchRequest, RankEvent
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm.cli import SlurmJobStatus

# seconds before the time limit, in addition to the grace period: for srun and the script
MARGIN_SECONDS = 30.0
FILES_SECONDS = 0.5


def start_files(place: str, job: str) -> list[str]:
    """Return the event files of a job's starts, in order."""
    directory = storage.join(place, job)
    names = storage.list_files(directory) if storage.exists(directory) else []
    return [
        storage.join(directory, start)
        for start in sorted({name.partition("/")[0].removesuffix(".jsonl") for name in names})
    ]


def start_file(place: str, job: str, start: int) -> str:
    """Return the event file of start number `start`, from 0, of a job."""
    return storage.join(place, job, f"{start:05d}")


class FollowedJob:
    """A job that is followed from outside; see `protocol.RankGroup`."""

    def __init__(self, work: LaunchRequest, place: str, job: str) -> None:
        self.ranks = (0,)
        self._path, self._place, self._job = work.build.path, place, job
        self._log = storage.join(place, f"{job}.log")
        self._start: str | None = None  # event file of the current start
        self._inbox: event_files.EventReader | None = None
        self._end: dict[str, Any] | None = None  # last event of the current start
        self._over = self._stopping = False
        self._status = SlurmJobStatus("PENDING")
        self._pause, self._next_poll = slurm_cli.POLL_SECONDS[0], 0.0
        self._waits = ""  # last reported reason for waiting

    @property
    def finished(self) -> bool:
        return self._over

    def host(self, rank: int) -> str | None:
        del rank
        return None  # the job's own coordinator names hosts

    def events(self, seconds: float) -> Sequence[RankEvent]:
        """See `protocol.RankGroup.events`. Raises the coordinator's error if the job has ended."""
        events = self._read()
        if not events and not self._over:
            time.sleep(min(seconds, FILES_SECONDS))
            waiting = self._poll()
            has_ended = self._status.ended  # taken before the last read, so no event is missed
            events = [*waiting, *self._read()]
            if has_ended and not events and not self._over:
                self._over = True
                raise self._error()
        return events

    def _read(self) -> list[RankEvent]:
        """Return the new events of the job's coordinator."""
        events: list[RankEvent] = []
        for event in self._next_events():
            if "begun" in event:
                self._end = None
            elif "outcome" in event:
                self._over = True
                events += [(0, event), (0, {"ended": 0, "ours": False})]
            elif "error" in event:
                self._end = event  # not final if the job is requeued
                self._pause, self._next_poll = slurm_cli.POLL_SECONDS[0], 0.0
                events += [(0, event)] if self._stopping else []
            else:
                events.append((0, event))
        return events

    def _next_events(self) -> list[dict[str, Any]]:
        """Return the next events, of the current start or else of the following one."""
        events = self._inbox.read() if self._inbox is not None else []
        if events:
            return events
        later = [
            start
            for start in start_files(self._place, self._job)
            if self._start is None or start > self._start
        ]
        if later:
            self._start, self._inbox = later[0], event_files.EventReader(later[0])
            return self._inbox.read()
        return []

    def _poll(self, at_once: bool = False) -> list[RankEvent]:
        """Poll Slurm with backoff; return a new reason for waiting as an event."""
        if time.monotonic() < self._next_poll and not at_once:
            return []
        status = slurm_cli.job_status(self._job)
        first, longest = slurm_cli.POLL_SECONDS
        self._pause = first if status != self._status else min(1.5 * self._pause, longest)
        self._next_poll = time.monotonic() + self._pause
        again = " again" if self._start is not None else ""
        if status is None:
            message = f"Slurm does not answer; job {self._job} is followed by its files"
        elif status.queued:
            reason = status.reason or status.state.lower()
            message = f"job {self._job} waits in the queue{again} ({reason})"
        else:
            message = ""
        self._status = status or self._status
        if message == self._waits:
            return []
        self._waits = message
        return [(None, {"waiting": message})] if message else []

    def _error(self) -> ClozeError:
        """Return the error of a job that ended without a result."""
        if self._end is not None and not self._end.get("again"):
            return BY_EXIT_CODE.get(self._end["exit_code"], ClozeError)(self._end["error"])
        outcome = {
            "CANCELLED": "was cancelled",
            "TIMEOUT": (
                "reached its time limit before it could stop; raise it with --slurm-option --time=…"
            ),
            "OUT_OF_MEMORY": (
                "used more memory than requested; request more with --slurm-option --mem=…"
            ),
        }.get(
            self._status.state,
            f"ended as {self._status.state}"
            + (f" ({self._status.reason})" if self._status.reason else ""),
        )
        when = "" if self._start is not None else " before it started"
        if self._end is not None:
            when = f" after it was requeued ({self._end['error']})"
        return ClozeError(
            f"Slurm's job {self._job} {outcome}{when}{self._last_line()}; its output is in "
            f"{self._log}"
        )

    def _last_line(self) -> str:
        """Return the last line of the job's output."""
        lines = (
            storage.read_text(self._log).strip().splitlines() if storage.exists(self._log) else []
        )
        return f": {lines[-1]}" if lines else ""

    def stop(self, grace: float) -> None:
        """See `protocol.RankGroup.stop`. A job that has reported its result ends by itself."""
        if self._over:
            return
        self._stopping = True
        # prevents requeueing, and works even if this process dies
        cancel_requests.request_cancel(self._path)
        self._poll(at_once=True)
        may_save = grace > 0 and not self._status.queued
        deadline = time.monotonic() + (grace + MARGIN_SECONDS if may_save else 0.0)
        while time.monotonic() < deadline and not self._status.ended:
            time.sleep(slurm_cli.POLL_SECONDS[0])
            self._poll(at_once=True)
        if not self._status.ended:
            slurm_cli.cancel(self._job)
        self._over = grace <= 0

    def close(self) -> None:
        """Do nothing: the job holds no resource of this process."""
