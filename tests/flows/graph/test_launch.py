"""Stages as processes: progress and outcome come back, faults become sentences, and nobody is left behind."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.graph import launch
from pipeline.core.errors import ClozeError, DataError, Stopped
from pipeline.core.execution import Execution
from pipeline.core.stage import Result, execute
from tests.conftest import REPOSITORY
from tests.flows.toy import STAGE, ToyConfig


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def run(out: Path, processes: int = 1, report: Any = None, **config: Any) -> Result:
    stage = dataclasses.replace(STAGE, run=launch.in_process(STAGE, "tests.flows.toy:STAGE"))
    more = {"report": report} if report else {}
    return execute(stage, ToyConfig(**config), {}, str(out), execution=Execution(processes=processes), **more)


def living(out: Path) -> list[int]:
    return [pid for pid in (int(p.read_text()) for p in out.glob("_pid-*")) if psutil.pid_exists(pid)]


def test_outcome_progress_and_counters_come_back(tmp_path: Path) -> None:
    events: list[tuple[Any, ...]] = []
    result = run(tmp_path / "a", processes=2, report=lambda *event: events.append(event))
    assert (result.manifest.rows, result.manifest.summary, result.manifest.counters) == (1, {"rank": 0}, {"seen": 5})
    assert [event[:3] for event in events] == [(1, 3, "steps"), (2, 3, "steps"), (3, 3, "steps")]  # rank 0's alone
    assert (tmp_path / "a" / "out.txt").read_text() == "2"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_ranks_keep_freed_memory_unless_the_user_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (1 << 27) // resource.getpagesize()
    assert run(tmp_path / "a", act="allocate").manifest.counters["faults"] < 10
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576")
    assert run(tmp_path / "b", act="allocate").manifest.counters["faults"] >= pages


def test_chatter_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", act="chat")
    assert "chatter" in (tmp_path / "a" / "_logs" / "rank0.log").read_text()
    assert "chatter" not in capfd.readouterr().out
    assert [entry.path for entry in run(tmp_path / "a", act="chat").manifest.files] == ["out.txt"]


def test_a_users_fault_keeps_its_kind_and_ends_the_peers(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(DataError, match="shard 3 is cut short"):
        run(tmp_path / "a", processes=2, act="fail", rank=1)
    assert time.monotonic() - started < 20
    assert living(tmp_path / "a") == []


def test_a_crash_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match=r"ZeroDivisionError: in a library \(log: .*_logs\)"):
        run(tmp_path / "a", act="crash")
    assert "Traceback" in (tmp_path / "a" / "_logs" / "rank0.log").read_text()


def test_a_killed_rank_is_named_and_its_peer_does_not_hang(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match="rank 1 was killed by SIGKILL, perhaps for want of memory"):
        run(tmp_path / "a", processes=2, act="die", rank=1)
    assert living(tmp_path / "a") == []


SCRIPT = """
    import sys
    from pathlib import Path
    from tests.flows.graph.test_launch import run
    import signal
    from flows.cli import _interrupt
    signal.signal(signal.SIGTERM, _interrupt)
    from pipeline.core.errors import Stopped
    try:
        run(Path(sys.argv[1]), processes=2, act="hang")
    except Stopped as error:
        print(error)
        sys.exit(4)
"""


def start_hanging(out: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(out)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    deadline = time.monotonic() + 30
    while len(list(out.glob("_pid-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)  # until their handlers stand
    return process


def test_sigterm_is_passed_on_and_becomes_stopped(tmp_path: Path) -> None:
    process = start_hanging(tmp_path / "a")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, "checkpoint saved" in output) == (Stopped.exit_code, True)
    assert living(tmp_path / "a") == []


def test_ranks_die_with_a_killed_parent(tmp_path: Path) -> None:
    process = start_hanging(tmp_path / "a")
    ranks = living(tmp_path / "a")
    assert len(ranks) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 5
    while living(tmp_path / "a") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living(tmp_path / "a") == []
