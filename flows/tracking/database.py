"""MLflow's SQLite file: its tables appear at once, made under a lock; `cloze doctor` mends it.

MLflow makes and migrates tables without a lock, and two processes that do so together break the
file for good. So the first user makes the file under another name.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path

from cloze.core.errors import ClozeError

HELD = 3  # exit code: another process holds the lock of the file
ARTIFACTS = "mlflow-artifacts"  # next to the file
ASIDE = ".broken-"  # added with the time to the name of a file that cannot be mended
BEFORE = ".before-migration-"  # added with its schema to the name of a copy
OPEN_SECONDS = 120.0
BUSY_SECONDS = 30.0  # a write of another process may take under load
PREFIX = "_alembic_tmp_"  # of tables that a migration makes and renames; a killed one leaves them
UNFINISHED = f"select name from sqlite_master where substr(name, 1, {len(PREFIX)}) = '{PREFIX}'"

_STEP = re.compile(
    r"""^revision\b.*?["'](\w+)["']\s*down_revision\b.*?(?:["'](\w+)["']|None)""", re.M
)


def path_of(uri: str) -> Path | None:
    """Return the file of a SQLite URI; None: a server, another database, or one in memory."""
    match = re.match(r"sqlite(?:\+\w+)?:///(?!:memory:)([^?]+)", uri)
    return Path(match[1]) if match else None


def file_identity(path: Path | None) -> tuple[int, int] | None:
    """Return what tells a file from a later one of its name; None: there is no file."""
    with suppress(OSError):
        return None if path is None else (path.stat().st_dev, path.stat().st_ino)
    return None


def make(path: Path) -> None:
    """Make the file, or migrate it to the schema of the MLflow here. The caller holds its lock.

    Raises ClozeError: a migration of the file is not finished, or a newer MLflow made the file.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    temporary = _beside(path)
    try:
        if path.exists():
            _check_not_newer(path)
            with closing(sqlite3.connect(path)) as database:
                if database.execute(UNFINISHED).fetchone() is not None:
                    raise ClozeError(
                        f"{path} is being migrated, or its migration was killed; wait, or mend it "
                        f"with `cloze doctor --fix`"
                    )
            if is_older(path):
                _migrate(path, temporary)
            return
        store = SqlAlchemyStore(f"sqlite:///{temporary}", str(path.parent / ARTIFACTS))
        store.engine.dispose()
        shutil.copymode(f"{path}.lock", temporary)  # SQLite lets no group write
        with suppress(FileExistsError):  # a host that does not see the lock was faster
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _migrate(path: Path, temporary: Path) -> None:
    """Migrate a copy while nobody writes to the file; it takes the file's place, which is kept.

    MLflow would migrate in place, and give up half-way at a writer's lock. Writers of any version
    wait or fail meanwhile, and their spools keep the records. SQLite writes to no file that was
    replaced, so a sender that has the former one open notices.
    """
    from mlflow.db import commands

    with closing(sqlite3.connect(path, BUSY_SECONDS, isolation_level=None)) as former:
        former.execute("begin immediate")
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(temporary)) as new:
            old.backup(new)
        commands(["upgrade", f"sqlite:///{temporary}"], standalone_mode=False)
        shutil.copymode(path, temporary)
        with suppress(FileExistsError):
            os.link(path, f"{path}{BEFORE}{_revision(path)}")
        temporary.replace(path)


@functools.cache  # 68 files of MLflow, which do not change under a process
def _steps() -> dict[str, str]:
    """Return the revision before each of the MLflow here; empty before the first."""
    spec = find_spec("mlflow")
    versions = Path((spec and spec.origin) or "").parent / "store/db_migrations/versions"
    scripts = (script.read_text(encoding="utf-8") for script in versions.glob("*.py"))
    return dict(match for text in scripts for match in _STEP.findall(text))


def _revision(path: Path) -> str:
    """Return a file's schema, empty if it has none."""
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.DatabaseError, TypeError):
        return str(database.execute("select version_num from alembic_version").fetchone()[0])
    return ""


def _check_not_newer(path: Path) -> None:
    """Raise ClozeError if no migration of the MLflow here leads to the file's schema."""
    revision = _revision(path)
    if revision and revision not in _steps():
        raise ClozeError(f"{path}: a newer MLflow made it (schema {revision}); upgrade MLflow here")


def is_older(path: Path) -> bool:
    """Return whether opening the file migrates it: an older MLflow opens it no more."""
    return (_revision(path) or None) in _steps().values()


class SlowDatabaseError(ClozeError):
    """A file was not opened in time, of which nothing is wrong."""


def why_closed(path: Path) -> tuple[str, bool]:
    """Return why MLflow cannot open a file, empty if it can, and whether `mend` may help.

    Another process asks, because MLflow remembers what it has opened.

    Raises SlowDatabaseError: it was not opened in time.
    """
    try:
        with closing(
            sqlite3.connect(f"file:{path}?mode=rw", timeout=BUSY_SECONDS, uri=True)
        ) as database:
            database.execute("begin immediate")
        _check_not_newer(path)
    except (sqlite3.OperationalError, ClozeError) as error:
        return str(error), False  # locked, full, of another user or MLflow
    except sqlite3.DatabaseError as error:
        return str(error), True
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cloze.flows.tracking.spool_state", f"sqlite:///{path}"],
            capture_output=True, text=True, timeout=OPEN_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlowDatabaseError(
            f"{path} is slow: it took more than {OPEN_SECONDS:.0f} s to open, and nothing else is "
            f"known to be wrong; run this again with less beside it"
        ) from None
    return done.stdout.strip() or done.stderr.strip()[-200:], done.returncode != HELD


def mend(path: Path, spools: Path) -> None:
    """Finish a migration, or do it, on a copy; if that fails, set the file aside for a new one.

    Raises ClozeError: a newer MLflow made the file, or it is slow, so it is left as it is.
    """
    _check_not_newer(path)
    copy = _beside(path)
    try:
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
            old.backup(new)
            tables = {name for (name,) in new.execute("select name from sqlite_master")}
            for (name,) in new.execute(UNFINISHED).fetchall():
                original = name.removeprefix(PREFIX)
                rename = f'alter table "{name}" rename to "{original}"'
                new.execute(f'drop table "{name}"' if original in tables else rename)
            new.commit()
        if not why_closed(copy)[0]:
            shutil.copymode(path, copy)  # a group may write to it
            copy.replace(path)
            return
    except sqlite3.DatabaseError:
        pass
    finally:
        for left in path.parent.glob(f"{copy.name}*"):
            left.unlink(missing_ok=True)
    path.rename(f"{path}{ASIDE}{time.strftime('%Y%m%d-%H%M%S')}")
    send_again(spools)


def send_again(spools: Path) -> None:
    """Have waiting spools sent from their start: a new database knows none of their runs."""
    for offset in spools.glob("*.sent"):
        offset.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
