"""Embedded Flink: what is missing is said, and nothing of it outlives its stage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages.execution import Execution
from cloze.pipeline.runners import flink
from cloze.pipeline.runners.base import WorkerLostError
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.flink import FlinkBackend, rest_url
from tests.flows.test_cli import cloze
from tests.pipeline.runners.test_local import kill_worker_of
from tests.pipeline.runners.units import build, long_build, misbehave, numbered, within, work


def corpus(samples: Path, out: Path, **environment: str) -> tuple[int, str]:
    options = ["--runner", "flink", "--out", str(out)]
    done = cloze(
        "corpus", "--source", f"books={samples / 'books'}", *options, cwd=samples, **environment
    )
    return done.returncode, done.stderr


def test_no_java(samples: Path, tmp_path: Path) -> None:
    code, output = corpus(samples, tmp_path / "out", JAVA_HOME=str(tmp_path))
    assert code == 2
    assert (
        f"runner flink needs Java 11 or later, and JAVA_HOME ({tmp_path}) has no bin/java; "
        f"install a Java runtime"
    ) in output


def test_no_runner(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"  # no Java is needed to miss the runner
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "empty").mkdir()
    for value, sentence in (
        ("/none/x.jar", "does not exist"),
        (str(tmp_path / "empty"), "is a directory without jars"),
    ):
        code, output = corpus(
            samples, tmp_path / "out", JAVA_HOME=str(tmp_path), CLOZE_FLINK_CLASSPATH=value
        )
        assert code == 2
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
    samples: Path, tmp_path: Path, flink_classpath: str
) -> None:
    del flink_classpath  # Java is here
    (tmp_path / "a.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    code, output = corpus(samples, tmp_path / "out", CLOZE_FLINK_CLASSPATH=str(tmp_path / "a.jar"))
    assert code == 2
    assert "CLOZE_FLINK_CLASSPATH has no Beam Flink job server" in output


@pytest.mark.usefixtures("flink")
def test_no_cluster(samples: Path, tmp_path: Path) -> None:
    options = ["--runner", "flink", "--flink-master", "127.0.0.1:9", "--out", str(tmp_path / "out")]
    done = cloze("corpus", "--source", f"books={samples / 'books'}", *options, cwd=samples)
    assert done.returncode == 2
    assert "no Flink cluster answers at http://127.0.0.1:9" in done.stderr


def test_addresses() -> None:
    assert rest_url("flink:8081") == rest_url("http://flink:8081/") == "http://flink:8081"
    assert rest_url("https://[::1]:80") == "https://[::1]:80"
    with pytest.raises(UsageError, match=r"flink_master \(flink\) must look like HOST:PORT"):
        rest_url("flink")


@pytest.mark.slow
@pytest.mark.usefixtures("flink")
def test_a_killed_worker_costs_one_try_and_no_unit(tmp_path: Path) -> None:
    begun = build(tmp_path / "out", workers=2, runner="flink")
    with begun.cleanup:
        kill_worker_of(tmp_path / "notes", 5)
        made = fan_out(
            begun, "work", numbered(tmp_path / "notes", 8, seconds=0.4), work, unit_name="units"
        )
        assert [unit["number"] for unit in made] == list(range(8))
        assert len({unit["process"] for unit in made} - {os.getpid()}) >= 3
        done = [(tmp_path / "notes" / f"done-{n}").read_text() for n in range(8)]
        assert done[0] == done[1] == "x"
        with pytest.raises(
            ClozeError, match=r"unit-1 did not fit in memory .*; run again to continue"
        ):
            fan_out(
                begun,
                "more",
                numbered(tmp_path / "more", 3, fault="memory"),
                misbehave,
                unit_name="units",
            )


@pytest.mark.slow
@pytest.mark.usefixtures("flink")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_its_stage(number: signal.Signals, tmp_path: Path) -> None:
    script = long_build(tmp_path, runner="flink")
    stage = subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL
    )
    notes = tmp_path / "notes"
    try:
        assert within(100, lambda: len(list(notes.glob("began-*"))) >= 2)
        descendants = psutil.Process(stage.pid).children(recursive=True)
        assert any("FlinkJobServerDriver" in " ".join(child.cmdline()) for child in descendants)
        stage.send_signal(number)
        stage.wait(timeout=30)
        assert within(
            10,
            lambda: (
                not [
                    child
                    for child in descendants
                    if child.is_running() and child.status() != "zombie"
                ]
            ),
        )
    finally:
        stage.kill()


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
