"""Processes of a launch that stood still, alone or together, and go on."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError
from cloze.core.processes import HeartbeatReader, HeartbeatWriter, process_state
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.core.stages.worker import Job
from cloze.flows.launch import agent, agent_launcher, coordinator, event_files, hang_detection
from cloze.flows.launch.agent import Agent
from cloze.flows.launch.hang_detection import HangDetector
from cloze.flows.launch.local import LocalRanks
from cloze.flows.launch.protocol import LaunchRequest, RankEvent
from tests.flows.launch.test_agents_words import Clock, told, waiting_for
from tests.flows.launch.test_storage_stalls import launch_of


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_rank_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """It has its limit anew, and the run is told; others may wait for it meanwhile."""
    monkeypatch.setattr(hang_detection, "POLL_SECONDS", 0.01)
    (tmp_path / "rank0.log").touch()
    reader = HeartbeatReader()
    HeartbeatWriter(reader.number).begin_step(3, 0.2, 0.2)
    with subprocess.Popen(["sleep", "60"]) as rank:
        rank.send_signal(signal.SIGSTOP)
        ranks = LocalRanks.__new__(LocalRanks)
        ranks.processes, ranks._ended, ranks._stopping = {5: rank}, set(), False
        ranks._selector = SimpleNamespace(get_map=dict)  # type: ignore[assignment]
        ranks._hangs = HangDetector([rank.pid], [reader], [tmp_path / "rank0.log"], elsewhere)
        events: list[RankEvent] = []
        while not events:
            events = ranks.events(0.01)
        assert process_state(rank.pid) != "T"
        assert ranks._hangs.check() is None
        rank.kill()
    ((number, event),) = events
    assert number is None
    assert "rank 5 was stopped (SIGSTOP)" in event["figures"]["warning"]


def test_the_warning_of_another_host_arrives(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    group, node = waiting_for(monkeypatch, clock)
    events: list[RankEvent] = []
    group._process(node, {"figures": {"warning": "w"}}, events)
    assert events == [(None, {"figures": {"warning": "w"}})]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(agent_launcher, "time", found)
    return found


@pytest.mark.parametrize("hello", [False, True])
def test_a_coordinator_that_slept_waits_for_its_agents_as_long_as_before(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, hello: bool
) -> None:
    """They slept, too, before or after their first sign."""
    group, node = waiting_for(monkeypatch, clock, hello=hello, host="gpu3")
    clock.now += 10_000
    assert told(group, node) == []
    group._last_poll = clock.now
    assert told(group, node) == []


def test_an_agent_that_slept_waits_for_its_coordinator_as_long_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, here = Clock(), launch_of(tmp_path)
    monkeypatch.setattr(agent, "time", clock)

    def peek(path: str) -> str:
        if clock.now > 12_000:
            event_files.write_json(here.file("go.json"), {"port": 1})
        elif 1100 < clock.now < 1200:
            clock.now += 10_900  # asleep
        return ""

    monkeypatch.setattr(event_files, "peek", peek)
    assert Agent(here, 0, leash=False)._wait_to_go() == {"port": 1}


class Ranks:
    """One rank, which is lost, or succeeds."""

    ranks: Sequence[int] = (0,)

    def __init__(self, pause: float, events: list[RankEvent]) -> None:
        self._pause, self._events, self.finished = pause, events, False

    def events(self, seconds: float) -> list[RankEvent]:
        time.sleep(self._pause)
        self.finished, events, self._events = True, self._events, []
        return events

    def stop(self, grace: float) -> None: ...

    def close(self) -> None: ...

    def host(self, rank: int) -> None: ...


LOST: RankEvent = (None, {"fault": "rank 0 has lost its connection", "exit_code": 1})
DONE: list[RankEvent] = [
    (0, {"outcome": {"rows": 1, "summary": {}}, "counters": {}}),
    (0, {"ended": 0, "ours": False}),
]


@pytest.mark.parametrize(
    ("pauses", "outcome"),
    [([0.3], "done"), ([0.3, 0.3, 0.3], "done"), ([0.3] * 4, "lost"), ([0.0], "lost")],
)
def test_ranks_that_are_lost_after_all_stood_still_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], outcome: str
) -> None:
    """Their connections' time limits have passed; three times, without `run.restarts`."""
    monkeypatch.setattr(coordinator, "ASLEEP_SECONDS", 0.2)
    monkeypatch.setattr(coordinator, "FIRST_SECONDS", 0.0)
    attempts = [*(Ranks(pause, [LOST]) for pause in pauses), Ranks(0.0, DONE)]
    launcher: Any = SimpleNamespace(start=lambda work: attempts.pop(0))
    told: list[str] = []

    class Told(Reporter):
        def progress(self, done: float, total: float | None, unit: str, figures: Any) -> None:
            told.append(figures["warning"])

    build = BuildContext(
        path=str(tmp_path), inputs={}, execution=Execution(), fingerprint="f", build_id="b",
        report=Told(),
    )  # fmt: skip
    job = Job(
        stage="train", reference="", config={}, path=str(tmp_path), inputs={}, execution={},
        fingerprint="f", build_id="b", token="",
    )  # fmt: skip
    work = LaunchRequest(job=job, worker="w", processes=1, build=build)
    if outcome == "done":
        assert coordinator.run_with_restarts(launcher, work).rows == 1
    else:
        with pytest.raises(ClozeError, match="lost its connection"):
            coordinator.run_with_restarts(launcher, work)
    again = "rank 0 has lost its connection; started again in 0 s, all stood still before"
    assert told == [again] * min(len([pause for pause in pauses if pause]), 3)
