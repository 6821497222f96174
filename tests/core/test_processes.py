"""Processes of one machine: how they ended, what is said of memory, ports, heartbeats."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from cloze.core import processes
from cloze.core.processes import (
    HEARTBEAT_FD,
    PARENT_PID,
    HeartbeatReader,
    HeartbeatWriter,
    MemoryWatch,
    RankPhase,
    describe_exit,
    free_ports,
    wait_for_port,
)


@pytest.mark.parametrize(
    ("code", "short", "says"),
    [
        (0, True, "ended with exit code 0"),
        (3, False, "ended with exit code 3"),
        (-signal.SIGKILL, False, "was killed (SIGKILL)"),
        (-signal.SIGKILL, True, "was killed (SIGKILL; out of memory?)"),
        (-signal.SIGTERM, True, "was killed (SIGTERM)"),
        (-signal.SIGSEGV, True, "crashed (SIGSEGV: a library touched memory that is not its own)"),
        (-signal.SIGBUS, False, "crashed (SIGBUS: a mapped file was cut short, or /dev/shm is full)"),
        (-signal.SIGILL, False, "crashed (SIGILL: this processor lacks an instruction that a library uses)"),
        (-signal.SIGFPE, False, "crashed (SIGFPE: a library divided by zero)"),
        (-99, False, "was killed (signal 99)"),
    ],
)  # fmt: skip
def test_how_a_process_ended(code: int, short: bool, says: str) -> None:
    assert describe_exit(code, short) == says


@pytest.mark.parametrize(
    ("before", "after", "short"),
    [(2, 2, False), (2, 3, True), (0, 0, False), (None, 5, True), (2, None, True)],
)
def test_memory_was_short_if_the_kernel_has_killed_since_or_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None, short: bool
) -> None:
    counts = iter([before, after])
    monkeypatch.setattr(processes, "_out_of_memory_kills", lambda: next(counts))
    assert MemoryWatch().short() is short


def test_the_memory_of_this_process_has_a_peak() -> None:
    held = bytearray(64 << 20)
    held[::4096] = b"1" * len(held[::4096])
    peak = processes.peak_memory()
    assert 64 << 20 < peak < 1 << 40
    assert peak <= psutil.virtual_memory().total


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", ports[0]))


def test_a_port_is_waited_for_until_its_process_has_ended() -> None:
    (port,) = free_ports(1)
    asked = []

    def alive() -> bool:
        """Whoever is to listen there begins to at the third look."""
        asked.append(1)
        if len(asked) == 3:
            server.bind(("127.0.0.1", port))
            server.listen()
        return True

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        assert wait_for_port(port, 60, alive)
        assert len(asked) == 3
        assert wait_for_port(port, 60, lambda: False)  # it listens: nobody is asked
    (other,) = free_ports(1)
    assert not wait_for_port(other, 60, lambda: False)
    assert not wait_for_port(other, 0, lambda: True)


DIE = """
import os, signal, sys, time
from cloze.core.processes import die_with_parent
die_with_parent({signal})
print("alive", flush=True)
time.sleep(600)
"""

BETWEEN = """
import os, subprocess, sys
parent = os.environ | {"CLOZE_PARENT_PID": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=parent, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's request is Linux's")
def test_a_process_dies_with_the_parent_that_is_named() -> None:
    """Where another one is named, it has died already."""
    code = DIE.format(signal=int(signal.SIGTERM))
    ours = os.environ | {PARENT_PID: str(os.getpid())}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=ours, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "alive\n"
        child.kill()
    between = subprocess.run(
        [sys.executable, "-c", BETWEEN, code], capture_output=True, check=True, timeout=60
    )
    orphan = int(between.stdout)
    while psutil.pid_exists(orphan) and psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)  # until it has died, too
    strange = os.environ | {PARENT_PID: "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=strange, capture_output=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


def test_a_heartbeat_goes_from_the_environment_to_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = HeartbeatReader()
    assert reader.read() == processes.RankStatus()
    monkeypatch.setenv(HEARTBEAT_FD, str(reader.number))
    writer = HeartbeatWriter.from_env()
    writer.begin_step(3, 9.0, 70.0)
    for phase in RankPhase:
        writer.set_phase(phase)
        assert (reader.read().phase, reader.read().step, reader.read().limit) == (phase, 3, 9.0)
    with writer.phase(RankPhase.EVALUATING_OR_SAVING):
        writer.begin_step(4, 5.0, 80.0)
        assert (reader.read().step, reader.read().limit) == (4, 80.0)
    assert (reader.read().phase, reader.read().limit) == (RankPhase.EVALUATING_OR_SAVING, 5.0)
    monkeypatch.delenv(HEARTBEAT_FD)
    HeartbeatWriter.from_env().begin_step(9, 1.0, 1.0)  # nobody reads it
    assert reader.read().step == 4
    reader.close()


def test_each_phase_has_words_of_its_own() -> None:
    said = [phase.description for phase in RankPhase]
    assert len(set(said)) == len(RankPhase)
    assert (said[0], said[3]) == ("starting", "waiting for the other ranks")
