"""A server's database of an earlier Prefect under this one: `cloze deploy` undoes nothing there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.operations import recorded_database
from tests.operations.servers import Operations, cloze

pytestmark = pytest.mark.timeout(600)
# What a deploy has no business to change: table -> columns, the first of which tells the rows apart.
KEPT = {
    "deployment": "id, name, paused, work_queue_name",
    "deployment_schedule": "id, deployment_id, slug, active, schedule",
    "automation": "id, name, enabled",
    "flow_run": "id, name, deployment_id, state_type, state_name, parameters",
    "flow_run_state": "id, flow_run_id, type, name, message",
    "work_pool": "id, name, is_paused, concurrency_limit",
    "block_document": "id, name",
}
# table -> column that a deploy must not set to 1 or to 0, even for a moment: runs would start
SWITCHES = {
    "deployment": ("paused", 0),
    "deployment_schedule": ("active", 1),
    "automation": ("enabled", 1),
}
DELETED = "automation 'cloze: notify of nightly evaluations' stays deleted as in Prefect"


def rows(path: Path) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The rows of `KEPT` by table and id."""
    with closing(sqlite3.connect(path, timeout=60)) as database:
        return {
            (table, row[0]): row
            for table, columns in KEPT.items()
            for row in database.execute(f"select {columns} from {table}")
        }


def watch(path: Path) -> None:
    """Have SQLite note what is switched on in the file, by anyone, for however short a time."""
    with closing(sqlite3.connect(path, timeout=60)) as database:
        database.execute("create table switched_on (name)")
        for table, (column, on) in SWITCHES.items():
            database.execute(
                f"create trigger watch_{table} after update of {column} on {table}"
                f" when new.{column} = {on} and old.{column} <> {on}"
                f" begin insert into switched_on values ('{table}'); end"
            )
        database.commit()


@pytest.fixture(scope="module", params=recorded_database.recorded(), ids=lambda path: path.name)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Operations, Path, dict[tuple[str, str], tuple[Any, ...]]]]:
    """A server of this Prefect on the recorded database, its file, and the rows before."""
    home = tmp_path_factory.mktemp("upgrade")
    path = home / "prefect" / "prefect.db"
    recorded_database.restore(request.param, path)
    before = rows(path)
    operations = Operations(home)
    operations.environment["CLOZE_NOTIFY"] = recorded_database.HOOK
    try:
        watch(path)
        yield operations, path, before
    finally:
        operations.close()


def test_a_deploy_after_an_upgrade_undoes_nothing(
    upgraded: tuple[Operations, Path, dict[tuple[str, str], tuple[Any, ...]]],
) -> None:
    operations, path, before = upgraded
    for made_again in (
        ["ablation/ablation"],
        [],
    ):  # a deleted deployment of the file is, and is said
        done = cloze(operations, "deploy", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        changes = "\n".join(told["changes"])
        assert told["removed"] == []
        assert [
            each for each in told["deployments"] if f"{each.partition('/')[0]} had been" in changes
        ] == made_again
        assert "deployment data/data stays paused" in changes
        assert (
            "nightly-evaluation/nightly stays as set in Prefect: 45 22 * * * Europe/Berlin"
            in changes
        )
        assert "schedule nightly-evaluation/nightly stays paused" in changes
        assert DELETED in changes
        assert "automation 'cloze: notify of failed runs' stays switched off" in changes
        after = rows(path)
        assert {key: after.get(key) for key in before} == before
    with closing(sqlite3.connect(path, timeout=60)) as database:
        assert database.execute("select name from switched_on").fetchall() == []
    new = {row for key, row in after.items() if key not in before}
    paused = operations.call("/deployments/name/data/data")["id"]
    assert not [row for row in new if paused in row]  # no run that its schedule would start
    assert operations.call("/variables/name/theirs")["value"] == {"threshold": 3}
    names = {each["name"] for each in operations.call("/automations/filter", {})}
    assert recorded_database.THEIRS["name"] in names
