"""No wait for another process's lock is without an end, and its sentence names file and holder."""

from __future__ import annotations

import ast
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloze.core import arrow, storage
from cloze.core.artifacts import checkpoints
from cloze.core.errors import UsageError
from cloze.flows.run import retention
from cloze.flows.tracking import spool_state
from tests.conftest import REPOSITORY


@contextmanager
def held(path: Path, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """A lock by another open file, as by another process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        fcntl.flock(stream, operation)
        yield


def entered(block: AbstractContextManager[Any]) -> None:
    with block:
        pass


def fetch(place: Path) -> None:
    arrow.local_copy.cache_clear()
    arrow.local_copy("memory://a", "stamp")


WAITS: dict[str, tuple[str, int, Callable[[Path], Any]]] = {
    "a copy": ("copies/*.arrow.part", fcntl.LOCK_EX, fetch),
    "users of copies": ("copies/_users", fcntl.LOCK_EX, lambda _: arrow._copies("stamp")),
    "a start": (
        retention.STARTS,
        fcntl.LOCK_EX,
        lambda place: entered(retention.starts(place)),
    ),
    "a removal": (
        retention.STARTS,
        fcntl.LOCK_SH,
        lambda place: entered(retention.starts(place, shared=False)),
    ),
    "a checkpoint": (
        f"step/{checkpoints.COMPLETE}",
        fcntl.LOCK_EX,
        lambda place: entered(checkpoints.pinned(str(place / "step"))),
    ),
    "a record": (
        "x.lock",
        fcntl.LOCK_EX,
        lambda place: entered(spool_state.exclusive(place, "x.lock")),
    ),
}


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tenth of a second for each; copies are below the directory, of a store."""
    for module, name in (
        (arrow, "STALL_SECONDS"),
        (retention, "STARTS_SECONDS"),
        (checkpoints, "REMOVAL_SECONDS"),
        (spool_state, "LOCK_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.1, raising=False)
    monkeypatch.setattr(arrow, "_IN_USE", [])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(arrow, "_copies", arrow._copies.__wrapped__)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    yield tmp_path
    while arrow._IN_USE:
        arrow._IN_USE.pop().close()


def lock_of(pattern: str, place: Path) -> Path:
    """The lock's file; copies have names by digest."""
    if not pattern.startswith("copies/"):
        return place / pattern
    directory = Path(arrow._copies("stamp"))
    if pattern.endswith("_users"):
        arrow._IN_USE.pop().close()
        return directory / "_users"
    with pytest.MonkeyPatch.context() as patch:
        names: list[str] = []

        def download(_: str, target: str) -> None:
            names.append(target)
            raise FileNotFoundError(target)

        patch.setattr(storage, "download", download)
        with pytest.raises(FileNotFoundError):
            fetch(place)
    return Path(names[0])


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_for_a_lock_ends_and_names_its_holder(name: str, short: Path) -> None:
    pattern, operation, wait = WAITS[name]
    path = lock_of(pattern, short)
    errors: list[BaseException] = []

    def waits() -> None:
        try:
            wait(short)
        except (UsageError, TimeoutError) as error:
            errors.append(error)

    with held(path, operation):
        thread = threading.Thread(target=waits, daemon=True)
        thread.start()
        thread.join(20)
        ended = not thread.is_alive()
    assert ended, "it waits as long as the other process holds the lock"
    assert f"{path} is held by process {os.getpid()} on " in str(errors[0])
    assert "end it" in str(errors[0])
    if name != "a copy":
        wait(short)  # the lock is free


def test_a_copy_that_grows_is_waited_for(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lock_of("copies/*.arrow.part", short)

    def other() -> None:
        with held(path), path.open("ab") as stream:
            ready.set()
            for _ in range(20):
                time.sleep(0.05)
                stream.write(b"x")
                stream.flush()
            path.rename(path.with_suffix(""))

    ready = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    monkeypatch.setattr(storage, "download", lambda *_: pytest.fail("it is fetched by the other"))
    arrow.local_copy.cache_clear()
    assert Path(arrow.local_copy("memory://a", "stamp")).read_bytes() == b"x" * 20
    thread.join()


def test_nothing_waits_for_an_flock_without_an_end() -> None:
    """Each call is non-blocking, but for the lock of a spool that no other process has seen."""
    blocking = []
    for package in ("core", "pipeline", "model", "flows", "labs"):
        for path in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                call = ast.unparse(node) if isinstance(node, ast.Call) else ""
                is_lock = call.startswith(("fcntl.flock(", "fcntl.lockf(", "flock("))
                if is_lock and "LOCK_NB" not in call:
                    blocking.append((path.name, call))
    assert blocking == [("spool.py", "fcntl.flock(self._stream, fcntl.LOCK_SH)")]
