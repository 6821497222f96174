"""torchrun on every host: its rendezvous goes on without a host that is lost, from the newest checkpoint.

With a hostfile, over ssh from one machine; with neither that nor `--nodes`, on this machine alone. Or a person (or what starts them)
types the same command on each host,

    cloze pretrain … --launcher torchrun --nodes 3 --master HOST:PORT

and HOST is the head: it writes the artifact and reports, whichever host gets rank 0. The others join it, found through the directory.
The rendezvous is on the first host. When that one is lost, all ranks end; over ssh they are begun anew on the hosts that answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from flows.launchers import mailbox, network, restarts
from flows.launchers.by_agents import ByAgents
from flows.launchers.protocol import Elastic, Event, Handle, Host, Launch, Launcher, Lost, Started, Told, Work
from flows.launchers.ssh import Ssh, last_line, lines_of
from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.lock import LOCK
from pipeline.core.worker import LOGS, local_directory

OPEN = "launch.json"  # in the artifact's logs: the launch that hosts may join just now
JOIN_SECONDS = 600.0  # for a person to type the command everywhere


def joins(execution: Execution) -> bool:
    """Whether this host joins a launch whose head is another: the one that `master` names."""
    by_hand = execution.launcher == "torchrun" and execution.hostfile is None
    return by_hand and execution.nodes > 1 and not network.is_here(execution.master.rpartition(":")[0])


def _elastic(execution: Execution, nodes: int) -> Elastic:
    return Elastic(nodes=execution.min_nodes or nodes, restarts=restarts.allowed(execution))


class OverSsh(Ssh):
    """See `protocol.Starter`."""

    def elastic(self, execution: Execution) -> Elastic | None:
        return _elastic(execution, len(lines_of(execution)))


class ByHand:
    """Starts the head's own agent, and waits for the others; see `protocol.Starter`."""

    allots = False

    def check(self, execution: Execution) -> None:
        host, _, port = execution.master.rpartition(":")
        if execution.nodes > 1 and (not host or port in ("", "0")):
            raise UsageError(
                f"launcher (torchrun) needs --hostfile FILE, or --master HOST:PORT and the same command typed on each of the"
                f" {execution.nodes} hosts; master is {execution.master}"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [Host(name="", count=processes)] * execution.nodes

    def elastic(self, execution: Execution) -> Elastic | None:
        return _elastic(execution, execution.nodes)

    def start(self, launch: Launch, execution: Execution) -> Handle:
        del execution
        own = _OwnAgent(launch, 0)
        mailbox.put(
            storage.join(launch.artifact, LOGS, OPEN), {"directory": launch.directory, "holder": _holder(launch.artifact)}
        )
        return own


class _OwnAgent:
    """The agent of this host, a child process; see `protocol.Handle`."""

    def __init__(self, launch: Launch, node: int) -> None:
        self.node, self._began = node, time.monotonic()
        self._output = local_directory(launch.artifact) / LOGS / f"agent{node}.log"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.launchers.agent", launch.directory, str(node), "--leash"],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({}).encode() + b"\n")
        self.process.stdin.flush()

    def host(self, node: int) -> str:
        del node
        return ""

    def waiting(self) -> str | None:
        return "the other hosts are to join" if time.monotonic() < self._began + JOIN_SECONDS else None

    def gone(self) -> Mapping[int, tuple[int, str]]:
        code = self.process.poll()
        return {} if code is None else {self.node: (code, last_line(self._output))}

    def stop(self) -> None:
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


class _Joined:
    """A host's part in a launch that another host heads; see `protocol.Started`. The head tells what comes of it."""

    def __init__(self, work: Work) -> None:
        self.work, self._over = work, False
        launch, node = _open_launch(work)
        self._agent = _OwnAgent(launch, node)

    @property
    def ranks(self) -> Sequence[int]:
        return [0]

    @property
    def over(self) -> bool:
        return self._over

    def events(self, seconds: float) -> Sequence[Told]:
        with suppress(subprocess.TimeoutExpired):
            self._agent.process.wait(timeout=seconds)
        gone = self._agent.gone()
        if not gone or self._over:
            return []
        self._over = True
        ((code, words),) = gone.values()
        if code:
            failed: Event = {"fault": words.removeprefix("cloze: ") or "the head has ended this host's part", "exit_code": code}
            return [(None, failed)]
        return [(0, {"outcome": {}, "counters": {}}), (0, {"ended": 0, "ours": False})]

    def stop(self, grace: float) -> None:
        if grace > 0 and self._agent.process.poll() is None:
            self._agent.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._agent.process.wait(timeout=grace + 5)
        self._agent.stop()

    def close(self) -> None:
        self._agent.stop()

    def host(self, rank: int) -> str | None:
        del rank
        return None


def _open_launch(work: Work) -> tuple[Launch, int]:
    """The launch of the process that builds the artifact now, and a node of it that nobody else is.

    Raises:
        Lost: there was none for a while.
    """
    path, deadline = work.build.path, time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        found = mailbox.get(storage.join(path, LOGS, OPEN))
        launch = Launch.read(found["directory"]) if found is not None and found["holder"] == _holder(path) else None
        if launch is not None:
            for node in range(1, launch.nodes):
                if storage.create(launch.file(f"taken{node}"), b""):
                    return launch, node
        time.sleep(0.5)
    raise Lost(f"nobody on {work.execution.master} has begun {path}, or it has all its hosts; type the same command there")


def _holder(path: str) -> str:
    """Who builds there: what its lock says."""
    return mailbox.peek(storage.join(path, LOCK))


class Torchrun:
    """See `protocol.Launcher`."""

    def check(self, execution: Execution) -> None:
        self._by(execution).check(execution)

    def begin(self, work: Work) -> Started:
        return _Joined(work) if joins(work.execution) else self._by(work.execution).begin(work)

    @staticmethod
    def _by(execution: Execution) -> Launcher:
        return ByAgents(ByHand() if execution.hostfile is None else OverSsh())


LAUNCHER: Launcher = Torchrun()
