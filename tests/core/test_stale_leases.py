"""When a lease is dead: by its process on this machine, by its age from any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import lock

SECONDS = 100.0


def lease(directory: Path, age: float) -> str:
    path = directory / "lease"
    path.touch()
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return str(path)


def dead_here() -> dict[str, Any]:
    """The identity of a process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    facts = {**lock.process_identity(), "pid": child.pid, "start": lock._start(child.pid)}
    assert lock.is_running(facts)
    child.kill()
    child.communicate()
    return facts


@pytest.mark.parametrize("age", [0.0, SECONDS - 20, SECONDS + 20])
def test_a_lease_is_dead_by_its_age(age: float, tmp_path: Path) -> None:
    """Of a process that lives here, and of one elsewhere, of which its age is all that is known."""
    path = lease(tmp_path, age)
    for facts in (
        lock.process_identity(),
        {**lock.process_identity(), "host": "another", "boot": "b"},
        {},
    ):
        assert lock.is_dead(path, facts, SECONDS) == (age > SECONDS)
    assert [file.name for file in tmp_path.iterdir()] == ["lease"]  # the probe is gone


def test_a_lease_of_a_process_that_ended_here_is_dead_at_once(tmp_path: Path) -> None:
    facts, path = dead_here(), lease(tmp_path, 0.0)
    assert lock.is_dead(path, facts, SECONDS)
    assert not lock.is_dead(path, {**facts, "host": "another"}, SECONDS)


def test_a_process_is_known_by_more_than_its_id() -> None:
    own = lock.process_identity()
    assert lock.is_here(own)
    assert lock.is_running(own)
    assert lock.is_running({name: own[name] for name in ("host", "pid", "boot")})
    for changed in ({"start": "1"}, {"boot": "another"}, {"host": "another"}, {"pid": 1 << 30}):
        assert not lock.is_running({**own, **changed}), changed
        assert not lock.send_signal({**own, **changed}, 0), changed
    assert lock.send_signal(own, 0)
