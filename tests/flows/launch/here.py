"""A launcher whose hosts are all this machine: agents as plain child processes, without ssh. What
it starts is as real as anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from cloze.core.stages.execution import Execution
from cloze.flows.launch.agent_launcher import AgentLauncher
from cloze.flows.launch.protocol import AgentGroup, Host, Launcher, LaunchSpec

NAMES = "abcdefgh"


class Here(AgentLauncher):
    """See `AgentLauncher`. Each agent's process is in `_agent-N` of the artifact's
    directory.
    """

    allocates_gpus = False

    def check(self, execution: Execution) -> None:
        del execution

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [Host(name=name, count=processes) for name in NAMES[: execution.nodes]]

    def start_agents(self, launch: LaunchSpec, execution: Execution) -> AgentGroup:
        del execution
        return _Agents(launch)


class _Agents:
    def __init__(self, launch: LaunchSpec) -> None:
        self.launch = launch
        self.processes = []
        for node in range(launch.nodes):
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cloze.flows.launch.agent",
                    launch.directory,
                    str(node),
                    "--leash",
                ],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps({"TOLD": "through the leash"}).encode() + b"\n")
            process.stdin.flush()
            self.processes.append(process)
            Path(launch.artifact, f"_agent-{node}").write_text(str(process.pid))

    def host(self, node: int) -> str:
        return self.launch.hosts[node]

    def preempted(self) -> bool:
        return False

    def waiting(self) -> str | None:
        return None

    def exited(self) -> Mapping[int, tuple[int, str]]:
        return {
            node: (process.returncode, "")
            for node, process in enumerate(self.processes)
            if process.poll() is not None
        }

    def stop(self) -> None:
        for process in self.processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            still = (
                process.poll() is None
                and psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
            )
            try:
                process.wait(timeout=0 if still else 10)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, 9)
                process.wait()
            if process.stderr is not None:
                process.stderr.close()


LAUNCHER: Launcher = Here()
