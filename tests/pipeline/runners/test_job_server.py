"""The start of Flink's job server: a port that another process takes, Java's words, its patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, UsageError
from cloze.pipeline.runners import flink
from cloze.pipeline.runners.flink import JobServer

STARTS = list[tuple[int | None, bytes]]  # exit code (None: it runs), output


def server(monkeypatch: pytest.MonkeyPatch, log: Path, starts: STARTS, ready: int = 99) -> Any:
    """A job server whose starts end so; that with number `ready` listens to its port."""
    found: Any = JobServer("java", "a.jar", log, None, "token")
    current: list[int | None] = []

    def start() -> None:
        code, output = starts[len(current)]
        current.append(code)
        with log.open("ab") as stream:
            stream.write(output)
        found.port = 5000 + len(current)
        found._supervisor = type("Process", (), {"poll": lambda self: code})()

    def wait(port: int, seconds: float, lives: Any) -> bool:
        assert (port, seconds) == (5000 + len(current), 90.0)
        assert lives() is (current[-1] is None)
        return len(current) == ready

    monkeypatch.setenv(flink.READY_SECONDS, "90")
    monkeypatch.setattr(found, "_start", start)
    monkeypatch.setattr(flink, "wait_for_port", wait)
    monkeypatch.setattr(JobServer, "__exit__", lambda *_: None)
    return found


@pytest.mark.parametrize("value", ["abc", "-1", "nan", "inf", "2m"])
def test_a_time_that_is_no_number_is_told_before_java_starts(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = server(monkeypatch, tmp_path / "log", [])
    monkeypatch.setenv(flink.READY_SECONDS, value)
    with pytest.raises(UsageError, match=rf"{flink.READY_SECONDS} \('{value}'\)"):
        found.__enter__()


TAKEN = b"java.net.BindException: in use \xff\n"


def test_a_port_that_was_taken_is_left_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    cases: list[tuple[STARTS, int]] = [([(None, b"")], 1), ([(1, TAKEN), (None, b"")], 2)]
    for starts, ready in cases:
        found = server(monkeypatch, log, starts, ready)
        assert found.__enter__() is found
        assert found.port == 5000 + ready
    with pytest.raises(ClozeError) as caught:
        server(monkeypatch, log, [(1, TAKEN), (1, TAKEN)]).__enter__()
    assert str(caught.value) == (
        f"Beam's Flink job server ended with exit code 1 (java.net.BindException: in use \ufffd); "
        f"its output is in {log}"
    )


@pytest.mark.parametrize(
    ("output", "kind", "sentence"),
    [
        (b"started\n", ClozeError, "Beam's Flink job server ended with exit code 3; its output"),
        (b"x\n  java.lang.Error: b \nException c", ClozeError, "exit code 3 (java.lang.Error: b)"),
        (
            b"java.lang.UnsupportedClassVersionError: 61\n",
            UsageError,
            "Java is too old for Beam's Flink job server (java.lang.UnsupportedClassVersionError: "
            "61); set JAVA_HOME to Java 17 or 11",
        ),
        (
            f"ClassNotFoundException: {flink.DRIVER}\n".encode(),
            UsageError,
            f"{flink.CLASSPATH} has no Beam Flink job server (ClassNotFoundException: "
            f"{flink.DRIVER}); set it to a jar or directory with one",
        ),
        (b"ClassNotFoundException: other\n", ClozeError, "(ClassNotFoundException: other)"),
    ],
)
def test_what_java_said_is_told_and_nothing_of_earlier_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: bytes, kind: type, sentence: str
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"BindException of an earlier start\n")
    with pytest.raises(kind) as caught:
        server(monkeypatch, log, [(3, output)]).__enter__()
    assert sentence in str(caught.value)


def test_one_that_does_not_listen_in_time_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ClozeError) as caught:
        server(monkeypatch, tmp_path / "log", [(None, b"BindException")]).__enter__()
    assert str(caught.value) == (
        f"Beam's Flink job server was not ready after 90 seconds (its output is in "
        f"{tmp_path / 'log'}); set {flink.READY_SECONDS} to wait longer"
    )
