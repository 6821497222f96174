"""Launcher for the ranks of this host: child processes, each with a pipe for its events.

Ranks start in sessions of their own, and the kernel kills them when this process dies. Their output
goes to `_logs/` in the artifact's directory.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cloze.core.accounts import open_unlinked
from cloze.core.errors import UsageError
from cloze.core.processes import HEARTBEAT_FD, PARENT_PID, HeartbeatReader, MemoryWatch, free_ports
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.core.stages.worker import EVENTS_FD, JOB, LOGS, local_directory
from cloze.flows.launch.hang_detection import HangDetector
from cloze.flows.launch.host_setup import FOREIGN, foreign_rank, rank_environments
from cloze.flows.launch.protocol import Event, Launcher, LaunchRequest, RankEvent, RankGroup

# Keep freed memory and use large pages. By default glibc returns the hundreds of megabytes that a
# training step frees, and the kernel clears every page again: 1/7 of a BERT-mini step. Together the
# settings save 1/5 of the time.
_KEEP_MEMORY = (
    "glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=17179869184:glibc.malloc.hu"
    "getlb=1"
)
RANK_ENVIRONMENT = {  # of every rank; the user's environment overrides it
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "GLIBC_TUNABLES": _KEEP_MEMORY,
    # Idle OpenMP threads spin for some microseconds, then sleep. Sleeping at once makes a small
    # model's step up to 2/3 longer; a millisecond gains nothing more, and where another program
    # needs a core, it holds back the thread that is waited for (benchmarks/README.md).
    "GOMP_SPINCOUNT": "1000",
    # batches of different lengths would fragment GPU memory
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


class LocalRanks:
    """Processes of one launch on this host, by global rank; see `protocol.RankGroup`."""

    def __init__(
        self,
        worker: str,
        job_file: str,
        environments: Sequence[Mapping[str, str]],
        logs: Path,
        report: Reporter = NULL_REPORTER,
    ) -> None:
        """Start the ranks.

        `environments`: environment variables of each rank; see `host_setup.rank_environments`.
        """
        self.worker, self.job_file, self.logs, self._report = worker, job_file, logs, report
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: set[int] = set()  # ranks whose end was reported
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, HeartbeatReader] = {}
        self._hangs: HangDetector | None = None  # None after the first detected hang
        self._memory = MemoryWatch()
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            for environment in environments:
                pipe, rank = self._start(environment), int(environment["RANK"])
                self._selector.register(pipe, selectors.EVENT_READ, (rank, bytearray()))
        except BaseException:
            self.close()
            raise
        self._hangs = HangDetector(
            [process.pid for process in self.processes.values()],
            list(self._watched.values()),
            [self._log(rank) for rank in self.processes],
            elsewhere=any(int(each["WORLD_SIZE"]) > len(environments) for each in environments),
        )
        self._report.processes({rank: process.pid for rank, process in self.processes.items()})

    @property
    def ranks(self) -> Sequence[int]:
        return list(self.processes)

    def host(self, rank: int) -> str | None:
        del rank
        return None

    @property
    def finished(self) -> bool:
        return len(self._ended) == len(self.processes)

    def events(self, seconds: float) -> list[RankEvent]:
        events: list[RankEvent] = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout=seconds):
                self._read(key, events)
        else:
            time.sleep(min(seconds, 0.05))  # all pipes are closed; the processes are exiting
        for rank, process in self.processes.items():
            if rank not in self._ended and process.poll() is not None:
                self._drain(rank, events)
                self._ended.add(rank)
                events.append((rank, self._end(rank, process.returncode)))
        if self._hangs is not None and not self._ended and not self._stopping:
            hang = self._hangs.check()
            if hang is not None and hang.goes_on:
                warning = f"rank {list(self.processes)[hang.rank]} {hang.sentence}"
                events.append((None, {"figures": {"warning": warning}}))
            elif hang is not None:
                self._hangs = None
                rank = list(self.processes)[hang.rank]
                events.append((rank, {"hung": hang.sentence, "step": hang.step}))
        return events

    def _end(self, rank: int, code: int) -> Event:
        out_of_memory = code == -signal.SIGKILL and self._memory.short()
        return {
            "ended": code,
            "ours": self._stopping,
            "short": out_of_memory,
            "step": self._watched[rank].read().step,
        }

    def stop(self, grace: float) -> None:
        running = [process for process in self.processes.values() if process.poll() is None]
        self._stopping = True
        if grace > 0:
            for process in running:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in self.processes.values():  # helper processes may outlive the rank
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        self.stop(0)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        while self._watched:
            self._watched.popitem()[1].close()
        self._report.processes({})

    def _start(self, environment: Mapping[str, str]) -> IO[bytes]:
        rank, (read_end, write_end) = int(environment["RANK"]), os.pipe()
        self._watched[rank] = watched = HeartbeatReader()
        with open(self._log(rank), "ab", opener=open_unlinked) as output:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-m", self.worker, self.job_file],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **RANK_ENVIRONMENT,
                    **os.environ,
                    **environment,
                    EVENTS_FD: str(write_end),
                    HEARTBEAT_FD: str(watched.number),
                    PARENT_PID: str(os.getpid()),
                },
                pass_fds=(write_end, watched.number),
                start_new_session=True,
            )
        os.close(write_end)
        os.set_blocking(read_end, False)
        return os.fdopen(read_end, "rb", buffering=0)

    def _log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def _read(self, key: selectors.SelectorKey, events: list[RankEvent]) -> bool:
        """Append the events in a rank's pipe; return whether more may follow."""
        rank, pending = key.data
        chunk = key.fileobj.read(1 << 16)  # type: ignore[union-attr]
        if chunk is None:
            return False
        if not chunk:
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            return False
        pending += chunk
        *lines, incomplete = bytes(pending).split(b"\n")
        pending[:] = incomplete
        events += [(rank, json.loads(line)) for line in lines]
        return True

    def _drain(self, rank: int, events: list[RankEvent]) -> None:
        """Read the rest of an ended rank's pipe, which a helper process may still hold open."""
        for key in [key for key in self._selector.get_map().values() if key.data[0] == rank]:
            while self._read(key, events):
                pass


class LocalLauncher(Launcher):
    """See `protocol.Launcher`."""

    def check(self, execution: Execution) -> None:
        if execution.nodes > 1:
            raise UsageError(
                f"nodes ({execution.nodes}) needs a launcher that reaches other hosts; add "
                f"--launcher ssh or slurm"
            )

    def start(self, work: LaunchRequest) -> RankGroup:
        build, foreign = work.build, foreign_rank()
        rank = 0 if foreign is None else foreign[0]
        job_file = build.file(LOGS, f"job-rank{rank}.json" if rank else JOB)
        work.job.write(job_file)
        master, gpu_ids = ("127.0.0.1", free_ports(1)[0]), work.execution.gpu_ids
        environments = rank_environments(
            range(work.processes), work.processes, master, gpu_ids, work.token
        )
        if foreign is not None:
            local_world_size = os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
            variables = {name: os.environ[name] for name in FOREIGN}
            environments = [environments[0] | variables | {"LOCAL_WORLD_SIZE": local_world_size}]
        logs = local_directory(build.path) / LOGS
        return LocalRanks(work.worker, job_file, environments, logs, build.report)


LAUNCHER: Launcher = LocalLauncher()
