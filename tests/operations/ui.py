"""`cloze ui` for tests: on free ports, over runs of its own, ended as a person ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloze.core.processes import free_ports
from cloze.flows.run import server_addresses
from cloze.flows.ui import processes
from tests.flows.ui.waiting import until
from tests.operations.api import log_in

START_SECONDS = 240.0


def start_ui(place: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`cloze ui --json` with `place` as its working directory, and `place/runs` for the runs; its
    messages go to `place/ui.err`.
    """
    ports = dict(
        zip(
            ("--prefect-port", "--mlflow-port", "--dashboard-port"),
            map(str, free_ports(3)),
            strict=True,
        )
    )
    given = [
        word for option, port in ports.items() if option not in arguments for word in (option, port)
    ]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "CLOZE_"))
    }
    clean["CLOZE_SLOTS_DIR"] = os.environ.get("CLOZE_SLOTS_DIR", str(place / "slots"))
    with (place / "ui.err").open("ab") as messages:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "cloze"), "ui", "--json", *given, *arguments],
            cwd=place, env={**clean, **environment}, stdout=subprocess.PIPE, stderr=messages,
            text=True, start_new_session=True,
        )  # fmt: skip


def addresses(ui: subprocess.Popen[str], place: Path) -> dict[str, Any]:
    """What `cloze ui` prints when all is up."""
    assert ui.stdout is not None
    line = ui.stdout.readline()
    assert line, (place / "ui.err").read_text()
    found: dict[str, Any] = json.loads(line)
    log_in(found["api"], found["login"])
    return found


@contextmanager
def running_ui(place: Path, **environment: str) -> Iterator[dict[str, Any]]:
    """The addresses of a `cloze ui` that has come up; afterwards it is ended, and nothing of it may
    be left.
    """
    ui = start_ui(place, **environment)
    try:
        yield addresses(ui, place)
        ui.send_signal(signal.SIGINT)
        assert ui.wait(120) == 0, (place / "ui.err").read_text()
        assert processes.marked_processes(server_addresses.directory(place / "runs")) == []
    finally:
        end(ui, place)


def end(ui: subprocess.Popen[str], place: Path) -> None:
    """After a failed test: nothing stays."""
    with suppress(ProcessLookupError):
        ui.kill()
    ui.wait()
    if ui.stdout is not None:
        ui.stdout.close()
    until(
        lambda: (
            processes.end(
                processes.marked_processes(server_addresses.directory(place / "runs")), 0
            ),
            True,
        )[1]
    )
