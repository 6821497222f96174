"""MLflow's own file: made once by many, opened or named, mended, and no record lost by any of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.doctor import runs as doctor
from cloze.flows.doctor.machine import run_check
from cloze.flows.tracking import database, spool_sender, spool_state
from cloze.flows.tracking import spool as spools
from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import DIRECTORY, Spool
from tests.slices import few


def at_once(count: int, work: Callable[[], object]) -> list[int]:
    """Do something in several processes that begin together; return their exit codes."""
    reader, writer = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(writer)
                os.read(reader, 1)  # until the parent closes its end
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(reader)
    os.close(writer)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that MLflow opens."""
    path = tmp_path_factory.mktemp("whole") / "mlflow.db"
    spool_state.connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def runs(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs directory with such a file."""
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copyfile(whole, tmp_path / "mlflow.db")
    return tmp_path


def uri(runs: Path) -> str:
    return f"sqlite:///{runs / 'mlflow.db'}"


def send(runs: Path) -> int:
    """Write a run's records and send them and all others; return the sender's code."""
    spool = Spool(runs / DIRECTORY, uri(runs))
    run = spool.start_run("toy", run=os.urandom(4).hex())
    spool.metrics(run, {"loss": 2.0}, 1)
    spool.end_run(run)
    spool.close()
    ended = threading.Event()
    ended.set()
    return spool_sender.follow(spool.path, uri(runs), ended)


def sent_by_a_process(runs: Path) -> int:
    """MLflow remembers what a process has opened, so each sender is one."""
    return at_once(1, lambda: os._exit(send(runs)))[0]


def recorded(runs: Path) -> list[Any]:
    with closing(sqlite3.connect(runs / "mlflow.db")) as opened:
        return opened.execute("select status from runs").fetchall()


def test_many_first_users_make_one_database(tmp_path: Path) -> None:
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  the children share the imports

    path = tmp_path / "new" / "mlflow.db"

    def use() -> None:
        client = spool_state.connect(f"sqlite:///{path}")
        spool_state.experiment_id(client, f"sqlite:///{path}")

    assert at_once(4, use) == [0] * 4
    assert sorted(file.name for file in path.parent.iterdir()) == ["mlflow.db", "mlflow.db.lock"]
    with closing(sqlite3.connect(path)) as opened:
        assert opened.execute("select count(*) from alembic_version").fetchone() == (1,)
        assert opened.execute(database.UNFINISHED).fetchall() == []
        assert opened.execute("select count(*) from registered_models").fetchone() == (0,)


def test_a_killed_first_user_leaves_no_half_made_database(tmp_path: Path) -> None:
    """The file has its name only when it is whole."""
    from mlflow.store.db import utils

    def die(_: object) -> None:
        os._exit(9)

    def use() -> None:
        utils._upgrade_db = die
        spool_state.connect(f"sqlite:///{tmp_path}/mlflow.db")

    assert at_once(1, use) == [9]
    assert not (tmp_path / "mlflow.db").exists()


def unfinished(path: Path) -> None:
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("create table _alembic_tmp_experiments (a int)")
        opened.commit()


def without_a_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("delete from alembic_version")
        opened.execute("drop table webhooks")
        opened.commit()


def no_database(path: Path) -> None:
    path.write_bytes(b"<html>not a database</html>" * 50)


def torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:3000] = bytes(2900)
    path.write_bytes(content)


BROKEN = [unfinished, without_a_version, no_database, torn]


@pytest.mark.parametrize("harm", few(BROKEN, torn, unfinished))
def test_a_broken_database_keeps_its_records_until_doctor_mends_it(
    runs: Path, harm: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    harm(runs / "mlflow.db")
    assert sent_by_a_process(runs) != 0
    assert "Traceback" not in "".join(capfd.readouterr())
    assert len(list((runs / DIRECTORY).glob("*.jsonl"))) == 1
    (named,) = [found for found in doctor.mlflow_database() if not found.ok]
    assert str(runs / "mlflow.db") in named.observed
    after = run_check(doctor.mlflow_database, fix=True)
    assert all(found.ok or found.fixed for found in after)
    assert any("set aside" in found.observed for found in after) == (harm is not unfinished)
    assert len(list(runs.glob("mlflow.db.broken-*"))) == (harm is not unfinished)
    assert sent_by_a_process(runs) == 0
    assert recorded(runs) == [("FINISHED",)] * 2
    assert not list((runs / DIRECTORY).glob("*.jsonl"))


def test_a_database_that_is_held_is_named_and_left_alone(runs: Path) -> None:
    with closing(sqlite3.connect(runs / "mlflow.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        (named,) = doctor.mlflow_database()
    assert (named.ok, named.repair) == (False, None)
    assert "locked" in named.observed


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_database_that_vanishes_is_made_anew_with_all_that_waits(
    runs: Path, whole: Path, is_replaced: bool
) -> None:
    spool = Spool(runs / DIRECTORY, uri(runs))
    spool.start_sender()
    run = spool.start_run("toy", run=os.urandom(4).hex())
    spool.metrics(run, {"loss": 2.0}, 1)
    deadline = time.monotonic() + 100
    while not recorded(runs):
        assert time.monotonic() < deadline, (spool.directory / "sender.log").read_text()
        time.sleep(0.1)
    (runs / "mlflow.db").unlink()
    if is_replaced:
        shutil.copyfile(whole, runs / "mlflow.db")
    spool.metrics(run, {"loss": 1.0}, 2)
    spool.end_run(run)
    assert close_spool(spool, 100.0) == []
    assert recorded(runs) == [("FINISHED",)]
    with closing(sqlite3.connect(runs / "mlflow.db")) as opened:
        assert opened.execute("select step from metrics order by step").fetchall() == [(1,), (2,)]
    assert "Traceback" not in (spool.directory / "sender.log").read_text()


class Sink:
    """What a sender hands records to."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def send(self, record: Any) -> None:
        self.records.append(record["op"])


@pytest.mark.parametrize(
    ("age", "is_taken"), [(0.0, False), (600.0, False), (1000.0, True)], ids=str
)
def test_hosts_that_see_no_locks_of_each_other_leave_live_spools_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, is_taken: bool
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(spools, "boot", lambda: "aaaaaaaa")
    theirs = Spool(tmp_path, "http://127.0.0.1:1")
    theirs.end_run(theirs.start_run("toy"))
    waiting = Spool(tmp_path, "http://127.0.0.1:1")  # it has written nothing yet
    then = theirs.path.stat().st_mtime - age
    for spool in (theirs, waiting):
        os.utime(spool.path, (then, then))
    monkeypatch.setattr(spools, "boot", lambda: "bbbbbbbb")
    sink = Sink()
    sender = spool_sender.SpoolSender(sink)  # type: ignore[arg-type]
    for _ in range(2):
        for path in sorted(tmp_path.glob("*.jsonl")):
            spool_sender._send_orphan(sender, path)
    assert sink.records == (["start", "end"] if is_taken else [])
    assert theirs.path.exists() != is_taken
    assert waiting.path.exists()
