"""Agents over ssh, on the hosts of a hostfile.

The connection is the agent's leash: it ends its ranks when the connection does, so none outlives who started it. Environment variables
that matter to a training go through the connection, never through a command line that others could see.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from flows.launchers import hostfile
from flows.launchers.by_agents import ByAgents
from flows.launchers.protocol import Elastic, Handle, Host, Launch, Launcher, Unanswered
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.processes import PARENT_PID
from pipeline.core.worker import EVENTS_FD, LOGS, local_directory

CONNECT_SECONDS, ANSWER_SECONDS = 10, 30
OPTIONS = (  # an interruption of less than a minute breaks no connection
    "BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=15", "ServerAliveCountMax=4", "LogLevel=ERROR",
)  # fmt: skip
PASSED = (  # environment variables that reach the other hosts
    "CLOZE_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH_*", "PYTORCH_*", "CUDA_LAUNCH_BLOCKING", "DS_*", "OMP_*", "MKL_*", "GOMP_*",
    "KMP_*", "GLIBC_TUNABLES", "AWS_*", "GOOGLE_*", "AZURE_*", "MLFLOW_*", "HF_*", "FSSPEC_*", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR",
)  # fmt: skip
KEPT = (EVENTS_FD, PARENT_PID, "CLOZE_SLOTS")  # but these are this host's own


class Ssh:
    """See `protocol.Starter`."""

    allots = False

    def check(self, execution: Execution) -> None:
        lines_of(execution)
        if shutil.which("ssh") is None:
            raise UsageError(
                f"launcher ({execution.launcher}) needs the command ssh, which is not installed; install an OpenSSH client"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        hosts = [_host(line, processes, execution) for line in lines_of(execution)]
        with ThreadPoolExecutor(max_workers=64) as pool:
            silent = dict(
                zip((host.name for host in hosts), pool.map(lambda host: _silence(host.name, execution), hosts), strict=True)
            )
        alive = [host for host in hosts if silent[host.name] is None]
        if len(alive) == len(hosts) or (execution.min_nodes is not None and len(alive) >= execution.min_nodes):
            return alive
        told = "; ".join(f"{name} ({why})" for name, why in silent.items() if why is not None)
        few = "" if execution.min_nodes is None else f" and min_nodes is {execution.min_nodes}"
        raise Unanswered(
            f"{len(hosts) - len(alive)} of {len(hosts)} hosts in {execution.hostfile} cannot be reached by ssh{few}: {told};"
            " mend that, or take them out of the file"
        )

    def elastic(self, execution: Execution) -> Elastic | None:
        del execution
        return None

    def start(self, launch: Launch, execution: Execution) -> Handle:
        return _Connections(launch, execution)


class _Connections:
    """An ssh client for each node; see `protocol.Handle`."""

    def __init__(self, launch: Launch, execution: Execution) -> None:
        self.launch = launch
        logs = local_directory(launch.artifact) / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        passed = json.dumps(passed_on(os.environ)).encode() + b"\n"
        self._outputs = [logs / f"agent{node}.log" for node in range(launch.nodes)]
        self._clients: list[subprocess.Popen[bytes]] = []
        for node, name in enumerate(launch.hosts):
            with self._outputs[node].open("wb") as output:
                client = subprocess.Popen(
                    [*ssh(execution), name, agent_command(launch, node, execution)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C is for us alone: we pass on what is to be done
                )
            self._clients.append(client)
            # its own thread: a host that takes nothing must not keep the others waiting
            threading.Thread(target=_give, args=(client, passed), daemon=True).start()

    def host(self, node: int) -> str:
        return self.launch.hosts[node]

    def waiting(self) -> str | None:
        return None

    def gone(self) -> Mapping[int, tuple[int, str]]:
        codes = {node: client.poll() for node, client in enumerate(self._clients)}
        return {node: (code, last_line(self._outputs[node])) for node, code in codes.items() if code is not None}

    def stop(self) -> None:
        for client in self._clients:
            with suppress(OSError, ValueError):
                assert client.stdin is not None
                client.stdin.close()
        for client in self._clients:
            with suppress(subprocess.TimeoutExpired):
                client.wait(timeout=2)
            client.kill()
            client.wait()


def lines_of(execution: Execution) -> list[hostfile.Line]:
    """The hosts that the options mean: all of the file, or its first `nodes`.

    Raises:
        UsageError: there is no hostfile, or it has too few hosts.
    """
    if execution.hostfile is None:
        raise UsageError(f"launcher ({execution.launcher}) needs a hostfile; pass --hostfile FILE with a host a line")
    lines = hostfile.read(execution.hostfile)
    wanted = execution.nodes if execution.nodes > 1 else len(lines)
    if wanted > len(lines):
        raise UsageError(
            f"nodes ({wanted}) are more than the {len(lines)} hosts of {execution.hostfile}; add hosts, or lower nodes"
        )
    if execution.min_nodes is not None and execution.min_nodes > wanted:
        raise UsageError(f"min_nodes ({execution.min_nodes}) must be at most the number of hosts ({wanted})")
    for line in lines[:wanted]:
        if line.slots is not None and execution.processes > line.slots:
            raise UsageError(
                f"processes ({execution.processes}) are more than host {line.name} has slots ({line.slots}); lower processes"
            )
    return lines[:wanted]


def _host(line: hostfile.Line, processes: int, execution: Execution) -> Host:
    """With as many ranks as it has slots, unless `processes` says more than one."""
    return Host(name=line.name, count=line.slots if line.slots is not None and execution.processes == 1 else processes)


def ssh(execution: Execution) -> list[str]:
    """The ssh command, before the host."""
    return ["ssh", *(word for option in (*execution.ssh_options, *OPTIONS) for word in ("-o", option))]


def agent_command(launch: Launch, node: int, execution: Execution) -> str:
    """What the host's shell is to run."""
    python = execution.remote_python or sys.executable
    path = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if os.environ.get("PYTHONPATH") else []
    return "exec " + shlex.join(["env", *path, python, "-m", "flows.launchers.agent", launch.directory, str(node), "--leash"])


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that reach the other hosts."""
    return {
        name: value
        for name, value in environment.items()
        if name not in KEPT and any(fnmatch.fnmatchcase(name, pattern) for pattern in PASSED)
    }


def _silence(name: str, execution: Execution) -> str | None:
    """Why a host cannot be reached; None: it can."""
    try:
        done = subprocess.run(
            [*ssh(execution), name, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {ANSWER_SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"ssh ended with exit code {done.returncode}"


def _give(client: subprocess.Popen[bytes], content: bytes) -> None:
    with suppress(OSError, ValueError):
        assert client.stdin is not None
        client.stdin.write(content)
        client.stdin.flush()


def last_line(path: Path) -> str:
    """What the log ends with; empty: nothing."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
    return ""


LAUNCHER: Launcher = ByAgents(Ssh())
