"""`--launcher ssh`: hostfiles as in DeepSpeed and MPI, and agents over ssh.

A hostfile has one line `HOST` or `HOST slots=N` per host; `#` begins a comment.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloze.core.accounts import open_unlinked
from cloze.core.errors import UsageError
from cloze.core.processes import PARENT_PID
from cloze.core.stages.execution import Execution, LaunchOptions
from cloze.core.stages.worker import EVENTS_FD, LOGS, local_directory
from cloze.flows.launch import site
from cloze.flows.launch.agent_launcher import AgentLauncher
from cloze.flows.launch.host_setup import last_line, run_command
from cloze.flows.launch.protocol import (
    AgentGroup,
    Host,
    HostsUnreachableError,
    Launcher,
    LaunchSpec,
)

_LINE = re.compile(
    r"(?P<name>[\w.\-:@\[\]]+)(?:\s+slots\s*=\s*(?P<slots>\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?"
)


@dataclass(frozen=True, slots=True)
class HostEntry:
    """Line of a hostfile. Attributes: slots: number of processes; None: not given."""

    name: str
    slots: int | None


def read(path: str) -> list[HostEntry]:
    """Return the hosts in the file's order.

    Raises:
        UsageError: the file is missing or names no host, a line is invalid, or a host is repeated.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"hostfile ({path}) cannot be read ({getattr(error, 'strerror', None) or error}); "
            f"check the path"
        ) from error
    hosts: dict[str, HostEntry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None or match["slots"] == "0" or content.startswith("-"):
            raise UsageError(
                f"hostfile ({path}) line {number} is {content!r}; write HOST, or HOST slots=4"
            )
        if match["name"] in hosts:
            raise UsageError(
                f"hostfile ({path}) line {number} names {match['name']} again; a host has one line,"
                f" with all its slots"
            )
        hosts[match["name"]] = HostEntry(
            match["name"], int(match["slots"]) if match["slots"] else None
        )
    if not hosts:
        raise UsageError(f"hostfile ({path}) names no host; write one a line")
    return list(hosts.values())


CONNECT_SECONDS, ANSWER_SECONDS = 10, 30
OPTIONS = (  # an interruption of less than a minute breaks no connection
    "BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "ServerAliveInterval=15",
    "ServerAliveCountMax=4", "LogLevel=ERROR",
)  # fmt: skip
FORWARDED = (  # environment variables that are passed to other hosts
    "CLOZE_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH_*", "PYTORCH_*", "CUDA_LAUNCH_BLOCKING",
    "DS_*", "OMP_*", "MKL_*", "GOMP_*",
    "KMP_*", "GLIBC_TUNABLES", "AWS_*", "GOOGLE_*", "AZURE_*", "MLFLOW_*", "HF_*", "FSSPEC_*",
    "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR",
)  # fmt: skip
HOST_SPECIFIC = (EVENTS_FD, PARENT_PID, "CLOZE_SLOTS_DIR")  # but these are specific to this host


class SshLauncher(AgentLauncher):
    """See `AgentLauncher`."""

    allocates_gpus = False

    def check(self, execution: Execution) -> None:
        lines_of(execution)
        if shutil.which("ssh") is None:
            raise UsageError(
                f"launcher ({execution.launcher}) needs the command ssh, which is not installed; "
                f"install an OpenSSH client"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        hosts = [_host(entry, processes, execution) for entry in lines_of(execution)]
        with ThreadPoolExecutor(max_workers=64) as pool:
            failures = list(pool.map(lambda host: _silence(host.name, execution), hosts))
        results = list(zip(hosts, failures, strict=True))
        reachable = [host for host, failure in results if failure is None]
        minimum = len(hosts) if execution.min_nodes is None else execution.min_nodes
        if len(reachable) >= minimum:
            return reachable
        reasons = "; ".join(f"{host.name} ({failure})" for host, failure in results if failure)
        needed = "" if execution.min_nodes is None else f" and min_nodes is {execution.min_nodes}"
        raise HostsUnreachableError(
            f"{len(hosts) - len(reachable)} of {len(hosts)} hosts in {execution.hostfile} cannot"
            f" be reached by ssh{needed}: {reasons}; check that `ssh HOST true` works without a"
            f" password, or remove these hosts from the hostfile"
        )

    def start_agents(self, launch: LaunchSpec, execution: Execution) -> AgentGroup:
        return _Connections(launch, execution)


class _Connections(AgentGroup):
    """One ssh client per node."""

    def __init__(self, launch: LaunchSpec, execution: Execution) -> None:
        self.launch = launch
        logs = local_directory(launch.artifact) / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        environment = json.dumps(forwarded_environment(os.environ)).encode() + b"\n"
        self._outputs = [logs / f"agent{node}.log" for node in range(launch.nodes)]
        self._clients: list[subprocess.Popen[bytes]] = []
        for node, name in enumerate(launch.hosts):
            with open(self._outputs[node], "wb", opener=open_unlinked) as output:
                client = subprocess.Popen(
                    [*ssh(execution), name, agent_command(launch, node)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C must reach this process only, which stops the agents
                    start_new_session=True,
                )
            self._clients.append(client)
            # a thread, because a host that reads nothing must not block the others
            threading.Thread(target=_give, args=(client, environment), daemon=True).start()

    def host(self, node: int) -> str:
        return self.launch.hosts[node]

    def exited(self) -> Mapping[int, tuple[int, str]]:
        codes = {node: client.poll() for node, client in enumerate(self._clients)}
        return {
            node: (code, last_line(self._outputs[node]))
            for node, code in codes.items()
            if code is not None
        }

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


def lines_of(execution: LaunchOptions) -> list[HostEntry]:
    """Return the hosts to use: all of the hostfile, or the first `nodes`.

    Raises UsageError: no hostfile, too few hosts, or too few slots.
    """
    if execution.hostfile is None:
        raise UsageError(
            f"launcher ({execution.launcher}) needs a hostfile; pass --hostfile FILE with a host a "
            f"line"
        )
    entries = read(execution.hostfile)
    count = execution.nodes if execution.nodes > 1 else len(entries)
    if count > len(entries):
        raise UsageError(
            f"nodes ({count}) are more than the {len(entries)} hosts of {execution.hostfile}; add "
            f"hosts, or lower nodes"
        )
    if execution.min_nodes is not None and execution.min_nodes > count:
        raise UsageError(
            f"min_nodes ({execution.min_nodes}) must be at most the number of hosts ({count})"
        )
    for entry in entries[:count]:
        if entry.slots is not None and execution.processes > entry.slots:
            raise UsageError(
                f"processes ({execution.processes}) are more than host {entry.name} has slots "
                f"({entry.slots}); lower processes"
            )
    return entries[:count]


def _host(line: HostEntry, processes: int, execution: LaunchOptions) -> Host:
    """Return the host with as many ranks as slots, unless `processes` is above one."""
    count = line.slots if line.slots is not None and execution.processes == 1 else processes
    return Host(name=line.name, count=count, address=address(line.name, execution))


def address(name: str, execution: LaunchOptions) -> str:
    """Return the address of an ssh destination: an alias of ssh's configuration, or USER@HOST."""
    result = run_command(*ssh(execution), "-G", name)
    settings = (line.partition(" ") for line in result.stdout.splitlines())
    return next((value for key, _, value in settings if key == "hostname"), name.rpartition("@")[2])


def ssh(execution: LaunchOptions) -> list[str]:
    """Return the ssh command without the host."""
    return [
        "ssh",
        *(word for option in (*execution.ssh_options, *OPTIONS) for word in ("-o", option)),
    ]


def agent_command(launch: LaunchSpec, node: int) -> str:
    """Return the shell command that starts the agent on its host."""
    path, here = os.environ.get("PYTHONPATH"), site.read()
    agent = ["-m", "cloze.flows.launch.agent", launch.directory, str(node), "--leash"]
    words = ["env", *([f"PYTHONPATH={path}"] if path else []), *here.words, *agent]
    script = here.script(last := site.shell(words))
    return last if script == last else site.shell(["bash", "-c", script])


def forwarded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that are passed to other hosts."""
    return {
        name: value
        for name, value in environment.items()
        if name not in HOST_SPECIFIC
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in FORWARDED)
    }


def _silence(name: str, execution: LaunchOptions) -> str | None:
    """Return why a host cannot be reached; None if it can."""
    result = run_command(*ssh(execution), name, "true", seconds=ANSWER_SECONDS)
    lines = result.stderr.strip().splitlines() or [f"ssh ended with exit code {result.returncode}"]
    return lines[-1].strip() if result.returncode else None


def _give(client: subprocess.Popen[bytes], content: bytes) -> None:
    with suppress(OSError, ValueError):
        assert client.stdin is not None
        client.stdin.write(content)
        client.stdin.flush()


LAUNCHER: Launcher = SshLauncher()
