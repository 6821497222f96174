"""When a server is started, when its end is recorded, and when it is given up."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.ui import service_process
from cloze.flows.ui.service_process import ServiceProcess
from cloze.flows.ui.services import Service


def supervised(
    monkeypatch: pytest.MonkeyPatch,
    *,
    process: Any = None,
    due: float = 0.0,
    cleaning: bool = False,
) -> tuple[Any, list[Any]]:
    """A service at second 100, and what is done to it."""
    monkeypatch.setattr(service_process, "time", SimpleNamespace(monotonic=lambda: 100.0))
    child: Any = object.__new__(ServiceProcess)
    child.process, child._not_before = process, due
    child._cleaning = SimpleNamespace(is_alive=lambda: cleaning)
    done: list[Any] = []
    monkeypatch.setattr(child, "_start", lambda: done.append("start"))
    monkeypatch.setattr(child, "_ended", lambda code: done.append(code))
    return child, done


@pytest.mark.parametrize(
    ("ready", "due", "cleaning", "started"),
    [
        (True, 100.0, False, True),
        (True, 99.0, False, True),
        (True, 100.1, False, False),
        (False, 0.0, False, False),
        (True, 0.0, True, False),
    ],
)
def test_it_starts_once_it_is_due_others_are_ready_and_the_last_is_cleaned_up(
    monkeypatch: pytest.MonkeyPatch, ready: bool, due: float, cleaning: bool, started: bool
) -> None:
    child, done = supervised(monkeypatch, due=due, cleaning=cleaning)
    child.supervise(ready)
    assert done == ["start"] * started


@pytest.mark.parametrize(("code", "done"), [(None, []), (0, [0]), (-9, [-9])])
@pytest.mark.parametrize("ready", [True, False])
def test_an_end_is_recorded_with_its_code_and_nothing_starts_meanwhile(
    monkeypatch: pytest.MonkeyPatch, code: int | None, done: list[int], ready: bool
) -> None:
    child, found = supervised(monkeypatch, process=SimpleNamespace(poll=lambda: code))
    child.supervise(ready)
    assert found == done


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceProcess:
    """A server that is due at once, and is not really started."""
    monkeypatch.setattr(service_process, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(ServiceProcess, "_end_leftovers", lambda self: None)
    service = Service(name="toy", title="The toy", module=("x",), health="http://127.0.0.1:9")
    return ServiceProcess(service, tmp_path, {})


def ends(child: ServiceProcess, error: str, state: str = "starting") -> None:
    """It started, and ended in that state with that last line in its log."""
    child.log.write_text(f"Traceback:\n{error}\n")
    child.since, child.state = time.time(), state
    child._ended(1)


NEWER = "cloze.core.errors.UsageError: /r/mlflow.db: a newer MLflow made it (schema a1b2)"
HOPELESS = {
    f"{NEWER}; upgrade MLflow here": "another database in MLFLOW_TRACKING_URI",
    "alembic.util.exc.CommandError: Can't locate revision identified by 'f00'": "a newer version",
    "mlflow.exceptions.MlflowException: Detected out-of-date database schema": "mlflow db upgrade",
    "ModuleNotFoundError: No module named 'uvicorn'": "pip install",
}
AT_LAST = {
    "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 4200): address"
    " already in use": "another port",
    "sqlite3.OperationalError: database or disk is full": "free some space",
    "OSError: [Errno 28] No space left on device": "free some space",
    "it cannot be": "what the log says",
}


@pytest.mark.parametrize("error", [*HOPELESS, *AT_LAST])
def test_a_server_that_ends_at_once_is_given_up_with_one_sentence(
    child: ServiceProcess, error: str
) -> None:
    """At the first end where nothing changes by itself; a port or a disk may be free soon."""
    most = 1 if error in HOPELESS else service_process.GIVE_UP
    for count in range(most):
        assert child.state == "waiting", count
        ends(child, error)
    assert child.state == "broken"
    told = child.messages[-1]
    assert "is not started again: " in told
    assert (HOPELESS | AT_LAST)[error] in told
    assert f"then start `cloze ui` again; log: {child.log}" in told
    assert len(child.messages) == min(most, 2)  # that it restarts, and that it does not
    child.supervise(True)
    assert child.process is None


def test_a_server_that_was_up_is_never_given_up(child: ServiceProcess) -> None:
    for _ in range(2 * service_process.GIVE_UP):
        ends(child, "it cannot be", "up")
    assert child.state == "waiting"
    assert len(child.messages) == 2 * service_process.GIVE_UP


def test_a_server_that_stands_still_is_left_alone_and_is_up_again(
    child: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may be slow or asleep; a restart would lose what it does."""
    answers = [True, False, False, True]
    monkeypatch.setattr(service_process, "answers", lambda url: answers.pop(0))
    child.process = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    seen = []
    for _ in range(4):
        child.check_health()
        child.supervise(True)
        seen.append(child.state)
    assert seen == ["up", "silent", "silent", "up"]
    assert (child.restarts, child.messages) == (0, [])
    child.process = None


def test_a_server_that_cannot_be_started_ends_no_other(
    child: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program is gone, or its log cannot be written."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    for _ in range(service_process.GIVE_UP):
        child._not_before = 0.0
        child.supervise(True)
    assert child.state == "broken"
    assert "The toy cannot start (/nowhere/python: No such file" in child.messages[-1]


@pytest.mark.parametrize("error", HOPELESS)
def test_a_server_that_neither_answers_nor_ends_is_ended_and_given_up(
    child: ServiceProcess, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """Its start failed, and a thread of a library outlives that."""
    monkeypatch.setattr(service_process, "answers", lambda url: False)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    child.process, child.state, child.since = process, "starting", time.time()
    child.log.write_text(f"Traceback:\n{error}\n")
    child.check_health()
    child.supervise(True)
    assert (child.state, process.poll()) == ("starting", None), "a start may take its time"
    child.since -= service_process.HUNG_SECONDS + 1
    child.check_health()
    process.wait(10)
    child.supervise(True)
    assert child.state == "broken"
    assert HOPELESS[error] in child.messages[-1]
