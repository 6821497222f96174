"""Runs that wait, end or are killed at the same time lose no record, send none twice, and stop
nobody.

Spools, senders and writers are real files and processes; MLflow is real, too, in a thread of the
test.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import Spool
from cloze.flows.tracking.spool_state import FILE
from tests import warm
from tests.operations.mlflow_server import ThreadServer, drain

pytestmark = pytest.mark.usefixtures("warm")
ANSWER_SECONDS = 150.0  # an upper bound for a busy machine; nothing here needs a second of its own


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadServer]:
    server = ThreadServer(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()


@pytest.fixture
def server(mlflow: ThreadServer) -> Iterator[ThreadServer]:
    yield mlflow
    mlflow.poison, mlflow.is_broken, mlflow.is_read_only = b"", False, False
    mlflow.start()


class Writer:
    """A process that owns a spool: see `tests.flows.tracking.writer`."""

    def __init__(self, directory: Path, uri: str) -> None:
        command = [warm.python(), "-m", "tests.flows.tracking.writer", str(directory), uri]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.spool = directory / str(self._answer())

    def do(self, *command: Any) -> Any:
        """Have it do something, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        assert ready, "the run is held up"
        line = self.process.stdout.readline()
        assert line, "the run has died of its records"
        return json.loads(line)

    def end(self) -> None:
        """Let the process end in order."""
        with self.process:
            pass
        assert self.process.returncode == 0

    def kill(self) -> None:
        """SIGKILL to the run. Its sender has a session of its own and lives on."""
        os.kill(warm.real(self.process.pid), signal.SIGKILL)
        with self.process:
            pass


def recorded(server: ThreadServer) -> dict[str, list[Any]]:
    """The runs of MLflow by our id."""
    client = server.client()
    experiment = client.get_experiment_by_name("cloze")
    found: dict[str, list[Any]] = {}
    for run in client.search_runs([experiment.experiment_id]) if experiment else []:
        found.setdefault(run.data.tags["cloze.run"], []).append(run)
    return found


def points(server: ThreadServer, run: Any) -> list[tuple[int, float]]:
    return [
        (point.step, point.value)
        for point in server.client().get_metric_history(run.info.run_id, "loss")
    ]


def unique() -> str:
    return os.urandom(8).hex()


def line(step: int) -> dict[str, float]:
    return {"step": step, "time": time.time(), "loss": float(step)}


def test_a_run_that_waits_keeps_its_spool_while_another_one_ends(
    tmp_path: Path, server: ThreadServer
) -> None:
    """A run that waits for slots has an empty spool: nothing has been written, and it
    is not over.
    """
    waiting, run = Spool(tmp_path, server.url), unique()
    other = Writer(tmp_path, server.url)
    other.do("start", unique())
    assert other.do("close") == []
    other.end()
    assert waiting.path.exists()
    waiting.start_sender()
    waiting.start_run("waited", run=run)
    waiting.line(run, line(1))
    waiting.end_run(run)
    assert close_spool(waiting) == []
    (found,) = recorded(server)[run]
    assert (found.info.status, points(server, found)) == ("FINISHED", [(1, 1.0)])


def test_the_run_that_ends_first_waits_for_nobody_and_says_nothing_false(
    tmp_path: Path, server: ThreadServer
) -> None:
    older, run = Writer(tmp_path, server.url), unique()
    older.do("start", unique())
    time.sleep(1)  # its sender is at work
    spool = Spool(tmp_path, server.url)
    spool.start_sender()
    spool.start_run("younger", run=run)
    spool.end_run(run)
    assert (
        close_spool(spool, 100) == []
    )  # the older one's sender works on meanwhile, for as long as its run
    (found,) = recorded(server)[run]
    assert found.info.status == "FINISHED"
    older.kill()


def test_a_spool_that_goes_meanwhile_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run's sender removes a spool between the moment that a run lists the spools and the
    moment that it opens them.
    """
    (tmp_path / "1-gone.jsonl").touch()
    (tmp_path / "2-empty.jsonl").touch()
    listed = Path.glob

    def glob_then_gone(path: Path, pattern: str) -> Iterator[Path]:
        found = list(listed(path, pattern))
        (tmp_path / "1-gone.jsonl").unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(Path, "glob", glob_then_gone)
    spool = Spool(tmp_path, "http://127.0.0.1:9")
    spool.start_run("a run", run="a" * 32)
    spool.path.unlink()
    assert spool.close()


def test_a_record_that_always_fails_goes_to_the_dead_letters(
    tmp_path: Path, server: ThreadServer
) -> None:
    """Not for ever in the way: of its own spool, or of another's that the same sender sends."""
    server.poison = b"poisoned"
    old, run, other = Writer(tmp_path, server.url), unique(), unique()
    server.stop()  # so that it all waits
    old.do("start", run)
    old.do("line", run, {"step": 1, "time": 1.0, "loss": 1.0, "poisoned": 2.0})
    old.do("line", run, line(2))
    old.do("end", run, "FINISHED")
    old.kill()
    time.sleep(1)
    server.start()
    spool = Spool(tmp_path, server.url)
    spool.start_sender()
    spool.start_run("younger", run=other)
    spool.line(other, line(1))
    spool.end_run(other)
    assert close_spool(spool) == []  # what is refused of another run is that one's
    deadline = time.monotonic() + ANSWER_SECONDS
    while list(tmp_path.glob("*.jsonl")):
        assert time.monotonic() < deadline, (tmp_path / "sender.log").read_text()[-2000:]
        time.sleep(0.1)
    found = recorded(server)
    assert [each.info.status for each in (*found[run], *found[other])] == ["FINISHED", "FINISHED"]
    assert points(server, found[run][0]) == [(1, 1.0), (2, 2.0)]
    (letter,) = [json.loads(text) for text in (tmp_path / FILE).read_text().splitlines()]
    assert [point[0] for point in letter["record"]["metrics"]] == ["poisoned"]


def test_a_server_that_takes_nothing_refuses_nothing(tmp_path: Path, server: ThreadServer) -> None:
    """Its database is full, or read only: it answers questions, and the records wait."""
    server.client().search_experiments()
    spool = Spool(tmp_path, server.url)
    spool.start_sender()
    run = unique()
    spool.start_run("waits", run=run)
    time.sleep(1)
    server.is_read_only = True
    spool.line(run, line(1))
    time.sleep(7)  # more than the tries that one record has
    server.is_read_only = False
    spool.end_run(run)
    assert close_spool(spool) == []
    (found,) = recorded(server)[run]
    assert points(server, found) == [(1, 1.0)]
    assert not (tmp_path / FILE).exists()


class SideBySide(RuleBasedStateMachine):
    """Three runs at most at a time, which begin, wait, write, end, are killed and go on, while
    MLflow comes and goes.
    """

    server: ThreadServer
    root: Path
    count = 0

    @initialize()
    def begin(self) -> None:
        type(self).count += 1
        self.directory = self.root / str(self.count)
        self.writers: dict[int, Writer] = {}  # by slot
        self.runs: dict[int, str] = {}  # of those that have begun: our id
        self.steps: dict[str, int] = {}  # the steps of each run that are written
        self.ends: dict[str, str] = {}  # as MLflow is to call them
        self.resumable: list[str] = []
        self.serve("up")
        self.wait(0)  # so that each example has runs at the same time from its first step
        self.start(1, False)
        self.start(2, False)

    @rule(slot=st.integers(0, 2))
    def wait(self, slot: int) -> None:
        """A run comes, and waits before it begins."""
        if slot not in self.writers:
            self.writers[slot] = Writer(self.directory, self.server.url)

    @rule(slot=st.integers(0, 2), resume=st.booleans())
    def start(self, slot: int, resume: bool) -> None:
        """A run begins, or goes on with one that was killed."""
        self.wait(slot)
        if slot not in self.runs:
            run = self.resumable.pop() if resume and self.resumable else unique()
            self.runs[slot], self.ends[run] = run, "KILLED"
            self.steps.setdefault(run, 0)
            self.writers[slot].do("start", run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), lines=st.integers(1, 30))
    def write(self, data: st.DataObject, lines: int) -> None:
        """Log steps; one that goes on computes its last ones again."""
        slot = data.draw(st.sampled_from(sorted(self.runs)))
        run = self.runs[slot]
        for step in range(max(1, self.steps[run] - 2), self.steps[run] + lines + 1):
            self.writers[slot].do("line", run, line(step))
        self.steps[run] += lines

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The run ends; where MLflow answers, nothing is left and it says nothing."""
        slot = data.draw(st.sampled_from(sorted(self.runs)))
        run, writer = self.runs.pop(slot), self.writers.pop(slot)
        writer.do("end", run, "FINISHED")
        self.ends[run] = "FINISHED"
        reported = writer.do("close")
        assert not (self.is_up and reported), (
            reported,
            (self.directory / "sender.log").read_text()[-2000:],
        )
        writer.end()

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """SIGKILL, at whatever the run is doing."""
        slot = data.draw(st.sampled_from(sorted(self.writers)))
        self.writers.pop(slot).kill()
        if slot in self.runs:
            self.resumable.append(self.runs.pop(slot))

    @rule(state=st.sampled_from(["up", "up", "down", "broken"]))
    def serve(self, state: str) -> None:
        """MLflow is there, is not there, or answers everything with 500."""
        self.is_up, self.server.is_broken = state == "up", state == "broken"
        self.server.stop() if state == "down" else self.server.start()

    def teardown(self) -> None:
        """All of it is in MLflow, once."""
        if not hasattr(self, "writers"):
            return
        for slot in list(self.writers):
            self.writers.pop(slot).kill()
        self.serve("up")
        drain(self.directory, self.server.url)
        found = recorded(self.server)
        assert not (self.directory / FILE).exists(), (self.directory / FILE).read_text()
        for run, steps in self.steps.items():
            assert len(found.get(run, [])) == 1
            assert points(self.server, found[run][0]) == [
                (step, float(step)) for step in range(1, steps + 1)
            ]
            assert found[run][0].info.status == self.ends[run]


@pytest.mark.timeout(900)
def test_no_record_is_lost_or_sent_twice_whatever_happens(
    tmp_path: Path, server: ThreadServer
) -> None:
    """Slow because every step of it is a process: writers, their senders and MLflow are real."""
    machine = type("Machine", (SideBySide,), {"server": server, "root": tmp_path})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=4,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
