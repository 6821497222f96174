"""Beam's Flink runner: embedded in a job server of ours, or submitting to a cluster.

Both need Beam's job server, a Java program, which lives exactly as long as the stage (`supervisor`). Embedded, Flink runs inside of it,
and the Python workers come from a pool in the stage's process. With a cluster, each task manager asks the pool at the address
`worker_pool`, as it sees it, so that `localhost:50000` is the pool beside it.

A job that loses a worker fails. What is left of it is submitted again, so that no restart strategy has to be set in Flink, whose
batch jobs take none from Beam.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

import grpc

from pipeline.core import system_errors
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.processes import ending, free_ports, wait_for_port
from pipeline.engines import java
from pipeline.engines.base import Engine, WorkerLost
from pipeline.engines.monitored import run_monitored
from pipeline.engines.pool import DEATH_NOTICE_SECONDS, WorkerPool

DRIVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
LOG = "flink.log"
READY_SECONDS = "CLOZE_FLINK_TIMEOUT"  # environment: how long to wait for the job server
DEFAULT_READY_SECONDS = 120.0
JAVA_OPTIONS = "CLOZE_FLINK_JAVA_OPTS"  # environment: for the job server's Java
RETRIES = 3  # of a job whose worker, or task manager, has died
REST_SECONDS = 10.0
_LOGGER = logging.getLogger(__name__)


class FlinkEngine:
    """See `Engine`.

    Starts the job server when entered, and ends it when left, however that comes.
    """

    retries = RETRIES

    def __init__(self, execution: Execution, logs: Path) -> None:
        self.workers = execution.workers
        self._execution = execution
        self._log = logs / LOG
        self._token = f"cloze-{uuid.uuid4().hex[:8]}"  # opens the names of our jobs on a cluster
        self._stack = ExitStack()

    def __enter__(self) -> Engine:
        program, classpath = java.find_java(), java.flink_classpath(self._execution.beam_options)
        master = self._execution.flink_master
        with self._stack as stack:
            if master is None:
                self._pool: WorkerPool | None = stack.enter_context(WorkerPool())
                self._rest, self._worker_flags = None, self._worker_options(self._pool.address, self.workers)
            else:
                self._pool = None
                self._rest = rest_url(master)
                slots = slots_per_manager(self._rest, self.workers)
                self._worker_flags = self._worker_options(self._execution.worker_pool, slots)
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._server = stack.enter_context(
                JobServer(program, classpath, self._rest or "[local]", self._log, self._rest, self._token)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)

    @staticmethod
    def _worker_options(address: str, each: int) -> list[str]:
        # Beam deals processes in turn to the tasks of both steps of a pipeline, listing the units and doing them, as they happen
        # to start. With as many processes as tasks none does the work of two while another is idle.
        processes = 2 * each if each > 1 else 1
        return ["--environment_type=EXTERNAL", f"--environment_config={address}", f"--sdk_worker_parallelism={processes}"]

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.portable_runner import PortableRunner

        flags = [
            f"--job_endpoint=localhost:{self._server.port}",
            f"--job_name={self._token}-{name}",
            f"--parallelism={min(self.workers, units)}",
            *self._worker_flags,
            *self._execution.beam_options,
        ]
        pipeline = beam.Pipeline(runner=PortableRunner(), options=PipelineOptions(flags))
        construct(pipeline)
        # In a thread: the client would wait for ever for a job server that has died, and may not hear a signal.
        failure = run_monitored(pipeline, self._server.raise_if_ended, "cloze-flink")
        if failure is not None:
            self._raise(failure)

    def _raise(self, error: BaseException) -> None:
        """Tell a unit's own failure from the loss of who did it."""
        if system_errors.marked(str(error)) is not None or not isinstance(error, (RuntimeError, grpc.RpcError)):
            raise error
        _LOGGER.error("the job failed: %s", error)
        if self._pool is not None:
            time.sleep(DEATH_NOTICE_SECONDS)  # Flink may hear of a death before the pool does
            self._pool.raise_if_dead()
        self._server.raise_if_ended()
        cause = str(error).rpartition("failed in state ")[2].splitlines()[0][:300]
        raise WorkerLost(
            f"the Flink job ended as {cause}; its output is in {self._log}; run again to go on: what is finished is kept"
        )


class JobServer:
    """Beam's job server as a Java process under a supervisor; accepts jobs at localhost:`port` while it is entered."""

    def __init__(self, program: str, classpath: str, master: str, log: Path, rest: str | None, token: str) -> None:
        self._program, self._classpath, self._master, self._log = program, classpath, master, log
        self._rest, self._token = rest, token

    def __enter__(self) -> JobServer:
        for attempt in (1, 2):  # a chosen port may be taken before Java has it
            began = self._log.stat().st_size if self._log.exists() else 0
            self._start()
            seconds = float(os.environ.get(READY_SECONDS) or DEFAULT_READY_SECONDS)
            if wait_for_port(self.port, seconds, lambda: self._supervisor.poll() is None):
                return self
            code = self._supervisor.poll()
            self.__exit__(None, None, None)
            if code is None:
                raise ClozeError(
                    f"Beam's Flink job server was not ready after {seconds:g} seconds; its output is in {self._log}"
                    f" ({READY_SECONDS} sets how long to wait)"
                )
            with self._log.open("rb") as stream:
                stream.seek(began)
                told = stream.read().decode(errors="replace")
            if attempt == 2 or "BindException" not in told:
                raise _ended(code, told, self._log)
        raise AssertionError("unreachable")

    def _start(self) -> None:
        self.port, artifact_port = free_ports(2)
        directory = tempfile.mkdtemp(prefix="cloze-flink-")
        command = [
            self._program, f"-Djava.io.tmpdir={directory}", *os.environ.get(JAVA_OPTIONS, "").split(), "-cp", self._classpath, DRIVER,
            "--job-host", "localhost", "--job-port", str(self.port), "--artifact-port", str(artifact_port), "--expansion-port", "-1",
            "--artifacts-dir", f"{directory}/artifacts", "--flink-master", self._master,
        ]  # fmt: skip
        spec = {
            "command": command, "log": str(self._log), "directory": directory, "rest": self._rest, "job_prefix": self._token
        }  # fmt: skip
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "pipeline.engines.supervisor", json.dumps(spec)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(timeout=30)

    def raise_if_ended(self) -> None:
        """Raises: ClozeError: the job server is gone."""
        code = self._supervisor.poll()
        if code is not None:
            raise _ended(code, self._log.read_text(encoding="utf-8", errors="replace")[-4096:], self._log)


def _ended(code: int, told: str, log: Path) -> ClozeError:
    last = next((line.strip() for line in told.splitlines() if "Exception" in line or "Error" in line), "")
    if "UnsupportedClassVersionError" in told:
        return UsageError(f"Java is too old for Beam's Flink job server ({last}); set JAVA_HOME to Java 17 or 11")
    if "ClassNotFoundException" in told and DRIVER.rpartition(".")[2] in told:
        return UsageError(f"{java.CLASSPATH} holds no Beam Flink job server ({last}); name a jar or directory that does")
    return ClozeError(f"Beam's Flink job server {ending(code)}{f' ({last})' if last else ''}; its output is in {log}")


def rest_url(master: str) -> str:
    """`HOST:PORT`, with or without a scheme, as the URL of a cluster's REST interface.

    Raises:
        UsageError: there is no port.
    """
    found = re.fullmatch(r"(https?://)?([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d+)/?", master.strip())
    if found is None:
        raise UsageError(f"flink_master ({master}) must look like HOST:PORT, such as localhost:8081")
    return f"{found[1] or 'http://'}{found[2]}:{found[3]}"


def slots_per_manager(rest: str, wanted: int) -> int:
    """Slots of one task manager, which is how many Python workers it wants beside it.

    Raises:
        UsageError: nobody answers, or the cluster has no task manager or fewer slots than are wanted.
    """
    try:
        with urlopen(f"{rest}/overview", timeout=REST_SECONDS) as answer:
            overview = json.load(answer)
        managers, slots = int(overview["taskmanagers"]), int(overview["slots-total"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"no Flink cluster answers at {rest} ({error}); check flink_master, or start the cluster") from error
    if not managers or slots < wanted:
        raise UsageError(
            f"the Flink cluster at {rest} has {managers} task managers with {slots} slots, {wanted} workers are wanted;"
            " start more task managers, or lower --workers"
        )
    return max(1, slots // managers)
