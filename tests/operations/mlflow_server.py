"""A real MLflow server that tests start, kill and start again on the same port and the same database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

START_SECONDS = 120.0


class Server:
    """Args: store: the database's address; artifacts: where the server keeps files, if it is to say so."""

    def __init__(self, place: Path, store: str | None = None, artifacts: str | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.place, self.store = place, store or f"sqlite:///{place}/server.db"
        self.artifacts = artifacts or str(place / "artifacts")
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return once it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        command = ["mlflow", "server", "--backend-store-uri", self.store, "--artifacts-destination", self.artifacts]
        with (self.place / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.place,
                env={**os.environ, "MLFLOW_TRACKING_URI": "", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process is not None
            assert self.process.poll() is None, (self.place / "server.log").read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                assert time.monotonic() < deadline, "the server did not come up"
                time.sleep(0.2)

    def kill(self) -> None:
        """kill -9 of the server and all that it has started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.url)
