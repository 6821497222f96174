"""One host's ranks as torchrun's workers: a rank that dies is started again with all others, a host that is lost is left out.

torchrun passes no pipes on, so each worker tells of itself in a file of its own, and writes its own log. What a worker of an earlier
generation failed of is nobody's concern once the next one goes on; a fault that would come again (bad usage, bad data) and a stop are,
and end torchrun here. How its last workers died, torchrun's own output says. A worker that hangs is found by its pulse, as everywhere
(`hanging.py`), and told; then the head ends this launch, and begins another where restarts are left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.launchers import network
from flows.launchers.hanging import LOOK_SECONDS, Hangs
from flows.launchers.protocol import LOST_SECONDS, Launch, Told
from flows.launchers.ranks import RANK_ENVIRONMENT
from pipeline.core.errors import BY_EXIT_CODE
from pipeline.core.processes import PARENT_PID
from pipeline.core.pulse import PULSE_FILES, Watched
from pipeline.core.worker import EVENTS_DIRECTORY, LOGS_DIRECTORY

MONITOR_SECONDS = 1.0  # between torchrun's looks at its workers
# how long a rendezvous waits for more hosts, once there are enough; a host that sends no sign of life for three times five is left out
SETTINGS = "last_call_timeout=10,join_timeout=300,keep_alive_interval=5,keep_alive_max_attempt=3"
_FILE = re.compile(r"rank(\d+)-(\d+)\.jsonl")
_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+) .*?exitcode\s*: (-?\d+) ", re.DOTALL)


class ElasticRanks:
    """As `ranks.Ranks`."""

    def __init__(self, launch: Launch, node: int, go: Mapping[str, Any], logs: Path) -> None:
        self.launch, self.node, self.go, self.logs = launch, node, go, logs
        self._events = tempfile.TemporaryDirectory(prefix="cloze-events-")
        self._places: dict[str, int] = {}  # file -> bytes that were read
        self._seen: dict[str, float] = {}  # file -> when it was there
        self._without: set[int] = set()  # nodes that are known to be lost
        self._failed: dict[int, dict[str, Any]] = {}  # rank -> what it failed of, that may pass
        self._process: subprocess.Popen[bytes] | None = None
        self._watched = [Watched() for _ in launch.ranks_of(node)]
        self._generation: list[int] = []  # the processes that `_hangs` looks after
        self._hangs: Hangs | None = None
        self._hung, self._next_look = False, 0.0
        self._final = self._stopping = self._told_end = False
        self._log = logs / f"torchrun{node}.log"

    def start(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "model.torchrun", *arguments(self.launch, self.node, self.go)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **RANK_ENVIRONMENT,
                    **os.environ,
                    **network.interface(self.go["hosts"], self.node),
                    **({"CUDA_VISIBLE_DEVICES": ",".join(self.launch.devices)} if self.launch.devices else {}),
                    EVENTS_DIRECTORY: self._events.name,
                    LOGS_DIRECTORY: str(self.logs),
                    PULSE_FILES: ":".join(watched.path for watched in self._watched),
                    PARENT_PID: str(os.getpid()),
                },
                start_new_session=True,
            )

    @property
    def over(self) -> bool:
        return self._told_end

    def events(self, seconds: float) -> list[Told]:
        """See `Started.events`."""
        deadline = time.monotonic() + seconds
        while not self._told_end:
            ended = self._process is not None and self._process.poll() is not None
            told = [*self._read(), *self._look_for_hangs()]
            if ended:
                told += self._ends()
            elif self._final:
                self.stop(0)
            if told or time.monotonic() >= deadline:
                return told
            time.sleep(0.1)
        return []

    def stop(self, grace: float) -> None:
        """See `Started.stop`. torchrun is frozen first, or it would start its workers anew."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._stopping = True
        workers = self._workers()
        if grace > 0:
            self._signal([process.pid], signal.SIGSTOP)
            self._signal(workers, signal.SIGTERM)
            deadline = time.monotonic() + grace
            while any(_lives(pid) for pid in workers) and time.monotonic() < deadline:
                time.sleep(0.1)
        self._signal([*workers, *self._workers(), process.pid], signal.SIGKILL)
        process.wait()

    def without(self, lost: Sequence[int]) -> None:
        """Nodes are lost: end the workers, who would wait for theirs. A generation that is younger than that has begun without them."""
        if set(lost) - self._without:
            self._without |= set(lost)
            born = max(self._seen.values(), default=0.0)
            if time.monotonic() > born + LOST_SECONDS:
                self._signal(self._workers(), signal.SIGKILL)

    def close(self) -> None:
        self.stop(0)
        self._events.cleanup()
        while self._watched:
            self._watched.pop().close()

    def _workers(self) -> list[int]:
        """The processes that torchrun has started and that live, the newest generation's."""
        assert self._process is not None
        found = []
        with suppress(OSError):
            for task in Path(f"/proc/{self._process.pid}/task").iterdir():
                found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    def _look_for_hangs(self) -> list[Told]:
        """A worker that does not go on, told once. One generation is watched: the workers that live now, once all have said who they are."""
        now = time.monotonic()
        if self._hung or self._stopping or now < self._next_look:
            return []
        self._next_look = now + LOOK_SECONDS
        beats = [watched.look() for watched in self._watched]
        processes = [beat.process for beat in beats]
        if len(set(processes)) < len(processes) or not set(processes) <= set(self._workers()):
            return []
        if processes != self._generation:
            self._generation = processes
            logs = [self.logs / f"rank{beat.rank}.log" for beat in beats]
            self._hangs = Hangs(processes, self._watched, logs, elsewhere=self.launch.nodes > 1)
        assert self._hangs is not None
        hang = self._hangs.look()
        if hang is None:
            return []
        self._hung = True
        return [(beats[hang.rank].rank, {"hung": hang.sentence, "step": hang.step})]

    @staticmethod
    def _signal(pids: Sequence[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _read(self) -> list[Told]:
        """What the workers have told. A failure that may pass is kept back."""
        told: list[Told] = []
        for path in sorted(Path(self._events.name).iterdir()):
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            rank, place = int(match[1]), self._places.get(path.name, 0)
            self._seen.setdefault(path.name, time.monotonic())
            content = path.read_bytes()[place:]
            whole = content[: content.rfind(b"\n") + 1]
            self._places[path.name] = place + len(whole)
            for line in whole.splitlines():
                event = json.loads(line)
                if "error" in event and event["exit_code"] not in BY_EXIT_CODE:
                    self._failed[rank] = event
                    continue
                self._final = self._final or "error" in event
                told.append((rank, event))
        return told

    def _ends(self) -> list[Told]:
        """What there is to tell once torchrun has ended: of its last workers."""
        assert self._process is not None
        self._told_end, code = True, self._process.returncode
        cause = _CAUSE.search(self._log.read_text(encoding="utf-8", errors="replace")) if code > 0 else None
        if cause is not None:
            rank, code = int(cause[1]), int(cause[2])
            why: list[Told] = [(rank, self._failed[rank])] if rank in self._failed else []
            return [*why, (rank, {"ended": code, "ours": self._stopping})]
        return [(rank, {"ended": code, "ours": self._stopping or self._final}) for rank in self.launch.ranks_of(self.node)]


def arguments(launch: Launch, node: int, go: Mapping[str, Any]) -> list[str]:
    """torchrun's."""
    assert launch.elastic is not None
    return [
        "--nnodes", f"{launch.elastic.nodes}:{launch.nodes}",
        "--nproc-per-node", str(launch.counts[node]),
        "--rdzv-id", launch.directory.rpartition("/")[2],
        "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"{go['host']}:{go['port']}",
        "--rdzv-conf", f"is_host={int(node == 0)},{SETTINGS}",
        "--local-addr", go["hosts"][node],
        "--max-restarts", str(launch.elastic.restarts),
        "--monitor-interval", str(MONITOR_SECONDS),
        "-m", launch.worker, launch.job,
    ]  # fmt: skip


def _lives(pid: int) -> bool:
    """Whether the process does something still: one that has ended may wait for a frozen parent."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False
