"""A server that dies is started again, more and more slowly, and in the end given up with a sentence; ports are chosen or refused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.servers import child as children
from flows.servers import ports, processes
from flows.servers.child import Child
from flows.servers.services import Service
from pipeline.core.errors import UsageError
from tests.conftest import REPOSITORY
from tests.flows.servers.waiting import is_gone, number, until


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(children, "FIRST_PAUSE", 0.1)
    found: list[Child] = []
    yield found
    for child in found:
        child.kill()
    processes.end(processes.marked(tmp_path / "logs"), 0)


def make(tmp_path: Path, made: list[Child], *toy: str) -> Child:
    service = Service(name="toy", title="The toy", module=("tests.flows.servers.toy", str(tmp_path / "place"), *toy), grace=5)
    logs = tmp_path / "logs"
    logs.mkdir(exist_ok=True)
    child = Child(service, logs, {processes.MARK: str(logs.resolve())})
    made.append(child)
    return child


def tended(child: Child) -> bool:
    child.tend(True)
    child.look()
    return child.state == "up"


def test_a_killed_server_is_started_again(tmp_path: Path, made: list[Child]) -> None:
    child = make(tmp_path, made, "serve")
    child.tend(False)
    assert child.process is None  # what it needs is not there
    until(lambda: tended(child))
    first = number(tmp_path / "place" / "server")
    assert child.process is not None
    assert os.getsid(child.process.pid) == child.process.pid  # Ctrl-C in the terminal does not reach it
    assert child.describe()["pid"] == first
    os.kill(first, signal.SIGKILL)
    until(lambda: not tended(child))
    until(lambda: tended(child))
    assert number(tmp_path / "place" / "server", besides=first) != first
    assert child.restarts == 1
    assert child.told == ["The toy was killed (SIGKILL); it is started again"]


def test_who_is_left_of_a_server_and_its_guardian_is_ended_before_it_is_started_again(
    tmp_path: Path, made: list[Child]
) -> None:
    child = make(tmp_path, made, "parent")
    until(lambda: tended(child))
    server, grandchild = number(tmp_path / "place" / "server"), number(tmp_path / "place" / "child" / "server")
    assert child.process is not None
    for pid in (child.process.pid, server):  # both at once, as `pkill -9 -f` does
        os.kill(pid, signal.SIGKILL)
    until(lambda: not tended(child))
    until(lambda: tended(child))
    assert number(tmp_path / "place" / "server", besides=server) != server
    assert is_gone(grandchild)
    assert (tmp_path / "place" / "child" / "saved").exists()


def test_a_server_that_cannot_start_is_given_up_with_its_last_words(
    tmp_path: Path, made: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "QUICK_DEATHS", 3)
    monkeypatch.setattr(children, "QUICK_SECONDS", 0.0)  # however long it took: it never was up
    child = make(tmp_path, made, "die", "7")
    until(lambda: (child.tend(True), child.state == "given up")[1])
    assert child.told[-1] == f"The toy ended with exit code 7 3 times in a row and is given up (it cannot be); see {child.log}"
    assert child.restarts == 2
    child.tend(True)
    assert child.process is None


def test_of_a_log_its_last_error_is_told(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert children.last_words(log) == ""
    log.write_text("started\nstill here\n\n")
    assert children.last_words(log) == " (still here)"
    log.write_text(
        "Traceback:\n  File x\nsqlalchemy.exc.OperationalError: no such host\n\n(Background on this error at: https://x)\n"
    )
    assert children.last_words(log) == " (sqlalchemy.exc.OperationalError: no such host)"


def test_leftovers_are_known_by_their_mark_alone(tmp_path: Path) -> None:
    environment = {**os.environ, processes.MARK: str(tmp_path.resolve())}
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    shell = ["bash", "-c", f"{sys.executable} -m tests.flows.servers.toy {tmp_path} serve >/dev/null 2>&1 & echo $!"]
    orphan = int(
        subprocess.run(
            shell, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, close_fds=True, text=True
        ).stdout
    )
    try:
        number(tmp_path / "server")
        assert [process.pid for process in processes.marked(tmp_path)] == [orphan]
        services = {"a": {"guardian": stranger.pid, "started": 1.0}}  # a number that another process has now
        assert processes.recorded(services) == []
        processes.end(processes.marked(tmp_path), 10)
        assert is_gone(orphan)
        assert (tmp_path / "saved").exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_that_was_asked_for_and_is_taken_is_refused_and_the_usual_one_gives_way() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(UsageError, match=f"--prefect-port {port} is taken by another program"):
            ports.choose(4200, port, "--prefect-port")
        other = ports.choose(port, None, "--prefect-port")
        assert other != port
        assert ports.choose(port, None, "--prefect-port", {other}) not in (port, other)
    assert ports.choose(4200, port, "--prefect-port") == port


def test_a_clock_that_is_set_changes_no_process_start() -> None:
    since = processes.started(os.getpid())
    assert since is not None
    assert processes.is_alive(os.getpid(), since)
    assert not processes.is_alive(os.getpid(), since + 1)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        time.sleep(0.1)
        until(lambda: processes.started(ended.pid) is None)  # a zombie is no process
