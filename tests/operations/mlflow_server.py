"""A real MLflow server that tests start, kill and start again on the same port and the same
database.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from pathlib import Path
from typing import Any

START_SECONDS = 120.0


def drain(spools: Path, uri: str, seconds: float = 120.0) -> None:
    """Have one run after the other send what is left in a directory of spools, until nothing is."""
    from cloze.flows.tracking.spool import Spool

    deadline = time.monotonic() + seconds
    while list(spools.glob("*.jsonl")):
        assert time.monotonic() < deadline, (spools / "sender.log").read_text()[-2000:]
        spool = Spool(spools, uri)
        spool.start_sender()
        spool.close()
        time.sleep(0.1)


class Server:
    """Args: store: the database's address; artifacts: where the server keeps files, if it is to say
    so.
    """

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
        command = [
            "mlflow",
            "server",
            "--backend-store-uri",
            self.store,
            "--artifacts-destination",
            self.artifacts,
        ]
        with (self.place / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    *command,
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self.port),
                    "--workers",
                    "1",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.place,
                env={
                    **os.environ,
                    "MLFLOW_TRACKING_URI": "",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
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


class ThreadServer:
    """A real MLflow server in a thread of the test, with faults on demand.

    Attributes:
        poison: requests whose body holds these bytes are answered with 500.
        is_broken: whether every request is answered with 500.
        is_read_only: whether every request that would change something is answered with 500.
    """

    def __init__(self, place: Path) -> None:
        with (
            warnings.catch_warnings()
        ):  # of starlette, whose old module MLflow imports at its first search
            warnings.simplefilter("ignore")
            importlib.import_module("mlflow.server.fastapi_app")
        import mlflow
        from mlflow.server import app
        from mlflow.server.handlers import _get_tracking_store

        names = {
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{place}/server.db",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": f"{place}/artifacts",
        }
        os.environ |= names
        _get_tracking_store().search_experiments()  # reads the names, and makes the tables
        for name in names:
            del os.environ[name]
        mlflow.set_tracking_uri(None)  # which the store has set for all of this process
        self._app, self.poison, self.is_broken, self.is_read_only, self._port = (
            app,
            b"",
            False,
            False,
            0,
        )
        self._server: Any = None
        self.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        writes = environ["REQUEST_METHOD"] != "GET" and not environ["PATH_INFO"].endswith("/search")
        if (
            self.is_broken
            or (self.poison and self.poison in body)
            or (self.is_read_only and writes)
        ):
            start_response("500 INTERNAL SERVER ERROR", [("Content-Type", "text/plain")])
            return [b"out of order"]
        return self._app(environ, start_response)

    def start(self) -> None:
        """Listen, on the same port as before."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        if self._server is None:
            quiet = type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
            self._server = make_server(
                "127.0.0.1", self._port, self._answer, threaded=True, request_handler=quiet
            )
            self._port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.url)
