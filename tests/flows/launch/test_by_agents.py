"""Agents on several hosts, followed through the directory that they share: what they tell comes
back, and none outlives its head.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.core.errors import ClozeError, DataError, StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.flows.launch import agent_launcher, cancel_requests, coordinator, host_setup, protocol
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.launch.test_local import Listener, living
from tests.flows.toy import STAGE, ToyConfig


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))
    monkeypatch.setitem(protocol.LAUNCHERS, "here", "tests.flows.launch.here:LAUNCHER")


def run(
    out: Path,
    report: Reporter = NULL_REPORTER,
    execution: Mapping[str, Any] | None = None,
    **config: Any,
) -> BuildResult:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    how = Execution.model_validate(
        {"launcher": "here", "nodes": 3, "grace_seconds": 20, **(execution or {})}
    )
    return execute(stage, ToyConfig(**config), {}, str(out), execution=how, report=report)


def left(out: Path) -> list[int]:
    """Ranks and agents that live."""
    agents = [int(path.read_text()) for path in out.glob("_agent-*")]
    return living(out) + [pid for pid in agents if psutil.pid_exists(pid)]


def soon(true: Callable[[], Any], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_three_hosts_do_one_stage_and_tell_of_it(tmp_path: Path) -> None:
    listener = Listener()
    result = run(tmp_path / "a", listener)
    assert (result.manifest.rows, result.manifest.summary, result.manifest.counters) == (
        1,
        {"rank": 0},
        {"seen": 5},
    )
    reported = [
        event
        for step in (1, 2, 3)
        for event in (("progress", step, 3, "steps"), ("metrics", step, 1.0))
    ]
    assert listener.events == [("begin", result.manifest.build), *reported]  # rank 0's alone
    assert (tmp_path / "a" / "out.txt").read_text() == "3"
    assert left(tmp_path / "a") == []


def test_a_killed_rank_is_named_with_its_host(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match=r"^toy rank 1 on host b was killed \(SIGKILL.*rank1.log$"):
        run(tmp_path / "a", act="die", rank=1)
    assert left(tmp_path / "a") == []


def test_a_users_fault_on_any_host_keeps_its_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shard 3 is cut short"):
        run(
            tmp_path / "a", act="fail", rank=2, execution={"restarts": 3}
        )  # which would come again: no restart
    assert left(tmp_path / "a") == []
    assert len(list((tmp_path / "a" / "_logs" / "launches").iterdir())) == 1


def test_a_host_whose_agent_is_killed_is_lost_and_named(tmp_path: Path) -> None:
    def kill() -> None:
        soon(lambda: len(living(tmp_path / "a")) == 3)
        os.kill(int((tmp_path / "a" / "_agent-1").read_text()), signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(kill)
        with pytest.raises(ClozeError, match="^host b is lost: its agent ended without a message"):
            run(tmp_path / "a", act="hang")
    soon(lambda: not left(tmp_path / "a"))  # the kernel ends the ranks of a killed agent


def test_a_host_that_stands_still_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "LOST_SECONDS", 8.0)
    monkeypatch.setattr(agent_launcher, "STOP_SECONDS", 2.0)
    stopped: list[int] = []

    def pause() -> None:
        soon(lambda: len(living(tmp_path / "a")) == 3)
        stopped.append(int((tmp_path / "a" / "_agent-2").read_text()))
        os.kill(stopped[0], signal.SIGSTOP)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(pause)
        with pytest.raises(ClozeError, match="^host c is lost: no sign of life for 8 s"):
            run(tmp_path / "a", act="hang", execution={"grace_seconds": 1})
    soon(lambda: not left(tmp_path / "a"))  # the kernel ends the ranks of a killed agent


def test_a_host_that_refuses_leaves_no_rank_on_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**host_setup.identity(), "code": "0123456789ab"}
    monkeypatch.setattr(agent_launcher, "identity", lambda: other)  # the head's
    with pytest.raises(
        UsageError,
        match=(
            r"^host \w has other source files of Cloze: hash \w{12}, the head 0123456789ab; "
            r"install the same"
        ),
    ):
        run(tmp_path / "a", execution={"restarts": 3})
    assert (left(tmp_path / "a"), list((tmp_path / "a").glob("_pid-*"))) == ([], [])


def test_a_rank_that_was_killed_is_started_again(tmp_path: Path) -> None:
    listener = Listener()
    result = run(tmp_path / "a", listener, act="die once", rank=1, execution={"restarts": 2})
    assert result.manifest.summary == {"rank": 0}
    assert len(list((tmp_path / "a" / "_logs" / "launches").iterdir())) == 2


def test_restarts_are_counted_and_end_where_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.flows.launch.coordinator.FIRST_SECONDS", 0.1)
    with pytest.raises(ClozeError, match="rank 1 on host b was killed"):
        run(tmp_path / "a", act="die", rank=1, execution={"restarts": 5})
    assert (
        len(list((tmp_path / "a" / "_logs" / "launches").iterdir())) == 2
    )  # the same twice, and no newer checkpoint


def test_cancel_from_elsewhere_stops_all_hosts_with_their_checkpoints(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(run, tmp_path / "a", act="slow")
        soon(lambda: len(living(tmp_path / "a")) == 3)
        time.sleep(0.5)
        reported: list[str] = []
        found = cancel_requests.cancel(str(tmp_path / "a"), reported.append)
        with pytest.raises(StoppedError, match="step 7"):
            going.result(timeout=60)
    assert (found["state"], len(reported)) == ("cancelled", 1)
    assert "has 20 s" in reported[0] or "have 20 s" in reported[0]
    assert left(tmp_path / "a") == []
    with pytest.raises(UsageError, match="no process is building"):
        cancel_requests.cancel(str(tmp_path / "a"), reported.append)


def test_an_agent_that_does_not_see_the_directory_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from cloze.flows.launch import agent

    assert agent.main([str(tmp_path / "_logs" / "launches" / "1-a"), "1"]) == UsageError.exit_code
    assert "put the artifact's directory where all hosts share it" in capfd.readouterr().err
