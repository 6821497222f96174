"""A supervised server restarts after a pause that doubles, and nothing of it outlives it or its
parent.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.core.processes import PARENT_PID
from cloze.flows.run import server_addresses
from cloze.flows.ui import processes, service_process
from cloze.flows.ui.command import serve
from cloze.flows.ui.service_process import ServiceProcess
from cloze.flows.ui.services import Service, choose_port, environment
from tests.conftest import REPOSITORY
from tests.flows.ui.waiting import is_gone, number, until


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ServiceProcess]]:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(service_process, "FIRST_PAUSE", 0.1)
    found: list[ServiceProcess] = []
    yield found
    for child in found:
        child.kill()
    processes.end(processes.marked_processes(tmp_path / "logs"), 0)


def make(tmp_path: Path, made: list[ServiceProcess], *toy: str) -> ServiceProcess:
    module = ("tests.flows.ui.toy", str(tmp_path / "place"), *toy)
    logs = tmp_path / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    service = Service(name="toy", title="The toy", module=module, grace=5)
    child = ServiceProcess(service, logs, {processes.MARK: str(logs.resolve())})
    made.append(child)
    return child


def is_up(child: ServiceProcess) -> bool:
    """Return whether the server is up, after one tick of its supervisor."""
    child.supervise(True)
    child.check_health()
    return child.state == "up"


def test_the_state_of_a_killed_supervisor_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `cloze ui` would print its addresses while the new servers start."""
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    written = tmp_path / "runs" / ".servers" / "state.json"
    written.parent.mkdir(parents=True)
    written.write_text('{"state": "up"}')
    with pytest.raises(UsageError, match="unset MLFLOW_TRACKING_URI"):
        serve({"page": None, "prefect": None, "mlflow": 9999}, as_json=False)
    assert not written.exists()


def test_a_killed_server_restarts(tmp_path: Path, made: list[ServiceProcess]) -> None:
    child = make(tmp_path, made, "serve")
    child.supervise(False)
    assert child.process is None  # what it needs is not there
    until(lambda: is_up(child))
    first = number(tmp_path / "place" / "server")
    assert os.getsid(first) == first  # Ctrl-C in the terminal does not reach it
    assert child.describe()["pid"] == first
    with child.log.open("a") as log:  # of something else, which is no reason for the kill
        log.write("sqlalchemy.exc.IntegrityError: FOREIGN KEY constraint failed\n")
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_up(child))
    until(lambda: is_up(child))
    assert number(tmp_path / "place" / "server", besides=first) != first
    assert child.restarts == 1
    assert child.messages == [f"The toy was killed (SIGKILL); restart in 0 s, log: {child.log}"]


def test_a_killed_server_s_descendants_end_before_it_restarts(
    tmp_path: Path, made: list[ServiceProcess]
) -> None:
    child = make(tmp_path, made, "parent")
    until(lambda: is_up(child))
    server = number(tmp_path / "place" / "server")
    grandchild = number(tmp_path / "place" / "child" / "server")
    assert os.getsid(grandchild) != os.getsid(server)  # not reached by its group
    os.kill(server, signal.SIGKILL)
    until(lambda: not is_up(child))
    until(lambda: is_up(child))
    assert number(tmp_path / "place" / "server", besides=server) != server
    assert is_gone(grandchild)
    assert (tmp_path / "place" / "child" / "saved").exists()


def test_the_pause_before_a_restart_doubles(
    tmp_path: Path, made: list[ServiceProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "LONGEST_PAUSE", 0.3)
    child = make(tmp_path, made, "die", "7")
    pauses: list[float] = []
    while len(pauses) < 3:
        until(lambda: (child.supervise(True), child.restarts > len(pauses))[1])
        pauses.append(child._pause)
    assert pauses == [0.2, 0.3, 0.3]
    (said,) = child.messages  # once
    assert said.startswith("The toy ended with exit code 7 (it cannot be); restart in ")
    assert not child.has_been_up
    until(lambda: (child.supervise(True), child.process)[1])  # it is not given up so soon


def test_a_server_gets_sigterm_first_and_is_killed_if_it_ignores_it(
    tmp_path: Path, made: list[ServiceProcess]
) -> None:
    polite, stubborn = make(tmp_path / "a", made, "serve"), make(tmp_path / "b", made, "stubborn")
    for child in (polite, stubborn):
        until(lambda child=child: is_up(child))
        number(child.log.parents[1] / "place" / "server")
        child.ask_to_end()
    until(polite.has_ended)
    assert (tmp_path / "a" / "place" / "saved").exists()
    assert not stubborn.has_ended()
    stubborn.kill()
    assert stubborn.has_ended()


def test_a_killed_parent_takes_its_server_along(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time;"
        f"subprocess.Popen(sys.argv[1:], env={{**os.environ, {PARENT_PID!r}: str(os.getpid())}}, "
        f"start_new_session=True);"
        "time.sleep(60)"
    )
    toy = [sys.executable, "-m", "tests.flows.ui.toy", str(tmp_path), "serve"]
    command = [
        sys.executable,
        "-c",
        code,
        sys.executable,
        "-m",
        "cloze.flows.ui.process_guard",
        *toy,
    ]
    with subprocess.Popen(command, cwd=REPOSITORY) as parent:
        server = number(tmp_path / "server")
        parent.kill()
    until(lambda: is_gone(server))
    assert (tmp_path / "saved").exists()


def test_the_last_error_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert service_process.last_error(log) == ""
    log.write_text("started\nstill here\n\n")
    assert service_process.last_error(log) == " (still here)"
    error = "sqlalchemy.exc.OperationalError: no such host"
    log.write_text(f"Traceback:\n  File x\n{error}\n\n(Background on this error at: https://x)\n")
    assert service_process.last_error(log) == f" ({error})"


def test_leftovers_are_known_by_their_mark_alone(tmp_path: Path) -> None:
    marked = {**os.environ, processes.MARK: str(tmp_path.resolve())}
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    shell = [
        "bash",
        "-c",
        f"{sys.executable} -m tests.flows.ui.toy {tmp_path} serve >/dev/null 2>&1 & echo $!",
    ]
    orphan = int(
        subprocess.run(
            shell,
            env=marked,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            check=True,
            close_fds=True,
            text=True,
        ).stdout
    )
    try:
        number(tmp_path / "server")
        assert [process.pid for process in processes.marked_processes(tmp_path)] == [orphan]
        processes.end(processes.marked_processes(tmp_path), 10)
        assert is_gone(orphan)
        assert (tmp_path / "saved").exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


PLACES = """
from prefect.settings import get_current_settings
settings = get_current_settings()
database = settings.server.database.connection_url.get_secret_value()
print(settings.server.ui.static_directory, settings.home, database, sep="\\n")
"""


def test_prefects_server_writes_below_its_state_alone(tmp_path: Path) -> None:
    """A team's installation is another account's: Prefect copied its pages there, or showed none."""
    own = environment(tmp_path / "runs", 4200, "user:password")
    done = subprocess.run(
        [sys.executable, "-c", PLACES], env={**os.environ, **own}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    state = str(server_addresses.directory(tmp_path / "runs"))
    places = done.stdout.splitlines()
    assert len(places) == 3
    assert [place for place in places if state not in place] == []


def test_the_dashboards_usual_port_gives_way(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        with suppress(OSError):  # another dashboard has it
            stranger.bind(("127.0.0.1", 8090))
            stranger.listen()
        command = [sys.executable, "-m", "cloze", "ui", "--dashboard-only"]
        page = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert page.stderr is not None
        said, warned = page.stderr.readline(), page.stderr.readline()
        page.terminate()
        assert page.wait(30) == 0
    assert re.search(r"Dashboard of .*: http://127\.0\.0\.1:(?!8090)\d+; Ctrl-C ends it", said)
    assert warned.startswith("It has no login: every account")


def test_a_port_that_was_asked_for_and_is_taken_is_refused_and_the_usual_one_gives_way() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(UsageError, match=f"--prefect-port {port} is taken by another program"):
            choose_port(4200, port, "--prefect-port")
        other = choose_port(port, None, "--prefect-port")
        assert other != port
        assert choose_port(port, None, "--prefect-port", {other}) not in (port, other)
    assert choose_port(4200, port, "--prefect-port") == port
