"""States of servers that a file records are checked against processes and ports before they are said."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cloze.core.artifacts import lock
from cloze.flows.doctor import runs
from cloze.flows.run import server_addresses
from cloze.flows.ui import dashboard


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    for name in runs.SERVERS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@contextmanager
def sleeping(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)", *words]
    with subprocess.Popen(command) as process:
        wait_until(lambda: words == () or words[0] in psutil.Process(process.pid).cmdline())
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("fault", ["gone", "another", "stopped", "silent", "fine", "no port"])
def test_what_a_stopped_supervisor_wrote_is_not_believed(place: Path, fault: str) -> None:
    """It holds its lock and can no longer note that a server has ended or does not answer."""
    with (
        sleeping() as server,
        socket.socket() as port,
        lock.locked(str(server_addresses.directory(place))),
    ):
        port.bind(("127.0.0.1", 0))
        port.listen()
        address = f"http://127.0.0.1:{port.getsockname()[1]}"
        facts = lock.process_identity(server.pid)
        service = {"title": "B", "state": "up", "address": address, "restarts": 0, "last": "",
                   "log": "/x/b.log", "since": time.time(), "health": f"{address}/health"}  # fmt: skip
        if fault == "gone":
            end(server)
        elif fault == "another":
            facts["start"] = "1"
        elif fault == "stopped":
            server.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
        if fault in ("stopped", "no port"):
            service |= {"health": None, "address": None}
        answering = threading.Thread(target=answer_once, args=(port,), daemon=True)
        if fault == "fine":
            answering.start()
        elif fault == "silent":
            port.close()
        content = {"pid": 7, "state": "up", "services": {"b": {**service, **facts}}}
        server_addresses.write(place, content)
        (found,) = [found for found in runs.servers() if found.check == "B"]
        shown = dashboard.server_rows(content, {})[0]["state"] if fault != "fine" else "up"
    wanted = {"gone": "ended", "another": "ended", "stopped": "silent", "silent": "silent"}
    assert found.ok == (fault not in wanted)
    assert found.observed.startswith(wanted.get(fault, "up"))
    assert shown == wanted.get(fault, "up")


def answer_once(port: socket.socket) -> None:
    connection, _ = port.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")


def test_a_stopped_supervisor_is_named(place: Path) -> None:
    with sleeping() as supervisor, lock.locked(str(server_addresses.directory(place))):
        server_addresses.write(place, {**lock.process_identity(supervisor.pid), "services": {}})
        assert not [found for found in runs.servers() if found.check == "cloze ui"]
        supervisor.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(supervisor.pid).status() == psutil.STATUS_STOPPED)
        (found,) = [found for found in runs.servers() if found.check == "cloze ui"]
    assert not found.ok
    assert f"kill -CONT {supervisor.pid}" in found.fix
