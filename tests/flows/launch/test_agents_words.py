"""What an agent and its coordinator say of each other: addresses, silence, losses, word for word."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.launch import agent_launcher, event_files
from cloze.flows.launch.agent_launcher import AGENT_START_TIMEOUT, GAP_SECONDS
from cloze.flows.launch.protocol import LOST_SECONDS
from tests.flows.launch.test_host_gpus import agent_of


@pytest.mark.parametrize(
    ("nodes", "addresses", "expected"),
    [
        (1, (), "127.0.0.1"),
        (2, (), "a"),
        (1, ("10.0.0.1",), "10.0.0.1"),
        (2, ("10.0.0.1", "10.0.0.2"), "10.0.0.1"),
        (2, ("", "10.0.0.2"), "a"),
    ],
)
def test_an_agent_is_reached_by_its_address_or_name_and_alone_by_loopback(
    tmp_path: Path, nodes: int, addresses: tuple[str, ...], expected: str
) -> None:
    one = agent_of(
        tmp_path / "a", hosts=("a", "b")[:nodes], counts=(1,) * nodes, addresses=addresses
    )
    one.host = "a"
    assert one._address() == expected


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(agent_launcher, "time", found)
    return found


def waiting_for(monkeypatch: pytest.MonkeyPatch, clock: Clock, **node: Any) -> Any:
    """A coordinator, and a node that it waits for since now."""
    group: Any = object.__new__(agent_launcher.AgentRankGroup)
    group.launch = SimpleNamespace(directory="/shared/launch", file=lambda name: name)
    group._handle = SimpleNamespace(waiting=lambda: None, host=lambda number: "gpu7")
    group._waits, group._last_poll = None, clock.now
    usual = {"number": 0, "host": None, "hello": False, "over": False, "seen": clock.now}
    monkeypatch.setattr(event_files, "peek", lambda file: None)
    return group, SimpleNamespace(**{**usual, "beat": None, **node})


def told(group: Any, node: Any) -> list[Any]:
    events: list[Any] = []
    group._check_alive(node, events)
    return events


def test_an_agent_that_never_writes_is_told_with_where_it_should(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    group, node = waiting_for(monkeypatch, clock)
    clock.now = group._last_poll = clock.now + AGENT_START_TIMEOUT
    assert told(group, node) == []
    clock.now += 1
    sentence = (
        f"host gpu7 was reached, but its agent wrote nothing to /shared/launch within "
        f"{AGENT_START_TIMEOUT:.0f} s; put the artifact on storage that all hosts share"
    )
    assert told(group, node) == [(None, {"fault": sentence, "exit_code": 2})]
    assert node.over


def test_one_that_waits_for_its_scheduler_has_its_time_later_and_says_a_reason_once(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    group, node = waiting_for(monkeypatch, clock)
    for reason, expected in (("no node", 1), ("no node", 0), ("no quota", 1)):
        group._handle.waiting = lambda reason=reason: reason
        clock.now += 2 * AGENT_START_TIMEOUT
        assert told(group, node) == [(None, {"waiting": reason})] * expected
    group._handle.waiting = lambda: None
    clock.now += AGENT_START_TIMEOUT
    assert told(group, node) == []


def test_a_host_without_a_sign_of_life_is_lost_and_a_stall_of_ours_is_no_sign_of_that(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    group, node = waiting_for(monkeypatch, clock, hello=True, host="gpu3")
    clock.now += LOST_SECONDS + 1
    group._last_poll = clock.now - GAP_SECONDS - 1  # the coordinator itself stood still
    assert told(group, node) == []
    group._last_poll = clock.now
    clock.now += GAP_SECONDS + 1
    group._last_poll = clock.now
    sentence = f"host gpu3 is lost: no sign of life for {LOST_SECONDS:.0f} s"
    (event,) = told(group, node)
    assert (event[0], event[1]["fault"], event[1]["silent"]) == (None, sentence, True)
    assert node.over


def test_a_beat_is_a_sign_of_life_only_where_it_changes(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    group, node = waiting_for(monkeypatch, clock, hello=True, host="gpu3")
    for beat in ({"beat": 1}, {"beat": 2}):
        monkeypatch.setattr(event_files, "peek", lambda file, beat=beat: beat)
        clock.now += LOST_SECONDS + 1
        group._last_poll = clock.now
        assert told(group, node) == []
    clock.now += LOST_SECONDS + 1
    group._last_poll = clock.now
    assert len(told(group, node)) == 1
