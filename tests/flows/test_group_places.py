"""What others of a group, or of the machine, find and leave in the places that runs share."""

from __future__ import annotations

import builtins
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cloze.core import accounts
from cloze.core.artifacts import lock
from cloze.core.errors import UsageError
from cloze.flows.run import cancellation, retention, server_addresses, status_file, status_writer
from cloze.flows.run.targets import check_name
from cloze.flows.tracking import database, spool_state
from cloze.flows.ui import command
from tests.flows import test_shared_places
from tests.flows.test_shared_places import OTHER, as_account, as_root

tmp_path = test_shared_places.tmp_path
ALICE, BOB = OTHER, OTHER + 1


def hold(directory: Path) -> None:
    with lock.locked(str(directory)):
        pass


def refuse(directory: Path) -> None:
    spool_state.add_dead_letter(directory / "1-a-b.jsonl", {"op": "end"}, "unknown")


def ask(directory: Path) -> None:
    """Ask a run to end by its mark, for which the link waits."""
    (directory / "_status").mkdir()
    record = status_writer.RunStatusFile(directory, "toy", [], {}, {})
    mark = status_file.cancel_mark(record.path)
    (directory / "link").rename(mark)
    with lock.locked(str(directory)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "send_signal", lambda *_: True)
        patch.setattr(cancellation, "wait_or_kill", lambda *_: record.end("cancelled"))
        cancellation.cancel(directory.parent, directory.name)


@pytest.mark.parametrize(
    ("name", "write"), [("_lock", hold), ("refused/records.jsonl", refuse), ("link", ask)]
)
def test_a_link_to_a_file_of_ones_own_changes_nothing_there(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    (mine := tmp_path / "mine").write_text("mine")
    mine.chmod(0o600)
    place = tmp_path / "runs" / "toy"
    (place / name).parent.mkdir(parents=True)
    place.chmod(0o2775)
    (place / name).symlink_to(mine)
    with suppress(OSError):
        write(place)
    assert (mine.read_text(), stat.S_IMODE(mine.stat().st_mode)) == ("mine", 0o600)


@pytest.mark.parametrize("by", ["bob", "NLP\\bob b. builder", "böb"])
def test_an_account_of_any_name_is_named_as_who_has_cancelled(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(status_writer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(os, "kill", lambda *_: asked.append(1))
    monkeypatch.setattr(cancellation, "user_name", lambda: by)
    monkeypatch.setattr(lock, "send_signal", lambda *_: False)
    directory = tmp_path / "runs" / "toy"
    with lock.locked(str(directory)):
        record = status_writer.RunStatusFile(directory, "toy", [], {}, {})

        def wait(*_: Any) -> bool:
            while not asked:
                record._ended.wait(0.01)
            record._ended.wait(0.05)
            record.end("cancelled", "stopped")
            return False

        monkeypatch.setattr(cancellation, "wait_or_kill", wait)
        found = cancellation.cancel(tmp_path / "runs", "toy")
    assert (found["error"], asked) == (f"cancelled by {by}: stopped", [1])


@pytest.mark.parametrize(
    ("pid", "answer", "runs"),
    [(4321, PermissionError, True), (4321, ProcessLookupError, False), (0, None, False),
     (-1, None, False), (None, None, False), ("1", None, False), (2**70, OverflowError, False)],
)  # fmt: skip
def test_a_process_that_proc_hides_lives(
    pid: Any, answer: Any, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hidepid, as on many clusters, others' processes are not in /proc."""
    facts = {**lock.process_identity(), "pid": pid, "start": "77"}
    opened = builtins.open

    def hides(path: Any, *rest: Any, **more: Any) -> Any:
        if path == f"/proc/{pid}/stat":
            raise FileNotFoundError(path)
        return opened(path, *rest, **more)

    def kill(*_: Any) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(builtins, "open", hides)
    monkeypatch.setattr(os, "kill", kill)
    assert lock.is_running(facts) == runs


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o644])
def test_a_mended_database_is_as_open_as_before(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("create table alembic_version (version_num)")
    path.chmod(mode)
    monkeypatch.setattr(database, "why_closed", lambda _: ("", False))
    database.mend(path, tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@as_root
def test_clean_keeps_all_sources_while_a_job_is_anothers_to_read(tmp_path: Path) -> None:
    job = tmp_path / "toy" / "train-0123456789ab" / "_logs" / "job.json"
    (tmp_path / "toy" / "_status").mkdir(parents=True)
    (copy := tmp_path / ".source" / "abc").mkdir(parents=True)
    job.parent.mkdir(parents=True)
    job.write_text("{}")
    os.chown(job, ALICE, -1)
    job.chmod(0o600)

    def count() -> int:
        return len(retention.unneeded_sources(tmp_path))

    assert as_account(BOB, 0o022, count) == 0
    job.unlink()
    assert as_account(BOB, 0o022, count) == 1
    assert copy.exists()


@pytest.mark.parametrize(
    ("name", "is_mlflows"),
    [("mlflow.db", True), ("mlflow.db/toy", True), ("mlflow-artifacts", True), ("mlflow", False),
     ("mlflow-artifacts/1", True), ("mlflow.db.lock", True), ("alice/mlflow.db", False)],
)  # fmt: skip
def test_a_run_does_not_take_the_place_of_mlflows_files(
    name: str, is_mlflows: bool, tmp_path: Path
) -> None:
    if not is_mlflows:
        check_name(tmp_path, name)
        return
    with pytest.raises(UsageError, match="is the name of MLflow's records; choose another"):
        check_name(tmp_path, name)


@as_root
def test_the_servers_of_another_account_are_said_to_be_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    (login := server_addresses.directory(runs) / "login").parent.mkdir(parents=True)
    login.write_text("cloze:secret")
    login.chmod(0o600)
    os.chown(login, ALICE, -1)
    now = {"state": "up", "login": str(login)}
    monkeypatch.setattr(server_addresses, "servers", lambda _: now)

    def attach() -> int:
        with pytest.raises(UsageError, match=f"are those of {ALICE}, who alone .*dashboard-only"):
            command._attach(runs, {}, Console(), as_json=False)
        return 0

    assert as_account(BOB, 0o022, attach) == 0


@pytest.mark.parametrize("existed", [False, True])
def test_only_their_owner_reads_what_prefect_keeps(
    existed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = server_addresses.directory(tmp_path)
    (directory / "prefect" if existed else directory).mkdir(parents=True)
    monkeypatch.setattr(command, "Supervisor", lambda *_, **__: SimpleNamespace(run=lambda: None))
    none = dict.fromkeys(("prefect", "mlflow", "page"))
    command._supervise(tmp_path, none, Console(quiet=True), as_json=False)
    assert stat.S_IMODE((directory / "prefect").stat().st_mode) == 0o700


def test_a_private_file_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic"):
        accounts.open_private(str(tmp_path / "link"), os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / "mine").exists()
