"""Two projects on one Prefect server and in one work pool: neither touches the other's deployments,
and deploys at once lose nothing of their record.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cloze.core import accounts
from cloze.core.errors import ClozeError, UsageError
from cloze.flows.prefect import deploy as deploying
from cloze.flows.prefect import schedules
from tests.operations.servers import Operations, cloze
from tests.operations.test_decisions import forget

FILE = {
    "deployments": [
        {"name": "data", "entrypoint": "cloze.flows.prefect.graph_run.data", "tags": ["cloze"],
         "work_pool": {"name": "cloze", "job_variables": {"env": {"A": "1"}}}},
        {"name": "nightly-evaluation", "entrypoint": "cloze.flows.prefect.nightly.x",
         "schedules": [{"slug": "nightly", "cron": "30 3 * * *"}]},
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("project", "prefix"), [("cloze", ""), ("nlp", "nlp:"), ("größe.2", "größe.2:")]
)
def test_deployments_carry_their_project(project: str, prefix: str) -> None:
    data, night = deploying._of_project(FILE, project)["deployments"]
    assert (data["name"], night["name"]) == (f"{prefix}data", f"{prefix}nightly-evaluation")
    assert data["tags"] == ["cloze", f"project:{project}"]
    assert data["work_pool"]["name"] == "cloze"
    environment = data["work_pool"]["job_variables"]["env"]
    assert environment == {"A": "1", "CLOZE_PROJECT": project}
    assert [deploying.project_of(each["name"]) for each in (data, night)] == [project] * 2
    assert "CLOZE_PROJECT" not in json.dumps(FILE)  # the file's own stays as it is


def test_each_project_has_its_own_night(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        each["name"]: each
        for project in ("cloze", "nlp")
        for each in deploying._of_project(FILE, project)["deployments"]
    }
    monkeypatch.setenv("CLOZE_NIGHTLY", "0 1 * * *")
    assert schedules.desired_schedules(entries, {}) == {
        "nightly-evaluation/nightly": "0 1 * * * UTC",
        "nlp:nightly-evaluation/nightly": "0 1 * * * UTC",
    }
    monkeypatch.delenv("CLOZE_NIGHTLY")
    last = {"nlp:nightly-evaluation/nightly": "0 1 * * * UTC"}
    kept = schedules.desired_schedules(entries, last)
    assert kept["nightly-evaluation/nightly"] == "30 3 * * * UTC"
    assert kept["nlp:nightly-evaluation/nightly"] == "0 1 * * * UTC"


@pytest.mark.parametrize("name", ["a/b", "", ".a", "a:b", "a b", 3, ["a"], "-x"])
def test_a_project_is_a_name(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="project.*must consist of letters"):
        accounts.project(name)
    if isinstance(name, str) and name:
        monkeypatch.setenv("CLOZE_PROJECT", name)
        with pytest.raises(UsageError, match="CLOZE_PROJECT.*must consist of letters"):
            accounts.project()


def test_a_deploy_that_waits_too_long_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(deploying, "concurrency", held)
    client = SimpleNamespace(create_global_concurrency_limit=lambda *_: None)
    waiting = deploying._alone(cast(Any, client))
    with pytest.raises(ClozeError, match="another deploy to this server"), waiting:
        pass


@pytest.fixture
def server(operations: Operations) -> Iterator[Operations]:
    """The server as before any `cloze deploy`."""
    forget(operations)
    yield operations
    forget(operations)


def deploy(server: Operations, project: str, found: dict[str, Any]) -> None:
    shell = SimpleNamespace(
        environment={**server.environment, "CLOZE_PROJECT": project}, home=server.home
    )
    done = cloze(cast(Operations, shell), "deploy", "--json")
    assert done.returncode == 0, done.stderr
    found[project] = json.loads(done.stdout)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_projects_deploy_at_once_into_one_pool(server: Operations) -> None:
    found: dict[str, Any] = {}
    both = [
        threading.Thread(target=deploy, args=(server, project, found))
        for project in ("speech", "nlp")
    ]
    for each in both:
        each.start()
    for each in both:
        each.join()
    deploy(server, "cloze", found)
    deploy(server, "nlp", found)
    assert [each["removed"] for each in found.values()] == [[], [], []]
    assert found["nlp"]["changes"] == []  # others' deploys are none of its changes
    there = {each["name"]: each for each in server.call("/deployments/filter", {})}
    for project, prefix in (("cloze", ""), ("nlp", "nlp:"), ("speech", "speech:")):
        each = there[f"{prefix}nightly-evaluation"]
        assert f"project:{project}" in each["tags"]
        assert each["job_variables"]["env"]["CLOZE_PROJECT"] == project
    (variable,) = [
        each for each in server.call("/variables/filter", {}) if each["name"] == schedules.VARIABLE
    ]
    record = json.loads(variable["value"])
    assert {"full-run", "nlp:full-run", "speech:full-run"} <= set(record)
    assert {f"{prefix}nightly-evaluation/nightly" for prefix in ("", "nlp:", "speech:")} <= set(
        record
    )
