"""Launcher for other hosts: follows agents through the directory that all hosts share.

Rank 0's store is on the first node. If one node refuses (other program, other data, too few GPUs),
no rank starts anywhere. A node whose agent ends without a message, or that sends no heartbeat for
`LOST_SECONDS`, counts as lost. What the coordinator itself did not see, because it stood still or
waited for the storage, does not count.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from cloze.core import errors, storage
from cloze.core.artifacts import fingerprints
from cloze.core.errors import BY_EXIT_CODE, UsageError
from cloze.core.identity import identity
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS
from cloze.flows.launch import event_files
from cloze.flows.launch.protocol import (
    GO,
    HEAD,
    LAUNCHES,
    LOST_SECONDS,
    STOP,
    AgentGroup,
    Host,
    Launcher,
    LaunchRequest,
    LaunchSpec,
    RankEvent,
    RankGroup,
    RanksLostError,
)

# from a reachable host until its agent reports: many hosts load Python from one disk
AGENT_START_TIMEOUT = 300.0
STOP_SECONDS = 10.0  # for agents to end, after the ranks' grace period
POLL_SECONDS = 0.1
HEAD_INTERVAL = 10.0  # between signs of life for agents that wait for the others
GAP_SECONDS = 2.0  # between two polls: the coordinator or its storage stood still
FULL_BYTES = 1 << 16  # less free disk space counts as full
ALL_CPUS = 1 << 16  # of a host that has fewer
RETAINED_LAUNCHES = 3  # launches whose files are kept


class AgentLauncher(Launcher, ABC):
    """Launcher that starts agents on hosts that share the artifact's directory.

    Attributes:
        allocates_gpus: the scheduler reserves the GPUs (Slurm, Kubernetes); otherwise agents take
            slots.
    """

    allocates_gpus: ClassVar[bool]

    @abstractmethod
    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        """Return the hosts to start on, all of which respond now.

        `processes`: ranks per host, unless the launcher knows better.

        Raises HostsUnreachableError: a required host does not respond; the message names it.
        """

    @abstractmethod
    def start_agents(self, launch: LaunchSpec, execution: Execution) -> AgentGroup:
        """Start `python -m cloze.flows.launch.agent DIRECTORY NODE` for each node.

        DIRECTORY is `launch.directory`.
        """

    def start(self, work: LaunchRequest) -> RankGroup:
        return AgentRankGroup(self, work)


@dataclass(slots=True)
class _Node:
    """State of a node as the coordinator knows it."""

    number: int
    host: str
    inbox: event_files.EventReader
    address: str = ""
    hello: bool = False
    ready: bool = False
    port: int | None = None
    over: bool = False  # ended or lost
    beat: str = ""
    seen: float = field(default_factory=time.monotonic)  # time of the last change of `beat`


class AgentRankGroup:
    """See `protocol.RankGroup`."""

    def __init__(self, launcher: AgentLauncher, work: LaunchRequest) -> None:
        execution, path = work.execution, work.build.path
        hosts = launcher.hosts(execution, work.processes)
        if work.single:  # stages that run at once go to several hosts
            host = hosts[hashlib.sha256(path.encode()).digest()[0] % len(hosts)]
            hosts = [replace(host, count=1)]
        _forget_old(path)
        job_file, name = work.build.file(LOGS, JOB), f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
        work.job.write(job_file)
        self.launch = LaunchSpec(
            artifact=path,
            directory=storage.join(path, LOGS, LAUNCHES, name),
            job=job_file,
            worker=work.worker,
            hosts=tuple(host.name for host in hosts),
            counts=tuple(host.count for host in hosts),
            program=identity(),
            inputs={
                role: (input_path, fingerprints.input_fingerprint(input_path))
                for role, input_path in work.build.inputs.items()
            },
            grace_seconds=execution.min_grace_seconds,
            grace_grows=execution.grace_seconds is None,
            device=execution.device,
            gpu_ids=execution.gpu_ids,
            # stages of one process share what `salloc` has allocated
            slots=not execution.oversubscribe and (work.single or not launcher.allocates_gpus),
            cpus=(execution.resources.cpus or ALL_CPUS) if work.single else 0,
            token=work.token,
            addresses=tuple(host.address or host.name for host in hosts),
        )
        self.launch.write()
        self._handle = launcher.start_agents(self.launch, execution)
        self._nodes = [
            _Node(number, name, event_files.EventReader(self.launch.file(f"node{number}")))
            for number, name in enumerate(self.launch.hosts)
        ]
        self._is_released = False  # `go.json` is written
        self._last_poll, self._next_sign = time.monotonic(), 0.0
        self._show_life()
        self._ended = 0  # number of nodes that are over
        self._waits = ""  # last reported reason for waiting
        self._buffered: list[RankEvent] = []  # events received during `stop`

    @property
    def finished(self) -> bool:
        return not self._buffered and all(node.over for node in self._nodes)

    def events(self, seconds: float) -> Sequence[RankEvent]:
        deadline = time.monotonic() + seconds
        while True:
            events, self._buffered = [*self._buffered, *self._poll()], []
            if events or self.finished or time.monotonic() >= deadline:
                return events
            time.sleep(POLL_SECONDS)

    def stop(self, grace: float) -> None:
        if not all(node.over for node in self._nodes):
            try:
                event_files.write_json(self.launch.file(STOP), {"grace": grace})
            except OSError:  # full disk: no rank can save; agents notice by their leash
                self._handle.stop()
            deadline = time.monotonic() + grace + STOP_SECONDS
            while not all(node.over for node in self._nodes) and time.monotonic() < deadline:
                self._buffered += self._poll()
                time.sleep(POLL_SECONDS)
        self._handle.stop()

    def close(self) -> None:
        self._handle.stop()

    @property
    def ranks(self) -> Sequence[int]:
        return range(sum(self.launch.counts))

    def host(self, rank: int) -> str | None:
        ranks_of = self.launch.ranks_of
        return self._name(next(node for node in self._nodes if rank in ranks_of(node.number)))

    def _name(self, node: _Node) -> str:
        return node.host or self._handle.host(node.number) or f"number {node.number}"

    def _show_life(self) -> None:
        """Write the sign of life that agents wait by."""
        now = time.monotonic()
        if not self._is_released and now >= self._next_sign:
            self._next_sign = now + HEAD_INTERVAL
            with suppress(OSError):  # a full disk may be temporary
                event_files.write_json(self.launch.file(HEAD), {"beat": now})

    def _poll(self) -> list[RankEvent]:
        self._show_life()
        exited = self._handle.exited()
        events: list[RankEvent] = []
        for node in self._nodes:
            if node.over:
                continue
            for event in node.inbox.read():
                rank = event.pop("rank", None)
                if rank is not None:
                    events.append((rank, event))
                else:
                    self._process(node, event, events)
            if not node.over and node.number in exited:  # after its last events were read
                code, output = exited[node.number]
                if output.startswith("cloze: "):
                    node.over = True
                    events.append(_fault(output.removeprefix("cloze: "), code))
                else:
                    cause = _full_disk(self.launch.artifact) or f" (exit code {code})"
                    cause = f": {output}" if output else cause
                    events.append(self._lose(node, f"its agent ended without a message{cause}"))
            elif not node.over:
                self._check_alive(node, events)
        self._last_poll = time.monotonic()
        ended = sum(node.over for node in self._nodes)
        if ended > self._ended:  # only then: it asks the scheduler
            self._ended = ended
            events += [(None, {"preempted": True})] * self._handle.preempted()
        if not self._is_released and all(node.ready for node in self._nodes):
            self._is_released = True
            go = {"port": self._nodes[0].port, "hosts": [node.address for node in self._nodes]}
            event_files.write_json(self.launch.file(GO), go)
        return events

    def _process(self, node: _Node, event: dict[str, Any], events: list[RankEvent]) -> None:
        if "hello" in event:
            node.hello, node.seen = True, time.monotonic()
            node.host = node.host or event["hello"]["host"]
            node.address = event["hello"]["address"]
        elif "waiting" in event or "figures" in event:
            events.append((None, event))
        elif "ready" in event:
            node.ready, node.port = True, event.get("port")
        elif "refused" in event:
            node.over = True
            events.append(_fault(event["refused"], event["exit_code"]))
        elif "done" in event:
            node.over = True

    def _check_alive(self, node: _Node, events: list[RankEvent]) -> None:
        beat = event_files.peek(self.launch.file(f"beat{node.number}")) if node.hello else ""
        now = time.monotonic()
        gap = now - self._last_poll
        if gap > GAP_SECONDS:
            node.seen = min(now, node.seen + gap)
        if not node.hello:
            reason = self._handle.waiting()
            if reason is not None:
                node.seen = now
                if reason != self._waits:
                    self._waits = reason
                    events.append((None, {"waiting": reason}))
            elif now > node.seen + AGENT_START_TIMEOUT:
                node.over = True
                message = (
                    f"host {self._name(node)} was reached, but its agent wrote nothing to "
                    f"{self.launch.directory} within {AGENT_START_TIMEOUT:.0f} s; put the "
                    f"artifact on storage that all hosts share"
                )
                events.append(_fault(message, UsageError.exit_code))
            return
        if beat and beat != node.beat:
            node.beat, node.seen = beat, now
        elif now > node.seen + LOST_SECONDS:
            _, fault = self._lose(node, f"no sign of life for {LOST_SECONDS:.0f} s")
            events.append((None, {**fault, "silent": True}))

    def _lose(self, node: _Node, why: str) -> RankEvent:
        """Mark a node as lost and return the event."""
        node.over = True
        return _fault(f"host {self._name(node)} is lost: {why}", RanksLostError.exit_code)


def _fault(sentence: str, code: int) -> RankEvent:
    exit_code = code if code in BY_EXIT_CODE else RanksLostError.exit_code
    return None, {"fault": sentence, "exit_code": exit_code}


def _full_disk(path: str) -> str:
    """Return a message if the disk that holds the agent's output is full, else ''."""
    if (
        not storage.is_local(path)
        or shutil.disk_usage(storage.filesystem(path)[1]).free >= FULL_BYTES
    ):
        return ""
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return f": {errors.describe_os_error(error, path)} and run again"


def _forget_old(path: str) -> None:
    """Delete the files of all but the last launches of an artifact."""
    launches = storage.join(path, LOGS, LAUNCHES)
    files = storage.list_files(launches) if storage.is_dir(launches) else []
    for name in sorted({file.partition("/")[0] for file in files})[: -RETAINED_LAUNCHES + 1]:
        with suppress(OSError):
            storage.remove(storage.join(launches, name))
