"""Nothing that a server has started outlives it, its guardian or its supervisor, whoever of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.flows.servers.waiting import is_gone, number, until


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def command(place: Path, what: str, grace: float = 10.0) -> list[str]:
    return [
        sys.executable,
        "-m",
        "flows.servers.guardian",
        str(grace),
        sys.executable,
        "-m",
        "tests.flows.servers.toy",
        str(place),
        what,
    ]


def start(place: Path, what: str, started: list[subprocess.Popen[bytes]], grace: float = 10.0) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command(place, what, grace), cwd=REPOSITORY, start_new_session=True)
    started.append(process)
    return process


def test_a_killed_server_leaves_nothing_and_what_it_left_may_save(
    tmp_path: Path, guarded: list[subprocess.Popen[bytes]]
) -> None:
    guardian = start(tmp_path, "parent", guarded)
    server, child = number(tmp_path / "server"), number(tmp_path / "child" / "server")
    assert os.getsid(child) != os.getsid(server)  # not to be reached by its group
    os.kill(server, signal.SIGKILL)
    assert guardian.wait(20) == 128 + signal.SIGKILL
    assert is_gone(child)
    assert (tmp_path / "child" / "saved").exists()


def test_a_server_is_asked_first_and_its_exit_code_is_told(tmp_path: Path, guarded: list[subprocess.Popen[bytes]]) -> None:
    guardian = start(tmp_path, "parent", guarded)
    child = number(tmp_path / "child" / "server")
    number(tmp_path / "server")
    guardian.terminate()
    assert guardian.wait(20) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "child" / "saved").exists()
    assert is_gone(child)


def test_a_server_that_does_not_listen_is_killed(tmp_path: Path, guarded: list[subprocess.Popen[bytes]]) -> None:
    guardian = start(tmp_path, "stubborn", guarded, grace=0.5)
    server = number(tmp_path / "server")
    guardian.terminate()
    assert guardian.wait(10) == 128 + signal.SIGKILL
    assert is_gone(server)


def test_a_killed_guardian_takes_its_server_along(tmp_path: Path, guarded: list[subprocess.Popen[bytes]]) -> None:
    guardian = start(tmp_path, "serve", guarded)
    server = number(tmp_path / "server")
    guardian.kill()
    guardian.wait()
    until(lambda: is_gone(server))
    assert (tmp_path / "saved").exists()


def test_a_killed_supervisor_takes_all_along(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time; from pipeline.core.processes import PARENT_PID; "
        "subprocess.Popen(sys.argv[1:], env={**os.environ, PARENT_PID: str(os.getpid())}, start_new_session=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, *command(tmp_path, "parent")], cwd=REPOSITORY) as supervisor:
        server, child = number(tmp_path / "server"), number(tmp_path / "child" / "server")
        supervisor.kill()
    until(lambda: is_gone(server) and is_gone(child))
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "child" / "saved").exists()
