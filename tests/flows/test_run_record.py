"""The record of a run, field by field: what is written first, at each state, and at the end."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from cloze.core import accounts
from cloze.core.artifacts import lock
from cloze.core.artifacts.lock import locked, process_identity
from cloze.core.errors import DataError, UsageError
from cloze.core.records import is_record
from cloze.flows.run import cancellation, status_file
from cloze.flows.run.status_file import (
    CACHED,
    FINISHED,
    QUEUED,
    RETRYING,
    RUNNING,
    SKIPPED,
    STOPPED,
    WAITING,
)
from cloze.flows.run.status_writer import RunStatusFile
from tests.flows.graph.test_record import begun, on_disk, step


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Unix time and the monotonic clock, which the test moves."""
    clock = [1000.0]
    monkeypatch.setattr(status_file.time, "time", lambda: clock[0])
    monkeypatch.setattr(status_file.time, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "night").mkdir()
    return tmp_path / "night"


def test_the_first_record_has_every_field(directory: Path, now: list[float]) -> None:
    steps, values = [step("a"), step("b", cached=True)], {"run": {"token": "s3cret"}}
    told = RunStatusFile(directory, "night", steps, {"only": []}, values, ["y", "x"], "0.1.0")
    node = {
        "stage": "pretrain", "section": "pretrain", "state": "waiting", "why": "not made yet",
        "artifact": "/runs/a-1", "inputs": [], "after": [],
    }  # fmt: skip
    owner = dict.fromkeys(("owner", "account"), accounts.user_name())
    assert on_disk(told) == {
        "id": told.id, "run": "night", "state": "running", **process_identity(), "started": 1000.0,
        "ended": None, "error": None, "parameters": {"only": []}, "config": {"run": {"token": "***"}},
        "prefect": None, "begun": ["x", "y"], "source": "0.1.0", **owner,
        "nodes": {
            "a": node,
            "b": {**node, "why": "", "artifact": "/runs/b-1"},
        },
    }  # fmt: skip
    assert told.path == directory / "_status" / f"1-{told.id[:8]}.json"
    assert stat.S_IMODE(told.path.stat().st_mode) == 0o600
    assert RunStatusFile(directory, "night", [], {}, {}).path.name.startswith("2-")
    assert is_record(told.content, status_file.FIELDS)


@pytest.mark.parametrize("name", sorted(status_file.FIELDS))
def test_a_record_without_a_field_that_it_needs_is_damaged(directory: Path, name: str) -> None:
    content = dict(begun(directory, "a").content)
    path = directory / "x.json"
    del content[name]
    path.write_text(json.dumps(content))
    is_optional = name in ("ended", "error", "parameters", "config", "prefect", "begun", "source")
    is_optional |= name in ("owner", "account")
    assert (status_file.read_file(path) is not None) is is_optional
    path.write_text(json.dumps({**content, name: {"run": 1.5}.get(name, [None])}))
    assert (status_file.read_file(path) is not None) is (name == "begun")


@pytest.mark.parametrize("name", sorted(status_file.NODE_FIELDS))
def test_a_node_of_a_wrong_field_is_damage(directory: Path, name: str) -> None:
    content = begun(directory, "a").content
    path, wrong = directory / "x.json", 1.5 if name in ("inputs", "after") else [None]
    for value, is_good in ((wrong, False), (None, name not in ("state", "artifact"))):
        content["nodes"]["a"][name] = value
        path.write_text(json.dumps(content))
        assert (status_file.read_file(path) is not None) is is_good


def test_what_earlier_versions_did_not_write_is_empty(directory: Path) -> None:
    content = begun(directory, "a").content
    path = directory / "x.json"
    path.write_text(json.dumps({**content, "config": None, "parameters": None}))
    found = status_file.read_file(path)
    assert found is not None
    assert (found["config"], found["parameters"]) == (None, None)
    del content["config"], content["parameters"]
    path.write_text(json.dumps(content))
    found = status_file.read_file(path)
    assert found is not None
    assert (found["config"], found["parameters"]) == ({}, {})


def test_states_bring_their_times(directory: Path, now: list[float]) -> None:
    told = begun(directory, "a")
    node = told.content["nodes"]["a"]
    told.node("a", QUEUED, why="no cores")
    told.node("a", WAITING)
    assert not node.keys() & {"started", "ended"}
    now[0] = 1010.0
    told.node("a", RUNNING, why="not made yet")
    assert (node["started"], node["why"], "ended" in node) == (1010.0, "not made yet", False)
    told.progress("a", 2, 9, "steps", {"loss": 1.0, "step": "cut"})
    now[0] = 1020.0
    told.progress("a", 4, 9, "steps", {"rate": 2.0, "step": "cut"})
    assert (node["begun"], node["part"], node["seconds_left"]) == ([1010.0, 2], "cut", 25.0)
    assert node["figures"] == {"loss": 1.0, "step": "cut", "rate": 2.0}
    told.node("a", RETRYING, error="it broke", why="token=hf_abcdefghijklmnop")
    assert (node["ended"], node["error"], node["why"]) == (1020.0, "it broke", "token=***")
    assert "seconds_left" not in node
    now[0] = 1030.0
    told.node("a", RUNNING)
    assert node["started"] == 1030.0
    assert not node.keys() & {"ended", "error", "done", "total", "figures", "part", "begun"}
    told.progress("a", 1, None, "steps", {})
    assert (node["seconds_left"], node["part"], node["total"]) == (None, None, None)
    told.node("a", FINISHED)
    assert on_disk(told)["nodes"]["a"]["state"] == "finished"


def test_the_scheduler_starts_what_is_queued(directory: Path, now: list[float]) -> None:
    told = begun(directory, "a")
    told.node("a", RUNNING)
    told.progress("a", 5, 9, "steps", {})
    told.node("a", QUEUED)
    now[0] = 1500.0
    told.progress("a", 6, 9, "steps", {})
    node = told.content["nodes"]["a"]
    assert (node["state"], node["begun"]) == (RUNNING, [1500.0, 6])
    now[0] = 1400.0  # the clock was set back
    told.progress("a", 7, 9, "steps", {})
    assert node["seconds_left"] is None


def test_many_cached_nodes_are_written_together(directory: Path, now: list[float]) -> None:
    told = begun(directory, "a", "b", "c")
    told.node("a", CACHED)
    assert on_disk(told)["nodes"]["a"]["state"] == "waiting"
    now[0] += 1.1
    told.node("b", CACHED)
    assert [node["state"] for node in on_disk(told)["nodes"].values()] == [CACHED, CACHED, WAITING]
    told.node("c", FINISHED)
    assert on_disk(told)["nodes"]["c"]["state"] == "finished"


def test_the_end_settles_each_state(directory: Path, now: list[float]) -> None:
    states = {
        RUNNING: STOPPED, WAITING: SKIPPED, QUEUED: SKIPPED, RETRYING: SKIPPED, FINISHED: FINISHED,
        CACHED: CACHED, SKIPPED: SKIPPED, "failed": "failed",
    }  # fmt: skip
    told = begun(directory, *states, "begun")
    for name in states:
        told.content["nodes"][name]["state"] = name
    told.content["nodes"]["begun"] |= {"state": QUEUED, "started": 1.0}
    mark = status_file.cancel_mark(told.path)
    assert not told.cancel_requested
    mark.touch()
    assert told.cancel_requested
    now[0] = 1234.0
    told.end("cancelled", "asked at https://user:word@host")
    content = on_disk(told)
    assert (content["state"], content["ended"]) == ("cancelled", 1234.0)
    assert content["error"] == "asked at https://***@host"
    found = {name: node["state"] for name, node in content["nodes"].items()}
    assert found == {**states, "begun": STOPPED}
    assert not mark.exists()


def test_a_node_of_a_lost_process_has_crashed(directory: Path, now: list[float]) -> None:
    told = begun(directory, "a", "b")
    told.node("a", RUNNING)
    told.update(host="elsewhere", boot="another", pid=7)
    os.utime(told.path, (300.0, 300.0))
    found = status_file.newest(directory)
    assert found is not None
    assert (found["state"], found["ended"], found["path"]) == ("lost", 300.0, str(told.path))
    assert found["error"] == (
        "no sign of life from process 7 on elsewhere for 11 min 40 s: it is lost"
    )
    assert [node["state"] for node in found["nodes"].values()] == ["crashed", "skipped"]
    os.utime(told.path, (400.0, 400.0))  # six hundred seconds are no loss
    assert status_file.read(directory.parent, "night")["state"] == "running"


def test_damage_is_shown_with_what_is_known(directory: Path) -> None:
    path = directory / "_status" / "7-x.json"
    path.parent.mkdir()
    path.write_text("{")
    os.utime(path, (300.0, 300.0))
    error = f"{path} is damaged; start the run again, with its config, for a new record"
    assert status_file.newest(directory) == {
        "run": "night", "owner": accounts.user_name(),
        "host": "", "pid": 0, "prefect": None, "nodes": {}, "config": {},
        "parameters": {}, "state": "unreadable", "error": error, "path": str(path),
        "started": 300.0, "ended": 300.0,
    }  # fmt: skip
    told = begun(directory, "a")  # numbered above the damaged one
    assert told.path.name.startswith("8-")
    told.path.rename(told.path.with_name("6-y.json"))
    found = status_file.newest(directory)
    assert found is not None
    assert (found["state"], found["error"], found["id"]) == ("unreadable", error, told.id)
    with pytest.raises(UsageError) as caught:
        cancellation.cancel(directory.parent, "night")
    assert str(caught.value) == f"run night: {error}"


def test_records_are_ordered_by_their_numbers(directory: Path) -> None:
    (directory / "_status").mkdir()
    for name in ("10-a", "9-b", "x-c", "9-a", "d"):
        (directory / "_status" / f"{name}.json").touch()
    names = [path.stem for path in status_file.records_in(directory)]
    assert names == ["d", "x-c", "9-a", "9-b", "10-a"]


def test_an_unknown_run_is_told_word_for_word(directory: Path) -> None:
    runs = directory.parent
    with pytest.raises(DataError) as caught:
        status_file.read(runs, "day")
    assert str(caught.value) == f"no run 'day' in {runs}; there is none yet"
    begun(directory, "a").end(FINISHED)
    with pytest.raises(DataError) as caught:
        status_file.read(runs, "day")
    assert str(caught.value) == f"no run 'day' in {runs}; choose from night"
    with pytest.raises(UsageError) as ended:
        cancellation.cancel(runs, "night")
    assert str(ended.value) == (
        "run night does not run (it is finished); `cloze status night` shows it"
    )


@pytest.mark.parametrize(
    ("config", "nodes", "seconds"),
    [
        ({}, {}, 25.0),
        ({"name": "x", "letters": False, "count": {"run": None}}, {"a": {}}, 25.0),
        ({"run": {"grace_seconds": 7}}, {}, 7.0),
        ({"run": {"grace_seconds": 7}, "pretrain": {"run": {"grace_seconds": 9}}}, {}, 9.0),
        ({"pretrain": {"run": {"grace_seconds": 9}}}, {}, 25.0),
        ({"pretrain": {"run": {"grace_seconds": 90}}}, {}, 90.0),
        ({"run": {"grace_seconds": 7}}, {"a": {"grace_seconds": 8.5}, "b": {}}, 8.5),
        ({"run": {"grace_seconds": 0}}, {}, 0.0),
    ],
)
def test_the_longest_grace_of_all_counts(
    config: dict[str, Any], nodes: dict[str, Any], seconds: float
) -> None:
    assert cancellation.longest_grace({"config": config, "nodes": nodes}) == seconds
    if not nodes:
        assert cancellation.longest_grace({"config": config}) == seconds


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_cancelled_run_has_its_grace_and_is_asked_once(
    directory: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, asked, said = begun(directory, "a"), list[tuple[Any, ...]](), list[str]()

    def wait(path: str, builder: str, runs: Any, facts: Any, seconds: float, report: Any) -> bool:
        asked.append((path, builder, runs(), seconds, status_file.cancel_mark(told.path).exists()))
        resources.close()
        return is_killed

    monkeypatch.setattr(cancellation, "wait_or_kill", wait)
    monkeypatch.setattr(lock, "send_signal", lambda facts, number: asked.append((number,)))
    resources = locked(str(directory))
    monkeypatch.setattr(
        resources, "close", lambda: resources.__exit__(None, None, None), raising=False
    )
    resources.__enter__()
    found = cancellation.cancel(directory.parent, "night", said.append)
    pid = os.getpid()
    assert asked == [(15,), (str(directory), f"process {pid}", True, 40.0, True)]
    assert said == [f"requested process {pid} to end; its trainings have 25 s to save a checkpoint"]
    assert found["state"] == "crashed"
    assert on_disk(told)["state"] == ("crashed" if is_killed else "running")


def test_a_run_elsewhere_is_cancelled_there(directory: Path) -> None:
    told = begun(directory, "a")
    told.update(host="elsewhere", boot="another", pid=7)
    with pytest.raises(UsageError) as caught:
        cancellation.cancel(directory.parent, "night")
    assert str(caught.value) == (
        "run night runs on elsewhere (process 7); cancel it there, or in Prefect's UI"
    )
    told.update(**{**process_identity(), "start": "1"})
    with locked(str(directory)), pytest.raises(UsageError) as stale:
        cancellation.cancel(directory.parent, "night")
    assert str(stale.value) == (
        f"run night is held by process {os.getpid()} on {socket.gethostname()}, not by the recorded "
        f"process {os.getpid()}, so nothing is stopped; try again once it has started"
    )
