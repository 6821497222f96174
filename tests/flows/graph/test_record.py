"""The record of a run: what it says while a run goes, after it ended, and after its process is
gone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.artifacts.lock import is_running, locked, process_identity, send_signal
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, UsageError
from cloze.core.humanize import elapsed
from cloze.core.stages.execution import Execution
from cloze.flows.graph.nodes import Node
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.run import cancellation, status_file, status_writer
from cloze.flows.ui.prometheus import metrics


def step(name: str, cached: bool = False) -> PlannedNode:
    node = Node(
        name=name,
        stage="pretrain",
        section="pretrain",
        values={},
        config=StageConfig(),
        execution=Execution(),
        inputs={},
    )
    why = "" if cached else "not made yet"
    return PlannedNode(
        node=node,
        inputs={},
        depends_on=(),
        fingerprint=name,
        artifact=f"/runs/{name}-1",
        cached=cached,
        reason=why,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "night").mkdir()
    return tmp_path / "night"


def begun(directory: Path, *names: str) -> status_writer.RunStatusFile:
    return status_writer.RunStatusFile(
        directory,
        directory.name,
        [step(name) for name in names],
        {"config": "x"},
        {"run": {}},
    )


def on_disk(told: status_writer.RunStatusFile) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(told.path.read_text())
    return content


def test_a_run_is_told_from_its_first_moment(directory: Path) -> None:
    told = on_disk(begun(directory, "a", "b"))
    assert (told["state"], told["pid"], told["run"], told["ended"]) == (
        "running",
        os.getpid(),
        "night",
        None,
    )
    assert {name: node["state"] for name, node in told["nodes"].items()} == {
        "a": "waiting",
        "b": "waiting",
    }


def test_states_bring_their_times_and_the_end_settles_what_is_open(directory: Path) -> None:
    told = begun(directory, "a", "b", "c")
    told.node("a", status_file.RUNNING)
    assert on_disk(told)["nodes"]["a"]["started"] > 0
    told.node("a", status_file.FINISHED, metrics={"loss": 1.0})
    told.node("b", status_file.RUNNING)
    told.end(status_file.FAILED, "b failed")
    content = on_disk(told)
    assert {name: node["state"] for name, node in content["nodes"].items()} == {
        "a": "finished",
        "b": "stopped",
        "c": "skipped",
    }
    assert content["nodes"]["a"]["ended"] >= content["nodes"]["a"]["started"]
    assert (content["state"], content["error"]) == ("failed", "b failed")


def test_progress_is_written_at_most_once_a_second(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = begun(directory, "a")
    told.node("a", status_file.RUNNING)
    written: list[float] = []
    whole, began, now = told.write, time.monotonic(), 0.0
    monkeypatch.setattr(told, "write", lambda: (written.append(now), whole()))
    monkeypatch.setattr(status_writer.time, "monotonic", lambda: began + now)
    for done in range(1, 40):
        now = done / 8
        told.progress("a", done, 1e9, "steps", {"loss": 1.0, "note": "x", "list": [1]})
    assert 3 <= len(written) <= 4
    assert all(
        later - earlier > status_writer.SECONDS
        for earlier, later in zip(written, written[1:], strict=False)
    )
    assert on_disk(told)["nodes"]["a"]["figures"] == {"loss": 1.0, "note": "x"}


def test_the_time_left_counts_from_where_it_went_on_and_each_part_by_itself(
    directory: Path,
) -> None:
    told = begun(directory, "a")
    node = told.content["nodes"]["a"]
    told.progress("a", 500, 1000, "steps", {})
    assert node["seconds_left"] is None
    node["begun"][0] -= 10  # ten seconds ago
    told.progress("a", 750, 1000, "steps", {})
    assert node["seconds_left"] == pytest.approx(10, abs=0.5)
    told.progress("a", 1, 10, "parts", {"step": "shards"})
    assert node["seconds_left"] is None, "another part has a count of its own"


def test_a_run_whose_lease_nobody_holds_has_crashed(directory: Path) -> None:
    told = begun(directory, "a", "b")
    told.node("a", status_file.RUNNING)
    with locked(str(directory)):
        assert status_file.read(directory.parent, "night")["state"] == "running"
        assert cancellation.mark_crashed(directory.parent) == []
    found = status_file.read(directory.parent, "night")
    assert found["state"] == "crashed"
    assert {name: node["state"] for name, node in found["nodes"].items()} == {
        "a": "crashed",
        "b": "skipped",
    }
    assert found["ended"] == pytest.approx(time.time(), abs=60)
    assert on_disk(told)["state"] == "running", "reading changes nothing"
    assert cancellation.mark_crashed(directory.parent) == ["night"]
    content = on_disk(told)
    assert {name: node["state"] for name, node in content["nodes"].items()} == {
        "a": "crashed",
        "b": "skipped",
    }
    assert content["error"] == f"process {os.getpid()} on {content['host']} is gone"
    assert cancellation.mark_crashed(directory.parent) == []


def test_a_run_of_another_host_is_lost_once_its_lease_has_expired(directory: Path) -> None:
    """A file system need not show other hosts' locks: here nobody seems to hold the lease."""
    told = begun(directory, "a")
    told.update(host="elsewhere", boot="another")
    assert status_file.read(directory.parent, "night")["state"] == "running"
    assert (
        cancellation.mark_crashed(directory.parent, write=False)
        == cancellation.mark_crashed(directory.parent)
        == []
    )
    recently, before = time.time() - 300, time.time() - status_file.LEASE_SECONDS - 60
    os.utime(told.path, (recently, recently))  # storage may stall for minutes
    assert status_file.read(directory.parent, "night")["state"] == "running"
    os.utime(told.path, (before, before))
    found = status_file.read(directory.parent, "night")
    assert found["state"] == "lost"
    assert re.search(r"no sign of life from process \d+ on elsewhere for 11", found["error"])
    with pytest.raises(UsageError, match="`cloze doctor --fix` clears it"):
        cancellation.cancel(directory.parent, "night")
    assert b"cloze_node_done" in metrics(directory.parent)
    assert b"cloze_node_done{" not in metrics(directory.parent)
    assert b'cloze_runs{state="lost"} 1.0' in metrics(directory.parent)
    for write in (False, True):
        assert cancellation.mark_crashed(directory.parent, write=write) == ["night"]
    assert cancellation.mark_crashed(directory.parent) == []
    assert on_disk(told)["state"] == "crashed"
    told.write()  # it lives after all: its next write says so
    assert status_file.read(directory.parent, "night")["state"] == "running"


def test_the_lease_is_renewed_without_progress_and_not_after_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "RENEW_SECONDS", 0.02)
    told = begun(directory, "a")
    os.utime(told.path, (0, 0))
    deadline = time.monotonic() + 10
    while not told.path.stat().st_mtime and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told.path.stat().st_mtime > 0
    told.path.unlink()  # `cloze clean` removes a run's directory
    time.sleep(0.1)
    assert not told.path.exists()
    told.end(status_file.FINISHED)


@given(st.lists(st.sampled_from([1e9, 1.7e9, 3e9]), min_size=2, max_size=5))
@settings(max_examples=20, deadline=None)
def test_whatever_the_clocks_of_the_hosts_say_the_last_start_is_the_newest(
    clocks: list[float],
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        directory = Path(name) / "night"
        (directory / "_status").mkdir(parents=True)
        old = '{"id": "old", "state": "finished"}'  # named by the clock, as before
        (directory / "_status" / "1999999999999-abc.json").write_text(old)
        for clock in clocks:
            patch.setattr(time, "time", lambda clock=clock: clock)
            told = begun(directory, "a")
            told.node("a", status_file.RUNNING)
            patch.setattr(time, "time", lambda clock=clock: clock - 3600)
            assert elapsed(told.content) == 0
            told.end(status_file.FINISHED)
            found = status_file.read(directory.parent, "night")
            assert found["id"] == told.id
            assert elapsed(found) >= 0
            assert elapsed(found["nodes"]["a"]) >= 0


def test_cancel_signals_no_process_but_the_one_that_holds_the_run(directory: Path) -> None:
    """A stale record, and a start that holds the lock and has written no record yet."""
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        told = begun(directory, "a")
        for facts in ({"pid": stranger.pid}, {"start": "1"}, {"boot": "another boot pid:[1]"}):
            told.update(**{**process_identity(), **facts})
            with (
                locked(str(directory)),
                pytest.raises(UsageError, match=r"is held by process \d+ .* nothing is stopped"),
            ):
                cancellation.cancel(directory.parent, "night")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_identity_is_of_one_process_only() -> None:
    own = process_identity()
    assert is_running(own)
    assert send_signal(own, 0)
    for other in ({"start": "1"}, {"host": "elsewhere"}, {"boot": "x"}, {"pid": 2**22 + 1}):
        assert not send_signal({**own, **other}, signal.SIGKILL)
    assert not is_running({})


def test_a_killed_process_leaves_a_crashed_run(directory: Path) -> None:
    """Another process takes the lease, writes that it runs, and is killed."""
    program = f"""
import os, signal
from pathlib import Path
from cloze.flows.run import status_writer
from cloze.core.artifacts.lock import locked
with locked({str(directory)!r}):
    status_writer.RunStatusFile(Path({str(directory)!r}), "night", [], {{}}, {{}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert status_file.all_records(directory.parent)["night"]["state"] == "crashed"


def test_the_newest_is_read_the_oldest_go_and_a_torn_one_is_passed_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "RETAINED_RECORDS", 3)
    ids = []
    for _ in range(5):
        told = begun(directory, "a")
        told.end(status_file.FINISHED)
        ids.append(told.id)
    assert len(status_file.records_in(directory)) == 3
    assert status_file.read(directory.parent, "night")["id"] == ids[-1]
    status_file.records_in(directory)[-1].write_text("{")
    assert status_file.read(directory.parent, "night")["id"] == ids[-2]


def test_an_unknown_run_is_told_with_the_nearest(directory: Path) -> None:
    with pytest.raises(DataError, match="there is none yet"):
        status_file.read(directory.parent, "nihgt")
    begun(directory, "a")
    with pytest.raises(DataError, match="did you mean 'night'"):
        status_file.read(directory.parent, "nihgt")


def test_threads_may_tell_at_once(directory: Path) -> None:
    names = [f"n{number}" for number in range(8)]
    told = begun(directory, *names)
    errors: list[BaseException] = []

    def tell(name: str) -> None:
        try:
            told.node(name, status_file.RUNNING)
            for done in range(200):
                told.progress(name, done, 200, "steps", {f"figure {done}": float(done)})
            told.node(name, status_file.FINISHED)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=tell, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {node["state"] for node in on_disk(told)["nodes"].values()} == {"finished"}
