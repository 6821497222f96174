"""A database of another MLflow's schema: migrated, or left with a sentence; never set aside."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command

from cloze.core.errors import ClozeError
from cloze.flows.doctor import runs as doctor
from cloze.flows.tracking import database, spool_state
from tests.flows.tracking.test_database import runs as runs
from tests.flows.tracking.test_database import whole as whole

pytestmark = pytest.mark.usefixtures("warm")
OLDER = "17e22815139b"  # of MLflow 3.10: tables are missing
UNKNOWN = "ffffffffffff"


def of_an_older_mlflow(path: Path) -> None:
    import sqlalchemy
    from mlflow.store.db import utils

    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    utils.InitialBase.metadata.create_all(engine)
    config = utils._get_alembic_config(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLDER)
    engine.dispose()
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("insert into experiments (name, experiment_id) values ('mine', 7)")
        opened.commit()


def schema_and_names(path: Path) -> tuple[str, set[str]]:
    with closing(sqlite3.connect(path)) as opened:
        names = {name for (name,) in opened.execute("select name from experiments")}
        return opened.execute("select version_num from alembic_version").fetchone()[0], names


def asides(runs: Path) -> list[Path]:
    return list(runs.glob(f"mlflow.db{database.ASIDE}*"))


def test_a_look_migrates_nothing_and_a_run_keeps_a_copy(runs: Path) -> None:
    """An older MLflow, a team's server say, could not open the file any more."""
    path = runs / "mlflow.db"
    path.unlink()
    of_an_older_mlflow(path)
    [finding] = doctor.mlflow_database()
    assert (finding.ok, "is of an older MLflow" in finding.observed) == (True, True)
    assert schema_and_names(path)[0] == OLDER
    for _ in range(2):
        spool_state.connect(f"sqlite:///{path}")
    copy = runs / f"mlflow.db{database.BEFORE}{OLDER}"
    assert list(runs.glob(f"mlflow.db{database.BEFORE}*")) == [copy]
    assert schema_and_names(copy) == (OLDER, {"mine"})
    assert schema_and_names(path)[1] >= {"mine"}
    assert not database.is_older(path)
    observed = [finding.observed for finding in doctor.mlflow_database()]
    assert observed[0].startswith(f"{copy} is the database before MLflow migrated it")
    assert observed[1:] == [f"{path} opens"]


def test_a_migration_waits_for_a_writer_and_others_wait_for_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow itself gives up half-way after five seconds, and writers add rows between its steps."""
    import mlflow.db

    path, migrate, refused = runs / "mlflow.db", mlflow.db.commands, []
    path.unlink()
    of_an_older_mlflow(path)
    write = "insert into experiments (name, experiment_id) values ('theirs {0}', {0})"

    def watched(*arguments: object, **more: object) -> None:
        with (
            closing(sqlite3.connect(path, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked") as error,
        ):
            other.execute(write.format(9))
        refused.append(error.value)
        migrate(*arguments, **more)

    monkeypatch.setattr(mlflow.db, "commands", watched)
    writer = sqlite3.connect(path, check_same_thread=False)
    writer.execute(write.format(8))

    def finish() -> None:
        writer.commit()
        writer.close()

    timer = threading.Timer(7, finish)
    timer.start()
    opened_before = sqlite3.connect(path)
    spool_state.connect(f"sqlite:///{path}")
    timer.join()
    assert len(refused) == 1
    assert schema_and_names(path)[1] >= {"mine", "theirs 8"}
    assert not database.is_older(path)
    with closing(opened_before), pytest.raises(sqlite3.OperationalError, match="readonly"):
        opened_before.execute(write.format(10))  # a sender then sees that the file was replaced


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow.db

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such column: of_ours")

    path = runs / "mlflow.db"
    path.unlink()
    of_an_older_mlflow(path)
    before = database.file_identity(path)
    monkeypatch.setattr(mlflow.db, "commands", fail)
    with pytest.raises(ClozeError, match=r"no such column: of_ours.*cloze doctor"):
        spool_state.connect(f"sqlite:///{path}")
    assert (database.file_identity(path), schema_and_names(path)[0]) == (before, OLDER)
    assert [file.name for file in runs.iterdir() if file.name.startswith(".mlflow")] == []


def test_a_database_of_an_older_mlflow_is_migrated_with_its_records(runs: Path) -> None:
    path = runs / "mlflow.db"
    head = schema_and_names(path)[0]
    path.unlink()
    of_an_older_mlflow(path)
    findings = list(doctor.mlflow_database())
    for finding in findings:
        if not finding.ok and finding.repair is not None:
            finding.repair()
    assert database.why_closed(path)[0] == ""
    assert schema_and_names(path) == (head, {"Default", "mine"})
    assert asides(runs) == []


def test_one_of_a_newer_mlflow_stays_where_it_is(runs: Path) -> None:
    path = runs / "mlflow.db"
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("update alembic_version set version_num = ?", (UNKNOWN,))
        opened.commit()
    [finding] = doctor.mlflow_database()
    assert not finding.ok
    assert "a newer MLflow made it" in finding.observed
    assert "upgrade MLflow" in finding.fix
    assert finding.repair is None
    with pytest.raises(ClozeError, match="a newer MLflow made it"):
        database.mend(path, runs)
    assert schema_and_names(path)[0] == UNKNOWN
    assert asides(runs) == []


def test_a_schema_that_cannot_be_migrated_is_still_set_aside(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runs / "mlflow.db"
    shutil.copyfile(path, tmp_path / "before")
    monkeypatch.setattr(database, "why_closed", lambda _: ("no such column", True))
    database.mend(path, runs)
    assert (len(asides(runs)), path.exists()) == (1, False)


def test_a_slow_database_is_slow_and_stays_where_it_is(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is busy: the process that opens the file gets no time."""
    path = runs / "mlflow.db"
    monkeypatch.setattr(database, "OPEN_SECONDS", 0.01)
    [finding] = doctor.mlflow_database()
    assert finding.ok
    assert finding.observed.startswith(f"{path} is slow: it took more than")
    with pytest.raises(ClozeError, match="is slow"):
        database.mend(path, runs)
    assert (asides(runs), path.exists()) == ([], True)


def test_a_database_that_another_process_writes_to_is_waited_for(runs: Path) -> None:
    path = runs / "mlflow.db"
    writer = sqlite3.connect(path, check_same_thread=False)
    writer.execute("begin immediate")
    timer = threading.Timer(7, writer.close)
    timer.start()
    [finding] = doctor.mlflow_database()
    timer.join()
    assert (finding.ok, finding.observed) == (True, f"{path} opens")


def test_one_whose_lock_is_held_is_not_mended(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess(
            [], database.HELD, "mlflow.db.lock is held", ""
        ),
    )
    [finding] = doctor.mlflow_database()
    assert (finding.ok, finding.repair) == (False, None)
    assert "mlflow.db.lock is held" in finding.observed


def test_mlflows_server_ends_on_a_newer_database_with_one_sentence(runs: Path) -> None:
    path = runs / "mlflow.db"
    with closing(sqlite3.connect(path)) as opened:
        opened.execute("update alembic_version set version_num = ?", (UNKNOWN,))
        opened.commit()
    done = subprocess.run(
        [sys.executable, "-m", "cloze.flows.ui.mlflow_server", "--port", "1"],
        env={**os.environ, "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{path}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    said = f"ClozeError: {path}: a newer MLflow made it (schema {UNKNOWN}); upgrade MLflow here"
    assert done.stderr.strip().splitlines()[-1] == said
    assert "Traceback" not in done.stderr
