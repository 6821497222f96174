"""The ranks of one machine: processes of ours, each with a pipe through which it tells of itself.

They start in sessions of their own and die with this process (they ask the kernel for it). Output goes to `_logs/` in the artifact's
directory.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from flows.launchers.hanging import Hangs
from flows.launchers.protocol import Event, Told
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.processes import PARENT_PID, MemoryWatch
from pipeline.core.pulse import PULSE_FD, Watched
from pipeline.core.worker import EVENTS_FD

# A training step allocates and frees hundreds of megabytes. By default glibc gives them back to the kernel and takes them again,
# which clears every page anew: a seventh of a BERT-mini's step. Keep them, and ask for large pages: a fifth less time together.
_KEEP_MEMORY = "glibc.malloc.mmap_threshold=8589934592:glibc.malloc.trim_threshold=17179869184:glibc.malloc.hugetlb=1"
RANK_ENVIRONMENT = {  # of every rank, where the user's own says nothing else
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "GLIBC_TUNABLES": _KEEP_MEMORY,
    # Threads that wait for work look out for it for a millisecond, then sleep: those that slept at once made a BERT-tiny's step a
    # quarter longer, those that never sleep take cores that other processes could use.
    "GOMP_SPINCOUNT": "20000",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # batches of many lengths would leave a GPU's memory in pieces
}


class Ranks:
    """The processes of one job on this machine, by their numbers among all machines' ranks."""

    def __init__(self, worker: str, job_file: str, environments: Sequence[Mapping[str, str]], logs: Path) -> None:
        """Args: environments: of each rank; see `rank_environments`."""
        self.worker, self.job_file, self.environments, self.logs = worker, job_file, environments, logs
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: set[int] = set()  # those whose end was told
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Watched] = {}
        self._hangs: Hangs | None = None  # until one is found
        self._memory = MemoryWatch()

    def start(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        for environment in self.environments:
            rank = int(environment["RANK"])
            self._selector.register(self._start(rank, environment), selectors.EVENT_READ, (rank, bytearray()))
        self._hangs = Hangs(
            [process.pid for process in self.processes.values()],
            list(self._watched.values()),
            [self._log(rank) for rank in self.processes],
            elsewhere=any(int(environment["WORLD_SIZE"]) > len(self.environments) for environment in self.environments),
        )

    @property
    def over(self) -> bool:
        """Whether all have ended, and that was told."""
        return len(self._ended) == len(self.processes)

    def events(self, seconds: float) -> list[Told]:
        """See `Started.events`."""
        told: list[Told] = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout=seconds):
                self._read(key, told)
        else:
            time.sleep(min(seconds, 0.05))  # they have closed their pipes and only have to end
        for rank, process in self.processes.items():
            if rank not in self._ended and process.poll() is not None:
                self._drain(rank, told)
                self._ended.add(rank)
                told.append((rank, self._end(rank, process.returncode)))
        if self._hangs is not None and not self._ended and not self._stopping and (hang := self._hangs.look()) is not None:
            self._hangs = None
            told.append((list(self.processes)[hang.rank], {"hung": hang.sentence, "step": hang.step}))
        return told

    def _end(self, rank: int, code: int) -> Event:
        """The event of a rank that has ended."""
        short = code == -signal.SIGKILL and self._memory.short()
        return {"ended": code, "ours": self._stopping, "short": short, "step": self._watched[rank].look().step}

    def stop(self, grace: float) -> None:
        """See `Started.stop`."""
        living = [process for process in self.processes.values() if process.poll() is None]
        self._stopping = True
        if grace > 0:
            for process in living:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            for process in living:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in self.processes.values():  # the session may hold helpers that outlive the rank itself
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

    def _start(self, rank: int, environment: Mapping[str, str]) -> IO[bytes]:
        read, write = os.pipe()
        self._watched[rank] = watched = Watched()
        with self._log(rank).open("ab") as output:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-m", self.worker, self.job_file],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **RANK_ENVIRONMENT,
                    **os.environ,
                    **environment,
                    EVENTS_FD: str(write),
                    PULSE_FD: str(watched.number),
                    PARENT_PID: str(os.getpid()),
                },
                pass_fds=(write, watched.number),
                start_new_session=True,
            )
        os.close(write)
        os.set_blocking(read, False)
        return os.fdopen(read, "rb", buffering=0)

    def _log(self, rank: int) -> Path:
        return self.logs / f"rank{rank}.log"

    def _read(self, key: selectors.SelectorKey, told: list[Told]) -> bool:
        """Append what has come through a rank's pipe; whether there may be more."""
        rank, pending = key.data
        chunk = key.fileobj.read(1 << 16)  # type: ignore[union-attr]
        if chunk is None:
            return False
        if not chunk:
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            return False
        pending += chunk
        *lines, rest = bytes(pending).split(b"\n")
        pending[:] = rest
        told += [(rank, json.loads(line)) for line in lines]
        return True

    def _drain(self, rank: int, told: list[Told]) -> None:
        """All that is left in the pipe of a rank that has ended; a helper of its may hold the other end still."""
        for key in [key for key in self._selector.get_map().values() if key.data[0] == rank]:
            while self._read(key, told):
                pass


def rank_environments(execution: Execution, count: int) -> list[dict[str, str]]:
    """What torch.distributed reads from the environment, for each of this machine's `count` ranks."""
    host, _, port = execution.master.rpartition(":")
    if port == "0":
        if execution.nodes > 1:
            raise UsageError(
                f"master ({execution.master}) needs a port when nodes is {execution.nodes}; pass --master HOST:PORT"
            )
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = str(probe.getsockname()[1])
    return [
        {
            "RANK": str(execution.node_rank * count + rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(execution.nodes * count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            **({"CUDA_VISIBLE_DEVICES": ",".join(execution.devices)} if execution.devices else {}),
        }
        for rank in range(count)
    ]
