"""`python -m flows.launchers.agent DIRECTORY NODE`: the parent of one host's ranks, started by whatever reaches that host.

DIRECTORY is a launch's (`protocol.Launch`) in the artifact's directory, which the head and all hosts share. There the agent

    reads    launch.json   what to start; a host that does not see it does not share the directory
             go.json       where rank 0's store is; written once all agents are ready, so a host that refuses leaves no rank anywhere
             lost.json     which nodes are lost: with torchrun, workers that wait for theirs are ended, and it starts them without
             stop.json     that all ranks are to end, with how many seconds to save
    writes   node{N}.jsonl what it and its ranks tell, a line each: {"node": …} or {"rank": r, …}
             beat{N}       a number that grows every two seconds: this host lives

With `--leash` it takes environment variables from the first line of its standard input, a JSON object, and stops its ranks when that
closes: the connection through which it was started is gone, or who started it.

Its ranks' GPUs are slots of the host (`slots.py`), as those of any run there: two never share one unasked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from flows.launchers import checks, mailbox, network, slots
from flows.launchers.elastic import ElasticRanks
from flows.launchers.protocol import GO, LOST, STOP, Launch, Told
from flows.launchers.ranks import Ranks
from pipeline.core import storage, system_errors
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.worker import LOGS, Job, local_directory

BEAT_SECONDS = {True: 2.0, False: 10.0}  # by whether the directory is local
LOOK_SECONDS = 0.5
HOST = "CLOZE_HOST"  # this host's name as the others resolve it, where its own does not serve
ALONE_SECONDS = 60.0  # that a node with a failed rank waits for its head to end the others
BUSY_SECONDS = (
    60.0  # beside the grace time, for whoever holds this host's GPUs to let go: ranks that were given up may still save
)


class Agent:
    """One node of a launch."""

    def __init__(self, launch: Launch, node: int, *, leash: bool) -> None:
        self.launch, self.node, self.leash = launch, node, leash
        self.host = launch.hosts[node] or os.environ.get(HOST) or socket.gethostname()
        self.outbox = mailbox.Outbox(launch.file(f"node{node}"))
        self.ranks: Ranks | ElasticRanks | None = None
        self._asked: float | None = None  # to end: the grace
        self._seconds = launch.grace_seconds  # of grace, where nobody says how many
        self._failed_since: float | None = None
        self._over = threading.Event()
        self._held = ExitStack()  # slots

    def run(self) -> int:
        """To the end; the exit code."""
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        beat = threading.Thread(target=self._beat, name="beat", daemon=True)
        try:
            self._tell({"hello": {"host": self.host, "address": self._address(), "pid": os.getpid()}})
            beat.start()
            self._prepare()
            go = self._wait_to_go()
            if go is not None:
                self._run_ranks(go)
            self._tell({"done": True})
            return 0
        except ClozeError as error:
            self._tell({"refused": str(error), "exit_code": error.exit_code})
            return error.exit_code
        finally:
            if self.ranks is not None:
                self.ranks.close()
            self._held.close()
            self._over.set()

    def _address(self) -> str:
        """By what the other hosts reach this one: its name, or where nobody has said that, its address on the way to the master."""
        if self.launch.nodes == 1:
            return self.launch.hosts[0] or "127.0.0.1"
        master = self.launch.master.rpartition(":")[0]
        return self.launch.hosts[self.node] or network.own_address(master) or self.host

    def _prepare(self) -> None:
        checks.check(self.launch, self.node, self.host)
        self.take_gpus()
        ready: dict[str, Any] = {"ready": True}
        if self.node == 0:
            ready["port"] = checks.free_port(self.host, int(self.launch.master.rpartition(":")[2] or 0))
        self._tell(ready)

    def take_gpus(self) -> None:
        """Hold the slots of as many of this host's GPUs as there are ranks; these alone are the ranks' then.

        Raises:
            ClozeError: others hold them, and do not let go.
        """
        launch, there = self.launch, slots.machine()
        if not launch.slots or launch.device == "cpu" or not there.gpus:
            return
        wanted = slots.Demand(gpus=launch.counts[self.node], devices=launch.devices)
        deadline = time.monotonic() + BUSY_SECONDS + launch.grace_seconds
        try:
            granted = self._held.enter_context(
                slots.taken(
                    wanted, there, launch.artifact, Job.read(launch.job).stage,
                    lambda: self._grace() is not None or time.monotonic() > deadline,
                    lambda: self._tell({"waiting": f"host {self.host} waits for GPUs: {slots.who_holds(slots.GPU)}"}),
                )
            )  # fmt: skip
        except KeyboardInterrupt:
            if self._grace() is not None:
                return  # all are to end, and no rank will start
            raise ClozeError(
                f"host {self.host} has too few free GPUs for {launch.counts[self.node]} processes: {slots.who_holds(slots.GPU)};"
                " wait until that ends, name others with --devices, or say `share` in the run's config"
            ) from None
        self.launch = replace(launch, devices=granted)

    def _wait_to_go(self) -> dict[str, Any] | None:
        """What the head says when all are ready; None: it says to stop."""
        while self._grace() is None:
            go = mailbox.get(self.launch.file(GO))
            if go is not None:
                return go
            time.sleep(LOOK_SECONDS)
        return None

    def _run_ranks(self, go: dict[str, Any]) -> None:
        launch, logs = self.launch, local_directory(self.launch.artifact) / LOGS
        if launch.elastic is not None:
            self.ranks = ElasticRanks(launch, self.node, go, logs)
        else:
            self.ranks = Ranks(launch.worker, launch.job, network.environments(launch, self.node, go), logs)
        self.ranks.start()
        while not self.ranks.over:
            self._forward(self.ranks.events(LOOK_SECONDS))
            if isinstance(self.ranks, ElasticRanks) and (lost := mailbox.get(launch.file(LOST))) is not None:
                self.ranks.without(lost["nodes"])
            grace = self._grace()
            if grace is not None:
                self.ranks.stop(grace)
                self._forward(self.ranks.events(0))

    def _forward(self, told: Sequence[Told]) -> None:
        self.outbox.send([{"rank": rank, **event} for rank, event in told])
        if self.launch.grace_grows:
            self._seconds = max([self._seconds, *(float(event["grace"]) for _, event in told if "grace" in event)])
        if self._failed_since is None and any(
            event.get("ended") or event.get("exit_code") or "hung" in event for _, event in told
        ):
            self._failed_since = time.monotonic()

    def _tell(self, event: dict[str, Any]) -> None:
        self.outbox.send([{"node": self.node, **event}])

    def _grace(self) -> float | None:
        """The seconds that the ranks have to save, if they are to end now."""
        if self._asked is None and self.leash and _closed(sys.stdin.fileno()):
            self._asked = self._seconds
        if self._asked is None and self._failed_since is not None and time.monotonic() > self._failed_since + ALONE_SECONDS:
            self._asked = 0.0  # nobody is there to end what waits for the failed one
        if self._asked is None:
            stop = mailbox.get(self.launch.file(STOP))
            self._asked = None if stop is None else float(stop["grace"])
        return self._asked

    def _terminate(self, *_: object) -> None:
        self._asked = self._seconds

    def _beat(self) -> None:
        path, count = self.launch.file(f"beat{self.node}"), 0
        local = storage.is_local(path)
        while True:
            count += 1
            with suppress(Exception):  # a disk that is full now may not be so soon; the head hears of it otherwise
                if local:
                    with open(storage.filesystem(path)[1], "w", encoding="ascii") as stream:
                        stream.write(str(count))
                else:
                    storage.write_bytes(path, str(count).encode())
            if self._over.wait(BEAT_SECONDS[local]):
                return


def _closed(descriptor: int) -> bool:
    """Whether the other end of a pipe has gone; what comes through it is nobody's concern."""
    while select.select([descriptor], [], [], 0)[0]:
        if not os.read(descriptor, 4096):
            return True
    return False


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(descriptor, 1)):  # one by one: `select` sees what is not read yet
        line += letter
    return line or b"{}"


def main(arguments: Sequence[str]) -> int:
    """Args: arguments: DIRECTORY NODE [--leash]."""
    directory, node, leash = arguments[0], int(arguments[1]), "--leash" in arguments[2:]
    try:
        if leash:
            os.environ.update(json.loads(_first_line(sys.stdin.fileno())))
        launch = Launch.read(directory)
        if launch is None:
            raise UsageError(
                f"host {socket.gethostname()} does not see {directory}, which the head has written;"
                " put the artifact's directory where all hosts share it"
            )
        return Agent(launch, node, leash=leash).run()
    except ClozeError as error:
        sentence, code = str(error), error.exit_code
    except OSError as error:
        sentence, code = f"host {socket.gethostname()}: {system_errors.os_sentence(error, 'input or output')}", 1
    sys.stderr.write(f"cloze: {sentence}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
