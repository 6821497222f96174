"""Prefect's database as a team leaves it before an upgrade: recorded by the version of its name.

    python -m tests.operations.recorded_database    # with the Prefect that is about to be replaced

The deployments are Cloze's, and people have changed what can be changed on Prefect's pages. The file
is SQL, since pages of SQLite hold time stamps and deleted rows.
"""

from __future__ import annotations

import lzma
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.operations.servers import Operations, cloze

HERE = Path(__file__).parent / "recorded"
HOOK = "http://127.0.0.1:9/hook-of-ours"  # kept encrypted, with a key in the database
FAR = "2099-01-01T00:00:00Z"
STATES = {  # of flow runs that wait, work, sleep and are over
    "full-run/full-run": ("SCHEDULED", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"),
    "data/data": ("SCHEDULED", "RUNNING"),
    "reports/weekly": ("SCHEDULED", "RUNNING"),
}
THEIRS: dict[str, Any] = {  # an automation of the team's, which carries Cloze's tag
    "name": "tell us of reports", "enabled": True, "tags": ["cloze", "ours"],
    "trigger": {
        "type": "event", "posture": "Reactive", "threshold": 1, "within": 0,
        "expect": ["prefect.flow-run.Completed"], "match": {"prefect.resource.id": "prefect.flow-run.*"},
    },
    "actions": [{"type": "do-nothing"}],
}  # fmt: skip


def recorded() -> list[Path]:
    """The recorded databases, each named by the version of Prefect that made it."""
    return sorted(HERE.glob("prefect-*.sql.xz"))


def restore(recorded: Path, path: Path) -> None:
    """Make the SQLite file of a server from a recorded one."""
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(lzma.decompress(recorded.read_bytes()).decode())


def change_by_hand(operations: Operations) -> None:
    """What people do on Prefect's pages."""
    ids = {
        name: operations.call(f"/deployments/name/{name}/{name}")["id"]
        for name in ("data", "ablation", "finetuning", "nightly-evaluation")
    }
    operations.call(f"/deployments/{ids['data']}", {"paused": True}, "PATCH")
    operations.delete(f"/deployments/{ids['ablation']}")
    weekly = {"schedule": {"cron": "0 5 * * 1", "timezone": "Europe/Berlin"}, "active": False}
    operations.call(f"/deployments/{ids['finetuning']}/schedules", [weekly])
    night = f"/deployments/{ids['nightly-evaluation']}/schedules"
    (found,) = operations.call(night)
    hour = {"schedule": {"cron": "45 22 * * *", "timezone": "Europe/Berlin"}, "active": False}
    operations.call(f"{night}/{found['id']}", hour, "PATCH")
    for automation in operations.call("/automations/filter", {}):
        if "nightly" in automation["name"]:
            operations.delete(f"/automations/{automation['id']}")
        elif "failed" in automation["name"]:
            operations.call(f"/automations/{automation['id']}", {"enabled": False}, "PATCH")
    operations.call("/automations/", THEIRS)
    flow = operations.call("/flows/", {"name": "reports"})["id"]
    theirs = {
        "name": "weekly",
        "flow_id": flow,
        "entrypoint": "reports.py:weekly",
        "tags": ["ours"],
    }
    daily = {"schedule": {"cron": "0 7 * * *"}, "active": True, "slug": "ours"}
    operations.call("/deployments/", {**theirs, "work_pool_name": "cloze", "schedules": [daily]})
    operations.call("/variables/", {"name": "theirs", "value": {"threshold": 3}})
    for name, states in STATES.items():
        for state in states:
            run = operations.trigger(name, at=FAR)
            told = {"state": {"type": state, "name": state.title()}, "force": True}
            if state != "SCHEDULED":
                operations.call(f"/flow_runs/{run}/set_state", told)
    operations.call("/work_pools/cloze", {"is_paused": True}, "PATCH")


def main() -> None:
    import prefect

    with tempfile.TemporaryDirectory(prefix="cloze-recorded-") as home:
        operations = Operations(Path(home))
        try:
            operations.environment["CLOZE_NOTIFY"] = HOOK
            done = cloze(operations, "deploy")
            assert done.returncode == 0, done.stderr
            change_by_hand(operations)
        finally:
            operations.close()
        with closing(sqlite3.connect(Path(home, "prefect", "prefect.db"))) as database:
            for table in ("event_resources", "events", "log"):
                database.execute(f"delete from {table}")
            database.commit()
            text = "\n".join(database.iterdump())
    HERE.mkdir(exist_ok=True)
    path = HERE / f"prefect-{prefect.__version__}.sql.xz"
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size:,} bytes of {len(text):,}")


if __name__ == "__main__":
    main()
