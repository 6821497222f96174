"""The servers of `cloze ui`: a taken port is told at once, and what was started is ended with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from flows.prefect import servers
from flows.prefect.nightly import NightlySession
from pipeline.core.errors import UsageError

# A worker whose flow saves a checkpoint for two seconds after SIGTERM, and a child of it that ignores the signal.
WORKER = """
import pathlib, signal, subprocess, sys, time
place = pathlib.Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
def stop(*_):
    time.sleep(2)
    (place / "saved").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
(place / "child").write_text(str(child.pid))
time.sleep(60)
"""


def test_a_taken_port_is_told_at_once() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken .*--prefect-port"):
            servers.run_all(prefect_port=port, mlflow_port=0)
    servers.check_free(port, "--prefect-port")


def test_what_was_started_is_ended_after_it_has_saved(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    with servers.Servers(tmp_path / "logs") as started:
        process, _ = started.start("worker", ["worker", str(tmp_path)], {"PYTHONPATH": str(tmp_path)})
        deadline = time.monotonic() + 30
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child = int((tmp_path / "child").read_text())
        assert os.getsid(process.pid) == process.pid  # Ctrl-C in the terminal does not reach it
    assert (tmp_path / "saved").exists()
    assert process.returncode == 0
    assert _is_gone(child)


def _is_gone(process: int) -> bool:
    """Whether a process has ended; one that nobody waited for may still be listed."""
    for _ in range(100):
        try:
            os.kill(process, 0)
            with open(f"/proc/{process}/stat", encoding="ascii") as stream:
                if stream.read().split(") ")[1].startswith("Z"):
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    return False


def test_a_night_without_its_sections_is_told(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("corpus: {sources: [{kind: docstrings, path: stdlib}]}\n")
    with pytest.raises(UsageError, match="'mine' has no section finetune, which the night runs"):
        NightlySession(str(config), {})
