"""Ranks on other machines: agents that something has started there, followed through the directory that all share.

Rank 0's store is on the first node. A node that refuses (another program, other data, a taken port, too few GPUs) refuses for all, before
any rank has started; one whose agent ends without a word, or shows no sign of life for `LOST_SECONDS`, is lost and named.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flows.launchers import mailbox, program
from flows.launchers.protocol import GO, LAUNCHES, LOST, LOST_SECONDS, STOP, Launch, Lost, Started, Starter, Told, Work
from pipeline.core import fingerprints, storage
from pipeline.core.errors import BY_EXIT_CODE, UsageError
from pipeline.core.execution import Execution
from pipeline.core.worker import JOB, LOGS

HELLO_SECONDS = 300.0  # from a host that answers, until its agent does: Python starts from a disk that many read from
STOP_SECONDS = 10.0  # for agents to end, beside the ranks' grace
LOOK_SECONDS = 0.1
KEPT = 3  # launches whose files stay


@dataclass(frozen=True, slots=True)
class ByAgents:
    """A launcher; see `protocol.Launcher`."""

    starter: Starter

    def check(self, execution: Execution) -> None:
        if execution.node_rank:
            raise UsageError(
                f"node_rank ({execution.node_rank}) is given by the launcher {execution.launcher}; leave it out, and start on one machine"
            )
        self.starter.check(execution)

    def begin(self, work: Work) -> Started:
        return Agents(self.starter, work)


@dataclass(slots=True)
class _Node:
    """What the head knows of a node."""

    number: int
    host: str
    inbox: mailbox.Inbox
    address: str = ""
    hello: bool = False
    ready: bool = False
    port: int | None = None
    over: bool = False  # it has ended, or is lost
    lost: bool = False
    beat: str = ""
    seen: float = field(default_factory=time.monotonic)  # when the beat last changed


class Agents:
    """See `protocol.Started`."""

    def __init__(self, starter: Starter, work: Work) -> None:
        execution, path = work.execution, work.build.path
        hosts = starter.hosts(execution, work.processes)
        _forget_old(path)
        job_file = work.build.file(LOGS, JOB)
        work.job.write(job_file)
        self.launch = Launch(
            artifact=path,
            directory=storage.join(path, LOGS, LAUNCHES, f"{int(time.time())}-{uuid.uuid4().hex[:8]}"),
            job=job_file,
            worker=work.worker,
            hosts=tuple(host.name for host in hosts),
            counts=tuple(host.count for host in hosts),
            master=execution.master,
            program=program.identity(),
            inputs={role: (place, fingerprints.input_fingerprint(place)) for role, place in work.build.inputs.items()},
            grace_seconds=execution.least_grace,
            grace_grows=execution.grace_seconds is None,
            device=execution.device,
            devices=execution.devices,
            slots=not (starter.allots or execution.share),
            elastic=starter.elastic(execution),
        )
        self._of: dict[int, int] = {}  # rank -> the node that tells of it, where torchrun numbers them
        self.launch.write()
        self._handle = starter.start(self.launch, execution)
        self._nodes = [
            _Node(number, name, mailbox.Inbox(self.launch.file(f"node{number}")))
            for number, name in enumerate(self.launch.hosts)
        ]
        self._gone = False  # whether the ranks were told to go
        self._waits = ""  # what is waited for, as it was last told
        self._held: list[Told] = []  # told while they were being stopped

    @property
    def over(self) -> bool:
        return not self._held and all(node.over for node in self._nodes)

    def events(self, seconds: float) -> Sequence[Told]:
        deadline = time.monotonic() + seconds
        while True:
            told, self._held = [*self._held, *self._poll()], []
            if told or self.over or time.monotonic() >= deadline:
                return told
            time.sleep(LOOK_SECONDS)

    def stop(self, grace: float) -> None:
        if not all(node.over for node in self._nodes):
            try:
                mailbox.put(self.launch.file(STOP), {"grace": grace})
            except OSError:  # a full disk: nobody can save either; agents hear of it by their leash
                self._handle.stop()
            deadline = time.monotonic() + grace + STOP_SECONDS
            while not all(node.over for node in self._nodes) and time.monotonic() < deadline:
                self._held += self._poll()
                time.sleep(LOOK_SECONDS)
        self._handle.stop()

    def close(self) -> None:
        self._handle.stop()

    @property
    def ranks(self) -> Sequence[int]:
        lost = {node.number for node in self._nodes if node.lost} if self.launch.elastic is not None else set()
        return range(sum(count for number, count in enumerate(self.launch.counts) if number not in lost))

    def host(self, rank: int) -> str | None:
        usual = next(node.number for node in self._nodes if rank in self.launch.ranks_of(node.number))
        return self._name(self._nodes[self._of.get(rank, usual)])

    def _name(self, node: _Node) -> str:
        return node.host or self._handle.host(node.number) or f"number {node.number}"

    def _poll(self) -> list[Told]:
        gone = self._handle.gone()
        told: list[Told] = []
        for node in self._nodes:
            if node.over:
                continue
            for event in node.inbox.read():
                rank = event.pop("rank", None)
                if rank is not None:
                    self._of[rank] = node.number
                    told.append((rank, event))
                else:
                    self._hear(node, event, told)
            if not node.over and node.number in gone:  # and what it wrote before was read
                code, words = gone[node.number]
                if words.startswith("cloze: "):
                    node.over = True
                    told.append(_fault(words.removeprefix("cloze: "), code))
                else:
                    said = f": {words}" if words else f" (exit code {code})"
                    told.append(self._lose(node, f"what was started there has ended without a word{said}"))
            elif not node.over:
                self._look_for_life(node, told)
        if not self._gone and all(node.ready for node in self._nodes):
            self._gone = True
            self._go()
        return told

    def _hear(self, node: _Node, event: dict[str, Any], told: list[Told]) -> None:
        if "hello" in event:
            node.hello, node.host, node.seen = True, node.host or event["hello"]["host"], time.monotonic()
            node.address = event["hello"]["address"]
        elif "waiting" in event:
            told.append((None, event))
        elif "ready" in event:
            node.ready, node.port = True, event.get("port")
        elif "refused" in event:
            node.over = True
            told.append(_fault(event["refused"], event["exit_code"]))
        elif "done" in event:
            node.over = True

    def _look_for_life(self, node: _Node, told: list[Told]) -> None:
        now = time.monotonic()
        if not node.hello:
            why = self._handle.waiting()
            if why is not None:
                node.seen = now
                if why != self._waits:
                    self._waits = why
                    told.append((None, {"waiting": why}))
            elif now > node.seen + HELLO_SECONDS:
                node.over = True
                told.append(
                    _fault(
                        f"host {self._name(node)} was reached, but nothing of it arrives in {self.launch.directory} within"
                        f" {HELLO_SECONDS:.0f} s; put the artifact's directory where all hosts share it",
                        UsageError.exit_code,
                    )
                )
            return
        beat = mailbox.peek(self.launch.file(f"beat{node.number}"))
        if beat and beat != node.beat:
            node.beat, node.seen = beat, now
        elif now > node.seen + LOST_SECONDS:
            told.append(self._lose(node, f"no sign of life for {LOST_SECONDS:.0f} s"))

    def _go(self) -> None:
        first, hosts = self._nodes[0], [node.address for node in self._nodes]
        asked = self.launch.master.rpartition(":")[0]
        host = hosts[0] if asked in ("", "127.0.0.1") and len(hosts) > 1 else asked or hosts[0]
        mailbox.put(self.launch.file(GO), {"host": host, "port": first.port, "hosts": hosts})

    def _lose(self, node: _Node, why: str) -> Told:
        """A host is lost; torchrun goes on without it, if it is not the one of the rendezvous, and enough are left."""
        node.over = node.lost = True
        sentence, left = f"host {self._name(node)} is lost: {why}", sum(not node.lost for node in self._nodes)
        elastic = self.launch.elastic
        if elastic is not None and self._gone and node.number and left >= elastic.nodes:
            mailbox.put(self.launch.file(LOST), {"nodes": [node.number for node in self._nodes if node.lost]})
            return None, {"note": f"{sentence}; torchrun goes on with {left} hosts"}
        return _fault(sentence, Lost.exit_code)


def _fault(sentence: str, code: int) -> Told:
    return None, {"fault": sentence, "exit_code": code if code in BY_EXIT_CODE else Lost.exit_code}


def _forget_old(path: str) -> None:
    """Remove the files of all launches but the last few. A host of theirs that wakes up finds its `stop.json`, or nothing."""
    place = storage.join(path, LOGS, LAUNCHES)
    names = sorted({name.partition("/")[0] for name in storage.list_files(place)}) if storage.is_dir(place) else []
    for name in names[: -KEPT + 1]:
        with suppress(OSError):
            storage.remove(storage.join(place, name))
