"""Embedded Flink: what is missing is said, and nothing of it outlives its stage."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.cli import main
from cloze.pipeline.runners import flink
from cloze.pipeline.runners.base import WorkerLostError
from cloze.pipeline.runners.flink import FlinkBackend, rest_url
from tests.conftest import REPOSITORY
from tests.pipeline.runners.units import long_build, within


@pytest.fixture
def refused(
    samples: Path,
    tmp_path: Path,
    warm: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """What `cloze corpus --runner flink` says; its exit code is 2."""

    def run(*options: str, **environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        source = ["--source", f"books={samples / 'books'}", "--out", str(tmp_path / "out")]
        assert main(["corpus", "--runner", "flink", *source, *options]) == 2
        return capsys.readouterr().err

    return run


def test_no_java(refused: Callable[..., str], tmp_path: Path) -> None:
    assert (
        f"runner flink needs Java 11 or later, and JAVA_HOME ({tmp_path}) has no bin/java; "
        f"install a Java runtime"
    ) in refused(JAVA_HOME=str(tmp_path))


def test_no_runner(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"  # no Java is needed to miss the runner
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "empty").mkdir()
    for value, sentence in (
        ("/none/x.jar", "does not exist"),
        (str(tmp_path / "empty"), "is a directory without jars"),
    ):
        output = refused(JAVA_HOME=str(tmp_path), CLOZE_FLINK_CLASSPATH=value)
        assert f"CLOZE_FLINK_CLASSPATH ({value}) {sentence}" in output
    monkeypatch.delenv(flink.CLASSPATH, raising=False)
    with pytest.raises(
        UsageError,
        match=(
            "job server could not be fetched .* set CLOZE_FLINK_CLASSPATH to its jar, or to a "
            "directory of jars"
        ),
    ):
        flink.flink_classpath(["--flink_job_server_jar=http://127.0.0.1:9/job-server.jar"])


def test_a_job_server_that_ends_at_once(
    refused: Callable[..., str], tmp_path: Path, flink_classpath: str
) -> None:
    del flink_classpath  # Java is here
    (tmp_path / "a.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    output = refused(CLOZE_FLINK_CLASSPATH=str(tmp_path / "a.jar"))
    assert "CLOZE_FLINK_CLASSPATH has no Beam Flink job server" in output


@pytest.mark.usefixtures("flink")
def test_no_cluster(refused: Callable[..., str]) -> None:
    output = refused("--flink-master", "127.0.0.1:9")
    assert "no Flink cluster answers at http://127.0.0.1:9" in output


def test_addresses() -> None:
    assert rest_url("flink:8081") == rest_url("http://flink:8081/") == "http://flink:8081"
    assert rest_url("https://[::1]:80") == "https://[::1]:80"
    with pytest.raises(UsageError, match=r"flink_master \(flink\) must look like HOST:PORT"):
        rest_url("flink")


KILLED_THEN_BUSY = """
import json
from pathlib import Path
from cloze.core.errors import ClozeError
from cloze.pipeline.runners.fan_out import fan_out
from tests.pipeline.runners.test_local import kill_worker_of
from tests.pipeline.runners.units import *

place = Path({place!r})
begun = build(place / "out", workers=2, runner="flink")
with begun.cleanup:
    kill_worker_of(place / "killed", 5)
    units = numbered(place / "killed", 8, seconds=0.4)
    made = fan_out(begun, "killed", units, work, unit_name="units")
    try:
        units = numbered(place / "more", 3, fault="memory")
        fan_out(begun, "more", units, misbehave, unit_name="units")
    except ClozeError as error:
        told = str(error)
    (place / "told.json").write_text(json.dumps([os.getpid(), made, told]))
    fan_out(begun, "work", numbered(place / "notes", 4, seconds=60), work, unit_name="units")
"""


def busy(script: str, notes: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A program that has begun with two long units, and what descends from it."""
    stage = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    assert within(150, lambda: stage.poll() is not None or len(list(notes.glob("began-*"))) >= 2)
    descendants = psutil.Process(stage.pid).children(recursive=True)
    assert any("FlinkJobServerDriver" in " ".join(child.cmdline()) for child in descendants)
    return stage, descendants


def is_at_work(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def end(
    stage: subprocess.Popen[bytes], descendants: list[psutil.Process], number: signal.Signals
) -> None:
    """Nothing outlives the signal."""
    try:
        stage.send_signal(number)
        stage.wait(timeout=60)
        assert within(60, lambda: not any(map(is_at_work, descendants)))
    finally:
        stage.kill()


@pytest.mark.parametrize(
    ("answer", "workers", "found"),
    [
        ({"taskmanagers": 2, "slots-total": 4}, 4, 2),
        ({"taskmanagers": 2, "slots-total": 5}, 4, 2),
        ({"taskmanagers": 3, "slots-total": 2}, 2, 1),  # one of them has none
        ({"taskmanagers": 2, "slots-total": 3}, 4, "has 2 task managers with 3 slots, fewer than"),
        ({"taskmanagers": 0, "slots-total": 9}, 4, "has 0 task managers with 9 slots, fewer than"),
        ({"taskmanagers": 2}, 4, r"no Flink cluster answers at http://x \('slots-total'\)"),
        ([], 4, "no Flink cluster answers at http://x"),
        (None, 4, "no Flink cluster answers at http://x"),
    ],
)
def test_a_task_manager_has_slots_for_its_workers(
    monkeypatch: pytest.MonkeyPatch, answer: object, workers: int, found: int | str
) -> None:
    def urlopen(url: str, timeout: float) -> io.BytesIO:
        assert url == "http://x/overview"
        return io.BytesIO(b"<html>" if answer is None else json.dumps(answer).encode())

    monkeypatch.setattr(flink, "urlopen", urlopen)
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found):
            flink.slots_per_task_manager("http://x", workers)
    else:
        assert flink.slots_per_task_manager("http://x", workers) == found


@pytest.mark.usefixtures("flink")
def test_a_killed_worker_costs_one_try_and_no_unit_and_a_killed_stage_leaves_nothing(
    tmp_path: Path,
) -> None:
    """One job server has all of it: its start costs more than the work."""
    stage, descendants = busy(KILLED_THEN_BUSY.format(place=str(tmp_path)), tmp_path / "notes")
    end(stage, descendants, signal.SIGKILL)
    own, made, told = json.loads((tmp_path / "told.json").read_text())
    assert [unit["number"] for unit in made] == list(range(8))
    assert len({unit["process"] for unit in made} - {own}) >= 3
    done = [(tmp_path / "killed" / f"done-{n}").read_text() for n in range(8)]
    assert done[0] == done[1] == "x"
    assert re.search(r"unit-1 did not fit in memory .*; run again to continue", told)


@pytest.mark.soak
@pytest.mark.usefixtures("flink")
def test_nothing_outlives_a_stage_that_is_asked_to_end(tmp_path: Path) -> None:
    script = long_build(tmp_path, runner="flink")
    end(*busy(script, tmp_path / "notes"), signal.SIGTERM)


class Served:
    """A job server that goes on."""

    def raise_if_ended(self) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "cause"),
    [("", "RuntimeError"), ("Pipeline x failed in state FAILED: lost\n at", "FAILED: lost")],
)
def test_a_job_that_fails_without_a_word_is_submitted_again(
    tmp_path: Path, text: str, cause: str
) -> None:
    engine = FlinkBackend(Execution(runner="flink"), tmp_path)
    engine._pool, engine._server = None, Served()  # type: ignore[assignment]
    with pytest.raises(WorkerLostError, match=f"the Flink job ended as {cause} .its output is in"):
        engine._raise(RuntimeError(text))
