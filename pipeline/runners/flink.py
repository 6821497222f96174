"""Beam's Flink runner: Java, class path, job server, and the cluster's REST interface."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc

from cloze.core import errors
from cloze.core.errors import ClozeError, UsageError
from cloze.core.processes import describe_exit, free_ports, wait_for_port
from cloze.core.stages.execution import BeamOptions
from cloze.pipeline.runners.base import CONTINUE, RunnerBackend, WorkerLostError
from cloze.pipeline.runners.beam_runner import run_monitored
from cloze.pipeline.runners.pool import (
    DEATH_NOTICE_SECONDS,
    WorkerPool,
    shared_secret,
    worker_params,
)

CLASSPATH = "CLOZE_FLINK_CLASSPATH"  # a jar or a directory of jars; separate several by `:`
# version of the downloaded job server; overridden by --beam-option=--flink_version=…
FLINK_VERSION = "1.19"
DOWNLOAD_SECONDS = 30.0  # timeout without new data


def find_java() -> str:
    """Return the Java program of `JAVA_HOME`, else the first in PATH.

    Raises:
        UsageError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if program is None:
        cause = f"JAVA_HOME ({home}) has no bin/java" if home else "no `java` is in PATH"
        raise UsageError(
            f"runner flink needs Java 11 or later, and {cause}; install a Java runtime, or set "
            f"JAVA_HOME to one"
        )
    return program


def flink_classpath(beam_options: Sequence[str] = ()) -> str:
    """Return the class path of Beam's Flink job server, by Beam's download if none is set.

    Raises:
        UsageError: the path in the environment does not exist, or the download fails.
    """
    if entries := os.environ.get(CLASSPATH):
        return ":".join(_jars(entry) for entry in entries.split(":") if entry)
    from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions
    from apache_beam.utils.subprocess_server import JavaJarServer

    options = PipelineOptions(list(beam_options)).view_as(FlinkRunnerOptions)
    is_version_set = any(option.startswith("--flink_version") for option in beam_options)
    version = options.flink_version if is_version_set else FLINK_VERSION
    previous_timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)  # Beam's download sets no timeout
    try:
        url = options.flink_job_server_jar or JavaJarServer.path_to_beam_jar(
            f":runners:flink:{version}:job-server:shadowJar"
        )
        return str(JavaJarServer.local_jar(url))
    except (RuntimeError, OSError, ValueError) as error:
        cause = str(error).split(". ")[0]
        raise UsageError(
            f"Beam's Flink job server could not be fetched ({cause}); set {CLASSPATH} to its jar, "
            f"or to a directory of jars"
        ) from error
    finally:
        socket.setdefaulttimeout(previous_timeout)


def _jars(entry: str) -> str:
    path = Path(entry.removesuffix("/*")).expanduser().resolve()
    if path.is_dir():
        if not any(path.glob("*.jar")):
            raise UsageError(
                f"{CLASSPATH} ({entry}) is a directory without jars; set it to the directory of "
                f"Beam's Flink runner"
            )
        return f"{path}/*"
    if not path.is_file():
        raise UsageError(
            f"{CLASSPATH} ({entry}) does not exist; set it to Beam's Flink job server jar, or a "
            f"directory of jars"
        )
    return str(path)


# The Flink backend: an embedded Flink in our own job server, or a cluster.

DRIVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
LOG = "flink.log"
READY_SECONDS = "CLOZE_FLINK_TIMEOUT"  # environment variable: timeout for the job server's start
DEFAULT_READY_SECONDS = 120.0
JAVA_OPTIONS = "CLOZE_FLINK_JAVA_OPTS"  # environment variable: Java options of the job server
RETRIES = 3  # of a job whose worker or task manager has died
REST_SECONDS = 10.0
_LOGGER = logging.getLogger(__name__)


class FlinkBackend(RunnerBackend):
    """Beam's Flink runner; see `RunnerBackend`. The job server lives as long as the context."""

    retries = RETRIES

    def __init__(self, execution: BeamOptions, logs: Path) -> None:
        super().__init__()
        self.workers = execution.workers
        self._execution = execution
        self._log = logs / LOG
        self._token = f"cloze-{uuid.uuid4().hex[:8]}"  # prefix of our job names on a cluster

    def __enter__(self) -> RunnerBackend:
        program, classpath = find_java(), flink_classpath(self._execution.beam_options)
        master = self._execution.flink_master
        with ExitStack() as stack:
            cluster_url = None if master is None else rest_url(master)
            if cluster_url is None:
                self._pool: WorkerPool | None = stack.enter_context(WorkerPool())
                address, params, workers = self._pool.address, self._pool.params, self.workers
            else:
                self._pool = None
                workers = slots_per_task_manager(cluster_url, self.workers)
                address, params = self._execution.worker_pool, worker_params(shared_secret())
            self._worker_flags = self._worker_options(address, params, workers)
            self._log.parent.mkdir(parents=True, exist_ok=True)
            self._server = stack.enter_context(
                JobServer(program, classpath, self._log, cluster_url, self._token)
            )
            self._stack = stack.pop_all()
        return self

    @staticmethod
    def _worker_options(address: str, params: dict[str, str], each: int) -> list[str]:
        # Beam assigns processes in turn to the tasks of both steps of a pipeline (listing the
        # units, processing them) in start order. With as many processes as tasks, none does the
        # work of two while another is idle.
        processes = 2 * each if each > 1 else 1
        pool = json.dumps({"url": address, "params": params})
        return [
            "--environment_type=EXTERNAL",
            f"--environment_config={pool}",
            f"--sdk_worker_parallelism={processes}",
        ]

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
        # In a thread: the client would wait forever for a dead job server, and may not react to
        # signals.
        failure = run_monitored(pipeline, self._server.raise_if_ended, "cloze-flink")
        if failure is not None:
            self._raise(failure)

    def _raise(self, error: BaseException) -> None:
        """Raise a unit's own error as it is, and the loss of a worker as `WorkerLostError`."""
        if errors.extract_message(str(error)) is not None or not isinstance(
            error, (RuntimeError, grpc.RpcError)
        ):
            raise error
        _LOGGER.error("the job failed: %s", error)
        if self._pool is not None:
            time.sleep(DEATH_NOTICE_SECONDS)  # Flink may notice a death before the pool does
            self._pool.raise_if_dead()
        self._server.raise_if_ended()
        state_lines = str(error).rpartition("failed in state ")[2].splitlines()
        cause = (state_lines or [type(error).__name__])[0][:300]
        raise WorkerLostError(
            f"the Flink job ended as {cause} (its output is in {self._log}); {CONTINUE}"
        )


class JobServer:
    """Beam's job server, a Java process under a supervisor; accepts jobs at localhost:`port`."""

    def __init__(
        self, program: str, classpath: str, log: Path, rest: str | None, token: str
    ) -> None:
        self._program, self._classpath, self._log = program, classpath, log
        self._rest, self._token = rest, token

    def __enter__(self) -> JobServer:
        text = os.environ.get(READY_SECONDS) or str(DEFAULT_READY_SECONDS)
        if not text.replace(".", "", 1).isdecimal():
            raise UsageError(f"{READY_SECONDS} ({text!r}) is no number of seconds")
        seconds = float(text)
        for attempt in (1, 2):  # another process may take the chosen port before Java does
            start = self._log.stat().st_size if self._log.exists() else 0
            self._start()
            if wait_for_port(self.port, seconds, lambda: self._supervisor.poll() is None):
                return self
            code = self._supervisor.poll()
            self.__exit__()
            if code is None:
                raise ClozeError(
                    f"Beam's Flink job server was not ready after {seconds:g} seconds (its output "
                    f"is in {self._log}); set {READY_SECONDS} to wait longer"
                )
            with self._log.open("rb") as stream:
                stream.seek(start)
                output = stream.read().decode(errors="replace")
            if attempt == 2 or "BindException" not in output:
                raise _ended(code, output, self._log)
        raise AssertionError("unreachable")

    def _start(self) -> None:
        self.port, artifact_port = free_ports(2)
        directory = tempfile.mkdtemp(prefix="cloze-flink-")
        command = [
            self._program, f"-Djava.io.tmpdir={directory}", *os.environ.get(JAVA_OPTIONS,
            "").split(), "-cp", self._classpath, DRIVER,
            "--job-host", "localhost", "--job-port", str(self.port), "--artifact-port",
            str(artifact_port), "--expansion-port", "-1",
            "--artifacts-dir", f"{directory}/artifacts", "--flink-master", self._rest or "[local]",
        ]  # fmt: skip
        spec = {
            "command": command, "log": str(self._log), "directory": directory, "rest": self._rest,
            "job_prefix": self._token
        }  # fmt: skip
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "cloze.pipeline.runners.flink_supervisor", json.dumps(spec)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __exit__(self, *error: object) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(timeout=30)

    def raise_if_ended(self) -> None:
        """Raise ClozeError if the job server has ended."""
        code = self._supervisor.poll()
        if code is not None:
            output = self._log.read_text(encoding="utf-8", errors="replace")[-4096:]
            raise _ended(code, output, self._log)


def _ended(code: int, output: str, log: Path) -> ClozeError:
    faults = (line.strip() for line in output.splitlines() if re.search("Exception|Error", line))
    fault = next(faults, "")
    if "UnsupportedClassVersionError" in output:
        return UsageError(
            f"Java is too old for Beam's Flink job server ({fault}); set JAVA_HOME to Java 17 or 11"
        )
    if "ClassNotFoundException" in output and DRIVER.rpartition(".")[2] in output:
        return UsageError(
            f"{CLASSPATH} has no Beam Flink job server ({fault}); set it to a jar or directory "
            f"with one"
        )
    return ClozeError(
        f"Beam's Flink job server {describe_exit(code)}{f' ({fault})' if fault else ''}; its "
        f"output is in {log}"
    )


def rest_url(master: str) -> str:
    """Return the URL of a cluster's REST interface from `HOST:PORT`, with or without a scheme.

    Raises:
        UsageError: there is no port.
    """
    match = re.fullmatch(r"(https?://)?([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d+)/?", master.strip())
    if match is None:
        raise UsageError(
            f"flink_master ({master}) must look like HOST:PORT, such as localhost:8081"
        )
    return f"{match[1] or 'http://'}{match[2]}:{match[3]}"


def slots_per_task_manager(rest: str, workers: int) -> int:
    """Return the slots of one task manager: the number of Python workers that it needs.

    Raises:
        UsageError: the cluster does not answer, or has too few slots for `workers`.
    """
    try:
        with urlopen(f"{rest}/overview", timeout=REST_SECONDS) as response:
            overview = json.load(response)
        managers, slots = int(overview["taskmanagers"]), int(overview["slots-total"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"no Flink cluster answers at {rest} ({error}); check flink_master, or start the "
            f"cluster"
        ) from error
    if not managers or slots < workers:
        raise UsageError(
            f"the Flink cluster at {rest} has {managers} task managers with {slots} slots, fewer "
            f"than the {workers} workers; start more task managers, or lower --workers"
        )
    return max(1, slots // managers)
