"""The agent: `python -m cloze.flows.launch.agent DIRECTORY NODE`, the parent of one host's ranks.

DIRECTORY is the launch's (`protocol.LaunchSpec`), which the coordinator and all hosts share. Files:

    read     launch.json   what to start; a host that does not see it does not share the directory
             head.json     changes while the coordinator waits for all agents; an agent that sees no
                           change for five minutes ends, so that nothing holds its GPUs for ever
             go.json       addresses of all hosts and rank 0's port; written when all agents are
                           ready, so that a host that refuses leaves no rank running anywhere
             stop.json     end all ranks, with the grace period in seconds
    written  node{N}.jsonl events, one per line: {"node": …} of the agent, {"rank": r, …} of a rank
             beat{N}       heartbeat: a number that grows every two seconds (object store: ten)

With `--leash` the agent reads environment variables, a JSON object, from the first line of standard
input. It stops its ranks when standard input closes, that is, when the connection or its starter is
gone.

The agent takes slots for its ranks' GPUs (`slots.py`), like any run on the host.
"""

from __future__ import annotations

import json
import math
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

from cloze.core import accounts, errors, processes, storage
from cloze.core.errors import ClozeError, SupersededError, UsageError
from cloze.core.stages.worker import LOGS, Job, local_directory
from cloze.flows.launch import event_files, host_setup
from cloze.flows.launch.hang_detection import ASLEEP_SECONDS
from cloze.flows.launch.local import LocalRanks
from cloze.flows.launch.protocol import GO, HEAD, STOP, LaunchSpec, RankEvent
from cloze.flows.machine import slots

HEARTBEAT_INTERVAL = {True: 2.0, False: 10.0}  # seconds, by whether the directory is local
POLL_SECONDS = 0.5
HEAD_SECONDS = 300.0  # without a sign of life of the coordinator, before the ranks start
HOST = "CLOZE_HOST_ADDRESS"  # this host's name as other hosts resolve it, if different
STOP_WAIT_SECONDS = 60.0  # wait for the coordinator after a failed rank
# in addition to the grace period: GPUs may still be held by earlier ranks that save
BUSY_SECONDS = 60.0


class Agent:
    """The agent of one node."""

    def __init__(self, launch: LaunchSpec, node: int, *, leash: bool) -> None:
        self.launch, self.node, self.leash = launch, node, leash
        self.host = launch.hosts[node] or os.environ.get(HOST) or socket.gethostname()
        self.outbox = event_files.EventWriter(launch.file(f"node{node}"))
        self.ranks: LocalRanks | None = None
        self._stop_grace: float | None = None  # grace period in seconds, once asked to stop
        self._seconds = launch.grace_seconds  # default grace period
        self._failed_since: float | None = None
        self._over = threading.Event()
        self._slots = ExitStack()  # slots

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        beat = threading.Thread(target=self._beat, name="beat", daemon=True)
        try:
            self._send(
                {"hello": {"host": self.host, "address": self._address(), "pid": os.getpid()}}
            )
            beat.start()
            self.launch.fence.check()
            self._prepare()
            go = self._wait_to_go()
            if go is not None:
                self._run_ranks(go)
            self._send({"done": True})
            return 0
        except ClozeError as error:
            self._send({"refused": str(error), "exit_code": error.exit_code})
            return error.exit_code
        finally:
            if self.ranks is not None:
                self.ranks.close()
            self._slots.close()
            self._over.set()

    def _address(self) -> str:
        """Return the address under which other hosts reach this one: the launch's, or its name."""
        address = self.launch.addresses[self.node] if self.launch.addresses else ""
        return address or ("127.0.0.1" if self.launch.nodes == 1 else self.host)

    def _prepare(self) -> None:
        host_setup.check_host(self.launch, self.node, self.host)
        self.acquire_slots()
        # only node 0's is used
        self._send({"ready": True, "port": processes.free_ports(1, host="")[0]})

    def acquire_slots(self) -> None:
        """Take one GPU slot per rank; the ranks then see these GPUs only.

        A stage of one process also takes cores, and waits for its turn as long as it takes: a run
        may start many of them at once.

        Raises ClozeError: other processes do not release the GPUs in time.
        """
        launch, machine = self.launch, slots.machine()
        on_gpu = launch.device != "cpu" and bool(machine.gpus)
        if not launch.slots or not (on_gpu or launch.cpus):
            return
        request = slots.ResourceRequest(
            cpus=min(launch.cpus, 1 if on_gpu else machine.cpus),
            gpus=launch.counts[self.node] if on_gpu else 0,
            gpu_ids=launch.gpu_ids if on_gpu else (),
        )
        deadline = (
            math.inf if launch.cpus else time.monotonic() + BUSY_SECONDS + launch.grace_seconds
        )
        try:
            granted = self._slots.enter_context(
                slots.acquire(
                    request, machine, launch.artifact, Job.read(launch.job).stage,
                    lambda: self._grace() is not None or time.monotonic() > deadline,
                    lambda: self._send({"waiting": (
                        f"host {self.host} waits for {'GPUs' if on_gpu else 'cores'}: "
                        f"{slots.describe_holders(slots.GPU if on_gpu else slots.CPU)}"
                    )}),
                )
            )  # fmt: skip
        except KeyboardInterrupt:
            if self._grace() is not None:
                return  # requested to stop; no rank will start
            raise ClozeError(
                f"host {self.host} has too few free GPUs for {launch.counts[self.node]} processes: "
                f"{slots.describe_holders(slots.GPU)};"
                " wait until that ends, name others with --gpu-id, or set run.oversubscribe"
            ) from None
        self.launch = replace(launch, gpu_ids=granted)

    def _wait_to_go(self) -> dict[str, Any] | None:
        """Return the content of `go.json`; None if the coordinator asks to stop first.

        Raises ClozeError: the coordinator shows no sign of life.
        """
        sign, seen = "", time.monotonic()
        last = seen
        while self._grace() is None:
            go = event_files.read_json(self.launch.file(GO))
            if go is not None:
                return go
            newest = event_files.peek(self.launch.file(HEAD))
            now = time.monotonic()
            if newest != sign or now > last + ASLEEP_SECONDS:  # the coordinator may have slept, too
                sign, seen = newest, now
            elif now > seen + HEAD_SECONDS:
                raise ClozeError(
                    f"host {self.host} has waited {HEAD_SECONDS:.0f} s and seen no sign of life of"
                    " the coordinator; run again"
                )
            last = now
            time.sleep(POLL_SECONDS)
        return None

    def _run_ranks(self, go: dict[str, Any]) -> None:
        launch, logs = self.launch, local_directory(self.launch.artifact) / LOGS
        self.ranks = LocalRanks(
            launch.worker, launch.job, host_setup.distributed_envs(launch, self.node, go), logs
        )
        while not self.ranks.finished:
            self._forward(self.ranks.events(POLL_SECONDS))
            grace = self._grace()
            if grace is not None:
                self.ranks.stop(grace)
                self._forward(self.ranks.events(0))

    def _forward(self, events: Sequence[RankEvent]) -> None:
        self.outbox.send([{"rank": rank, **event} for rank, event in events])
        if self.launch.grace_grows:
            self._seconds = max(
                [self._seconds, *(float(event["grace"]) for _, event in events if "grace" in event)]
            )
        if self._failed_since is None and any(
            event.get("ended") or event.get("exit_code") or "hung" in event for _, event in events
        ):
            self._failed_since = time.monotonic()

    def _send(self, event: dict[str, Any]) -> None:
        self.outbox.send([{"node": self.node, **event}])

    def _grace(self) -> float | None:
        """Return the grace period in seconds if the ranks must end now, else None."""
        if self._stop_grace is None and self.leash and _closed(sys.stdin.fileno()):
            self._stop_grace = self._seconds
        if (
            self._stop_grace is None
            and self._failed_since is not None
            and time.monotonic() > self._failed_since + STOP_WAIT_SECONDS
        ):
            self._stop_grace = 0.0  # no coordinator ends the ranks that wait for the failed one
        if self._stop_grace is None:
            with suppress(OSError):  # storage that fails for a while ends no training
                stop = event_files.read_json(self.launch.file(STOP))
                self._stop_grace = None if stop is None else float(stop["grace"])
        if self._stop_grace is None:
            try:
                self.launch.fence.check()
            except SupersededError:
                self._stop_grace = 0.0  # a superseded rank must not save
        return self._stop_grace

    def _terminate(self, *_: object) -> None:
        self._stop_grace = self._seconds

    def _beat(self) -> None:
        path, count = self.launch.file(f"beat{self.node}"), 0
        local, inner = storage.is_local(path), storage.filesystem(path)[1]
        while True:
            count += 1
            # a full disk may be temporary; missing heartbeats tell the coordinator
            with suppress(Exception):
                if local:
                    with open(inner, "w", opener=accounts.open_unlinked) as stream:
                        stream.write(str(count))
                else:
                    storage.write_bytes(path, str(count).encode())
            if self._over.wait(HEARTBEAT_INTERVAL[local]):
                return


def _closed(descriptor: int) -> bool:
    """Check whether the other end of a pipe is closed; data in the pipe are discarded."""
    while select.select([descriptor], [], [], 0)[0]:
        if not os.read(descriptor, 4096):
            return True
    return False


def _first_line(descriptor: int) -> bytes:
    line = b""
    # bytewise, without buffer: `select` must see the rest
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line or b"{}"


def main(arguments: Sequence[str]) -> int:
    """Run the agent and return the exit code. Args: arguments: DIRECTORY NODE [--leash]."""
    directory, node, leash = arguments[0], int(arguments[1]), "--leash" in arguments[2:]
    try:
        if leash:
            os.environ.update(json.loads(_first_line(sys.stdin.fileno())))
        launch = LaunchSpec.read(directory)
        if launch is None:
            raise UsageError(
                f"host {socket.gethostname()} does not see {directory}, which the head has written;"
                " put the artifact's directory where all hosts share it"
            )
        accounts.share(os.path.dirname(launch.artifact))  # the umask may be this host's own
        return Agent(launch, node, leash=leash).run()
    except ClozeError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        message, code = (
            f"host {socket.gethostname()}: {errors.describe_os_error(error, 'input or output')}",
            1,
        )
    sys.stderr.write(f"cloze: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
