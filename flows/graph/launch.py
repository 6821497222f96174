"""Run a stage in processes of its own, one a rank, and bring its progress, outcome and errors back.

The processes start in sessions of their own and die with this one (they ask the kernel for it). On a stop
(SIGTERM, Ctrl-C, a cancelled flow) the ranks get SIGTERM and `execution.grace_seconds` to save a checkpoint. When one rank
fails, dies or hangs, the others are ended too, so nothing waits for a peer that will never answer. A rank that something else killed
is what is told: its peers only say that it is gone. A rank that SIGTERM ended before it could heed it was asked to stop, and so are all.
Output goes to `_logs/` in the artifact's directory.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from flows.graph.hanging import Hang, Hangs
from pipeline.core.config import StageConfig
from pipeline.core.errors import BY_EXIT_CODE, ClozeError, Stopped, UsageError
from pipeline.core.execution import Execution
from pipeline.core.processes import PARENT_PID, MemoryWatch, ending
from pipeline.core.pulse import PULSE_FD, Watched
from pipeline.core.stage import Build, Outcome, Stage
from pipeline.core.worker import EVENTS_FD, Job
from pipeline.core.worker import LOGS as LOGS
from pipeline.core.worker import local_directory as local_directory

PEER_SECONDS = 5.0  # for the other ranks to notice that one has failed
JOB = "job.json"  # in LOGS: how the stage was last begun, for `cloze resume`
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


def in_process(stage: Stage, reference: str) -> Callable[[StageConfig, Build], Outcome]:
    """A `Stage.run` that runs the stage by its package's worker, with `execution.processes` ranks if it is parallel.

    Args:
        reference: `module:STAGE`, for the worker to load.
    """

    def run(config: StageConfig, build: Build) -> Outcome:
        job = Job(
            stage=stage.name,
            reference=reference,
            config=config.model_dump(mode="json"),
            path=build.path,
            inputs=dict(build.inputs),
            execution=build.execution.model_dump(mode="json"),
            fingerprint=build.fingerprint,
            build_id=build.build_id,
        )
        ranks = _Ranks(job, f"{stage.worker}.worker", build, build.execution.processes if stage.parallel else 1)
        return ranks.run()

    return run


class _Ranks:
    """The processes of one job."""

    def __init__(self, job: Job, worker: str, build: Build, count: int) -> None:
        self.job, self.worker, self.build, self.count = job, worker, build, count
        self.processes: list[subprocess.Popen[bytes]] = []
        self.final: dict[int, dict[str, Any]] = {}  # rank -> its last event
        self.first_failed: int | None = None  # the others are ended for its sake
        self.killed: int | None = None  # the first rank that a signal ended which we did not send
        self.grace = build.execution.least_grace
        self.watched: list[Watched] = []
        self.hangs: Hangs | None = None
        self.memory = MemoryWatch()
        minutes = build.execution.timeout_minutes
        self.deadline = None if minutes is None else time.monotonic() + 60.0 * minutes
        self.logs = local_directory(build.path) / LOGS

    def run(self) -> Outcome:
        node = self.build.execution.node_rank
        job_file = self.build.file(LOGS, f"job-node{node}.json" if node else JOB)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.job.write(job_file)
        selector = selectors.DefaultSelector()
        try:
            for rank, environment in enumerate(rank_environments(self.build.execution, self.count)):
                stream = self._start(rank, environment, job_file)
                selector.register(stream, selectors.EVENT_READ, (rank, bytearray()))
            first = node * self.count
            self.build.report.processes({first + rank: process.pid for rank, process in enumerate(self.processes)})
            self.hangs = Hangs(
                [process.pid for process in self.processes],
                self.watched,
                [self._log(rank) for rank in range(self.count)],
                self.build.execution.nodes > 1,
            )
            self._watch(selector)
        except BaseException as error:
            self._stop(0 if isinstance(error, ClozeError) and error.died else self.grace)  # who waits for it heeds no signal
            with suppress(Exception):  # the ranks' last words do not matter more than why they were ended
                self._drain(selector)
            asked = not isinstance(error, Exception)  # KeyboardInterrupt and Prefect's termination; anything else is a fault
            if asked and any(process.returncode == Stopped.exit_code for process in self.processes):
                raise Stopped(self._stopped_sentence()) from None
            raise
        finally:
            self._stop(0)
            self.build.report.processes({})
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            selector.close()
            steps = [watched.look().step for watched in self.watched]
            for watched in self.watched:
                watched.close()
        try:
            return self._outcome()
        except ClozeError as error:
            error.step = max(steps, default=0) or None
            raise

    def _start(self, rank: int, environment: Mapping[str, str], job_file: str) -> IO[bytes]:
        read, write = os.pipe()
        watched = Watched()
        self.watched.append(watched)
        with self._log(rank).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", self.worker, job_file],
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
        self.processes.append(process)
        return os.fdopen(read, "rb", buffering=0)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Until every rank has closed its pipe; ends the rest soon after the first failure."""
        deadline: float | None = None
        while selector.get_map():
            for key, _ in selector.select(timeout=0.5):
                self._read(selector, key)
            self._look_for_failures()
            self._look_whether_to_stop()
            if self.first_failed is None and self.hangs is not None and (hang := self.hangs.look()) is not None:
                raise self._hung(hang)
            if self.first_failed is not None and deadline is None:
                stopping = self._failure(self.first_failed) in (Stopped.exit_code, -signal.SIGTERM)
                if self._failure(self.first_failed) == -signal.SIGTERM:  # it had not begun to heed it
                    self._signal(signal.SIGTERM)
                deadline = time.monotonic() + (self.grace if stopping else PEER_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                break
            if all(p.poll() is not None for p in self.processes) and not selector.select(timeout=0):
                break
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                # one that has told its outcome and closed its pipe only has to end; on a busy machine that takes a while
                process.wait(timeout=self.grace if deadline is None else 0.1)
        self._look_for_failures()

    def _look_whether_to_stop(self) -> None:
        """Raises KeyboardInterrupt where the run was asked to end, ClozeError where the stage has had its time."""
        if self.build.report.stop_asked():
            raise KeyboardInterrupt
        if self.deadline is not None and time.monotonic() > self.deadline:
            minutes = self.build.execution.timeout_minutes
            raise ClozeError(
                f"{self.job.stage} took longer than timeout_minutes ({minutes:g}) and was stopped; give it more, or run again to go on"
            )

    def _failure(self, rank: int) -> int:
        """The exit code of a rank that has failed: its process's, or the one it told, for it may hang after that. 0: none."""
        return self.processes[rank].poll() or int(self.final.get(rank, {}).get("exit_code", 0))

    def _look_for_failures(self) -> None:
        """Note who failed first, and who was killed first. Only before we send signals of our own.

        A rank that aborts after another one failed was not killed: libraries abort when a peer is gone.
        """
        failed = [rank for rank in range(len(self.processes)) if self._failure(rank)]
        failed.sort(key=lambda rank: self.processes[rank].returncode == -signal.SIGABRT)
        if failed and self.first_failed is None:
            self.first_failed = failed[0]
        for rank in failed:
            code = self.processes[rank].returncode
            dead = code is not None and code < 0 and code != -signal.SIGTERM
            told = rank in self.final  # it died while it ended
            if dead and not told and self.killed is None and (code != -signal.SIGABRT or rank == self.first_failed):
                self.killed = rank

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        rank, pending = key.data
        chunk = key.fileobj.read(1 << 16)  # type: ignore[union-attr]
        if chunk is None:
            return
        if not chunk:
            selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
            return
        pending += chunk
        *lines, rest = bytes(pending).split(b"\n")
        pending[:] = rest
        for line in lines:
            event = json.loads(line)
            if "progress" in event:
                if rank == 0:
                    self.build.report.progress(*event["progress"])
            elif "metrics" in event:
                if rank == 0:
                    self.build.report.metrics(event["metrics"])
            elif "checkpoint" in event:
                if rank == 0:
                    self.build.report.checkpoint(*event["checkpoint"])
            elif "grace" in event:
                if self.build.execution.grace_seconds is None:
                    self.grace = max(self.grace, float(event["grace"]))
                    self.build.report.grace(self.grace)
            elif "records" in event:
                if rank == 0:
                    self.build.report.records(event["records"])
            else:
                self.final[rank] = event

    def _drain(self, selector: selectors.BaseSelector) -> None:
        for _ in range(100):
            ready = selector.select(timeout=0) if selector.get_map() else []
            if not ready:
                return
            for key, _ in ready:
                self._read(selector, key)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def _stop(self, grace: float) -> None:
        """SIGTERM to every rank that lives, then, after `grace` seconds, SIGKILL to its whole session."""
        living = [process for process in self.processes if process.poll() is None]
        if grace > 0:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + grace
            for process in living:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in self.processes:  # the session may hold helpers that outlive the rank itself
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _outcome(self) -> Outcome:
        # A rank that has told its outcome is done, even where we ended it because a busy machine took long to let it go.
        done = {rank for rank, event in self.final.items() if "outcome" in event}
        codes = [0 if rank in done else process.returncode for rank, process in enumerate(self.processes)]
        if self.killed is not None:
            raise self._death(self.killed)
        if self.first_failed is not None and codes[self.first_failed] == -signal.SIGTERM:
            raise Stopped(self._stopped_sentence(f"{self.job.stage} was stopped (SIGTERM); run again to go on"))
        if any(codes):
            errors = [self.final[rank] for rank in sorted(self.final) if "error" in self.final[rank]]
            errors.sort(key=lambda event: event["exit_code"] not in BY_EXIT_CODE)
            if Stopped.exit_code in codes and not [e for e in errors if e["exit_code"] not in (4,)]:
                raise Stopped(self._stopped_sentence())
            if errors:
                event = errors[0]
                hint = "" if event["exit_code"] in BY_EXIT_CODE else f" (log: {self.logs})"
                raise BY_EXIT_CODE.get(event["exit_code"], ClozeError)(event["error"] + hint)
            rank = self.first_failed if self.first_failed is not None else next(r for r, code in enumerate(codes) if code)
            raise self._death(rank)
        event = self.final.get(0, {})
        if "outcome" not in event:
            raise ClozeError(f"{self.job.stage} ended without a result; its output is in {self.logs / 'rank0.log'}")
        self.build.counters.update(event["counters"])
        return Outcome(**event["outcome"])

    def _log(self, rank: int) -> Path:
        return self.logs / f"rank{self._number(rank)}.log"

    def _number(self, rank: int) -> int:
        """Of a rank of this machine, among all machines'."""
        return self.build.execution.node_rank * self.count + rank

    def _who(self, rank: int) -> str:
        execution = self.build.execution
        if self.count * execution.nodes == 1:
            return self.job.stage
        return f"{self.job.stage} rank {self._number(rank)}" + (f" on {socket.gethostname()}" if execution.nodes > 1 else "")

    def _death(self, rank: int) -> ClozeError:
        """How a rank ended that left no word."""
        code = self.processes[rank].returncode
        error = ClozeError(f"{self._who(rank)} {ending(code, self.memory.short())}; its output is in {self._log(rank)}")
        error.died = code < 0
        return error

    def _hung(self, hang: Hang) -> ClozeError:
        """A rank does not go on."""
        stacks = (
            f"the stacks of all ranks are in {self.logs}/rank*.log" if self.count > 1 else f"its stacks are in {self._log(0)}"
        )
        error = ClozeError(f"{self._who(hang.rank)} {hang.sentence}; {stacks}; run again to go on from the last checkpoint")
        error.step, error.died = hang.step, True
        return error

    def _stopped_sentence(self, otherwise: str | None = None) -> str:
        told = [event["error"] for event in self.final.values() if event.get("exit_code") == Stopped.exit_code]
        return told[0] if told else otherwise or f"{self.job.stage} was stopped and saved a checkpoint; run again to go on"


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
