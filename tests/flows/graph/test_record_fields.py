"""The record of a run field by field: its first content, each state of a node, and its end."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.core import accounts
from cloze.core.artifacts import lock
from cloze.core.artifacts.lock import locked
from cloze.core.errors import DataError
from cloze.flows.graph.nodes import InputSource
from cloze.flows.run import cancellation, status_file, status_writer
from cloze.flows.run.status_file import CACHED, QUEUED, RETRYING, RUNNING, WAITING
from tests.flows.graph.test_record import begun, directory, on_disk, step

__all__ = ["directory"]


class Clock:
    """Seconds of the day that the test moves."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(status_file, "time", moved)
    monkeypatch.setattr(status_writer, "time", moved)
    return moved


def test_the_first_record_is_the_plan_without_its_secrets(directory: Path, clock: Clock) -> None:
    made, cached = step("a"), replace(step("b", cached=True), inputs={"corpus": "made/../c"})
    cached = replace(cached, node=replace(cached.node, inputs={"corpus": InputSource(node="a")}))
    parameters = {"config": "x", "password": "hush", "tags": ["--token", "hush"]}
    told = status_writer.RunStatusFile(
        directory,
        "night",
        [made, cached],
        parameters,
        {"notify": {"password": "hush"}},
        begun=("f2", "f1"),
    )
    content = on_disk(told)
    assert "hush" not in told.path.read_text()
    assert stat.S_IMODE(told.path.stat().st_mode) == 0o600
    nodes = content.pop("nodes")
    assert content == {
        **lock.process_identity(), "id": told.id, "run": "night", "state": "running", "started": 1000.0,
        "ended": None, "error": None, "prefect": None, "begun": ["f1", "f2"], "source": None,
        **dict.fromkeys(("owner", "account"), accounts.user_name()),
        "parameters": {"config": "x", "password": "***", "tags": ["--token", "***"]},
        "config": {"notify": {"password": "***"}},
    }  # fmt: skip
    common = {"stage": "pretrain", "section": "pretrain", "state": "waiting"}
    assert nodes == {
        "a": {**common, "why": "not made yet", "artifact": "/runs/a-1", "inputs": [], "after": []},
        "b": {**common, "why": "", "artifact": "/runs/b-1", "after": ["a"],
              "inputs": [os.path.abspath("c")]},
    }  # fmt: skip
    without = status_writer.RunStatusFile(directory, "night", [made], {}, {})
    assert [path.name.partition("-")[0] for path in status_file.records_in(directory)] == ["1", "2"]
    told.end("finished")
    without.end("finished")


def test_a_node_that_runs_again_has_nothing_of_its_last_attempt(
    directory: Path, clock: Clock
) -> None:
    told = begun(directory, "a")
    told.node("a", RUNNING)
    told.progress("a", 3, 9, "steps", {"loss": 2.0, "step": "reading"})
    clock.now = 1005.0
    told.node("a", RETRYING, error="token=hush of x://u:hush@h", why="retry 1")
    node = on_disk(told)["nodes"]["a"]
    assert (node["state"], node["started"], node["ended"], node["why"]) == (
        "retrying", 1000.0, 1005.0, "retry 1"
    )  # fmt: skip
    assert "hush@" not in node["error"]
    assert "seconds_left" not in node
    clock.now = 1010.0
    told.node("a", RUNNING)
    node = on_disk(told)["nodes"]["a"]
    assert (node["state"], node["started"], node["why"]) == ("running", 1010.0, "retry 1")
    assert not node.keys() & {"ended", "error", "done", "total", "figures", "part", "begun"}
    for state in (WAITING, QUEUED):
        told.node("a", state)
        assert "ended" not in on_disk(told)["nodes"]["a"]
    told.end("finished")


def test_cached_nodes_are_written_once_a_second(directory: Path, clock: Clock) -> None:
    told = begun(directory, "a", "b")
    clock.now += 1.0
    told.node("a", CACHED)
    assert on_disk(told)["nodes"]["a"]["state"] == "waiting"
    clock.now += 0.1
    told.node("b", CACHED)
    content = on_disk(told)["nodes"]
    assert [content[name]["state"] for name in "ab"] == ["cached", "cached"]
    told.end("finished")


def test_progress_keeps_figures_and_counts_each_part_alone(directory: Path, clock: Clock) -> None:
    told = begun(directory, "a")
    told.node("a", QUEUED, why="waits for cores")

    def progress(done: float, total: float | None, **figures: Any) -> dict[str, Any]:
        told.progress("a", done, total, "steps", figures)
        node: dict[str, Any] = told.content["nodes"]["a"]
        return node

    node = progress(2, 10, loss=3.0, note="x", shape=[1], step=7)
    assert (node["state"], node["done"], node["total"], node["unit"]) == ("running", 2, 10, "steps")
    assert node["figures"] == {"loss": 3.0, "note": "x", "step": 7}
    assert (node["part"], node["begun"], node["seconds_left"]) == (None, [1000.0, 2], None)
    clock.now += 4
    node = progress(4, 10, loss=2.0, step=8)
    assert node["figures"] == {"loss": 2.0, "note": "x", "step": 8}
    assert node["seconds_left"] == 12.0
    assert on_disk(told)["nodes"]["a"]["done"] == 4
    assert progress(5, None)["seconds_left"] is None
    node = progress(0, 6, step="saving")  # another part begins
    assert (node["part"], node["begun"], node["seconds_left"]) == ("saving", [1004.0, 0], None)
    clock.now += 2
    assert progress(3, 6, step="saving")["seconds_left"] == 2.0
    clock.now -= 3600  # set back
    assert progress(4, 6, step="saving")["seconds_left"] is None
    told.node("a", "finished")
    assert "seconds_left" not in told.content["nodes"]["a"]
    told.end("finished")


def test_the_end_settles_each_node_by_what_it_had_begun(directory: Path) -> None:
    names = ("waiting", "queued", "begun", "retrying", "running", "finished", "failed", "cached")
    told = begun(directory, *names)
    for name in names[2:]:
        told.node(name, RUNNING)
    told.node("begun", QUEUED)  # between two attempts
    for name in ("queued", "retrying", "finished", "failed", "cached"):
        told.node(name, name)
    told.path.with_suffix(".cancel").touch()
    assert told.cancel_requested
    told.end("failed", "no answer from http://user:hush@host")
    content = on_disk(told)
    assert {name: node["state"] for name, node in content["nodes"].items()} == {
        "waiting": "skipped", "queued": "skipped", "begun": "stopped", "retrying": "stopped",
        "running": "stopped", "finished": "finished", "failed": "failed", "cached": "cached",
    }  # fmt: skip
    assert "hush" not in content["error"]
    assert content["ended"] is not None
    assert not told.cancel_requested


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("write", [True, False])
def test_a_zombie_is_named_and_its_record_settled_on_request(
    directory: Path, is_here: bool, write: bool
) -> None:
    told = begun(directory, "a", "b")
    host = socket.gethostname() if is_here else "elsewhere"
    told.node("a", RUNNING)
    told.update(host=host, **({} if is_here else {"boot": "another"}))
    told._ended.set()  # no more signs of life
    old = told.path.stat().st_mtime - status_file.LEASE_SECONDS - 70
    os.utime(told.path, (old, old))
    before = told.path.read_text()
    with locked(str(directory)):
        assert cancellation.mark_crashed(directory.parent, write=write) == []
    assert cancellation.mark_crashed(directory.parent, write=write) == ["night"]
    if not write:
        assert told.path.read_text() == before
        return
    content = on_disk(told)
    assert (content["state"], content["ended"]) == ("crashed", pytest.approx(old))
    assert [node["state"] for node in content["nodes"].values()] == ["crashed", "skipped"]
    gone = f"process {os.getpid()} on {host}"
    expected = f"{gone} is gone" if is_here else f"no sign of life from {gone} for 11 min 1"
    assert content["error"].startswith(expected)
    assert cancellation.mark_crashed(directory.parent) == []


def test_runs_are_found_by_their_names(directory: Path) -> None:
    runs = directory.parent
    with pytest.raises(DataError, match="no run 'day' in .*; there is none yet"):
        status_file.read(runs, "day")
    assert status_file.all_records(runs) == {}
    begun(directory, "a").end("finished")
    last = begun(directory, "a")
    last.end("failed", "why")
    (runs / "empty" / status_file.DIRECTORY).mkdir(parents=True)
    assert {name: record["id"] for name, record in status_file.all_records(runs).items()} == {
        "night": last.id
    }
    found = status_file.read(runs, "night")
    assert (found["state"], found["error"], found["path"]) == ("failed", "why", str(last.path))
    assert status_file.directory_of(runs, "night") == directory
    assert status_file.directory_of(runs, "/x/out").parent.name == ".commands"
    for name in ("nights", "day"):
        with pytest.raises(DataError, match=f"no run '{name}' in .*night"):
            status_file.read(runs, name)
