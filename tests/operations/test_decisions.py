"""What an operator has decided in Prefect outlives a deploy, and what a deploy changes it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.flows.prefect import schedules
from cloze.flows.prefect.automations import RUN_GROWN
from cloze.flows.prefect.deploy import ENTRYPOINTS, _check_owner
from tests.operations.servers import Operations, cloze

NIGHT = "nightly-evaluation"


def undeploy(operations: Operations) -> None:
    for each in operations.call("/automations/filter", {}):
        operations.delete(f"/automations/{each['id']}")
    for each in operations.call("/deployments/filter", {}):
        if str(each["entrypoint"]).startswith(ENTRYPOINTS):
            operations.delete(f"/deployments/{each['id']}")


def forget(operations: Operations) -> None:
    """Undeploy, and remove the record, which would keep deleted automations away."""
    undeploy(operations)
    for each in operations.call("/variables/filter", {}):
        if each["name"] == schedules.VARIABLE:
            operations.delete(f"/variables/{each['id']}")


@pytest.fixture
def server(operations: Operations) -> Iterator[Operations]:
    """The server as before any `cloze deploy`; what is decided here meets no other test."""
    forget(operations)
    yield operations
    forget(operations)


def deploy(server: Operations, **environment: str) -> dict[str, Any]:
    before = dict(server.environment)
    server.environment |= environment
    try:
        done = cloze(server, "deploy", "--json")
    finally:
        server.environment = before
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def night(server: Operations) -> list[tuple[Any, ...]]:
    """(slug, cron, zone, active) of the schedules of the night."""
    deployment = server.call(f"/deployments/name/{NIGHT}/{NIGHT}")
    return sorted(
        (str(each["slug"]), each["schedule"].get("cron"), each["schedule"].get("timezone"),
         each["active"])
        for each in server.call(f"/deployments/{deployment['id']}/schedules")
    )  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_decisions_stay_and_changes_are_told(server: Operations) -> None:
    hook = "https://hooks.slack.com/services/T/B/secret-of-the-hook"
    first = deploy(server, CLOZE_NOTIFY=hook)
    assert night(server) == [("nightly", "30 3 * * *", "UTC", True)]
    assert len(first["automations"]) == 4
    deployment = server.call(f"/deployments/name/{NIGHT}/{NIGHT}")["id"]
    data = server.call("/deployments/name/data/data")["id"]
    schedule = server.call(f"/deployments/{deployment}/schedules")[0]["id"]

    # an hour and a pause set in the UI; a schedule, a paused deployment and an automation by hand
    at = f"/deployments/{deployment}/schedules/{schedule}"
    hour = {"cron": "0 1 * * *", "timezone": "Europe/Berlin"}
    server.call(at, {"schedule": hour, "active": False}, "PATCH")
    by_hand = {"schedule": {"interval": 300}, "active": True, "parameters": {"config": "n.yaml"}}
    theirs = {"schedule": {"cron": "0 6 * * *"}, "active": True, "slug": "theirs"}
    server.call(f"/deployments/{deployment}/schedules", [by_hand, theirs])
    server.call(f"/deployments/{data}", {"paused": True, "parameters": {"config": "x"}}, "PATCH")
    alerts = server.call("/automations/filter", {})
    crash = next(each for each in alerts if "heartbeat" in each["name"])
    server.call(f"/automations/{crash['id']}", {"enabled": False}, "PATCH")
    wanted = {key: crash[key] for key in ("trigger", "actions", "description")}
    server.call("/automations/", {**wanted, "name": "theirs", "enabled": True})
    kept = night(server)

    second = deploy(server)  # from a shell without CLOZE_NOTIFY
    assert night(server) == kept
    assert server.call(f"/deployments/{data}")["paused"] is True
    now = {each["name"]: each["enabled"] for each in server.call("/automations/filter", {})}
    expected = {each["name"]: each["name"] != crash["name"] for each in alerts}
    assert now == {**expected, "theirs": True}
    said = "\n".join(second["changes"])
    assert "stays paused" in said
    assert "0 1 * * * Europe/Berlin" in said
    assert "data/data" in said  # its parameters are the file's again
    assert "secret-of-the-hook" not in said
    assert "changed in Prefect" not in said  # what the server adds is nobody's change

    third = deploy(server, CLOZE_NIGHTLY="15 4 * * 1-5 America/New_York")
    assert ("nightly", "15 4 * * 1-5", "America/New_York", False) in night(server)
    assert len(night(server)) == 3
    assert "15 4 * * 1-5 America/New_York" in "\n".join(third["changes"])
    server.call(at, {"schedule": hour}, "PATCH")
    deploy(server, CLOZE_NIGHTLY="15 4 * * 1-5 America/New_York")  # the same setting as before
    assert ("nightly", "0 1 * * *", "Europe/Berlin", False) in night(server)
    server.call(at, method="DELETE")
    last = deploy(server, CLOZE_NOTIFY="none")
    assert [slug for slug, *_ in night(server)] == ["None", "theirs"]
    left = [each["name"] for each in server.call("/automations/filter", {})]
    assert sorted(left) == sorted([crash["name"], RUN_GROWN, "theirs"])
    assert "notify" in "\n".join(last["changes"])

    undeploy(server)  # who deletes a deployment, and deploys again, wants it whole
    again = "\n".join(deploy(server)["changes"])
    assert f"deployment {NIGHT} had been deleted and is made again" in again
    assert f"automation {crash['name']!r} stays deleted" in again
    assert [slug for slug, *_ in night(server)] == ["nightly"]
    deployment = server.call(f"/deployments/name/{NIGHT}/{NIGHT}")["id"]
    (back,) = server.call(f"/deployments/{deployment}/schedules")
    server.call(f"/deployments/{deployment}/schedules/{back['id']}", method="DELETE")
    deploy(server)
    assert night(server) == []


@pytest.mark.parametrize(
    ("text", "cron", "zone"),
    [
        ("30 3 * * *", "30 3 * * *", "UTC"),
        ("  0 22 * * 1-5   Asia/Tokyo ", "0 22 * * 1-5", "Asia/Tokyo"),
        ("*/15 0,12 1 * MON UTC", "*/15 0,12 1 * MON", "UTC"),
    ],
)
def test_a_night_is_cron_and_a_zone(text: str, cron: str, zone: str) -> None:
    found = schedules.parse(text)
    assert (found.cron, found.timezone) == (cron, zone)


@pytest.mark.parametrize(
    "text", ["3:30", "30 3 * *", "61 3 * * *", "30 3 * * * Berlin", "30 3 * * * UTC more", "off"]
)
def test_another_word_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="five fields of cron and a time zone"):
        schedules.parse(text)


def test_a_shell_without_the_setting_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[str, Any] = {NIGHT: {"schedules": [{"slug": "nightly", "cron": "30 3 * * *"}]}}
    monkeypatch.delenv(schedules.NIGHTLY, raising=False)
    assert schedules.desired_schedules(entries, {}) == {schedules.NIGHT: "30 3 * * * UTC"}
    last = {schedules.NIGHT: "0 1 * * * Asia/Tokyo"}
    assert schedules.desired_schedules(entries, last) == last
    monkeypatch.setenv(schedules.NIGHTLY, "5 5 * * *")
    assert schedules.desired_schedules(entries, last) == {schedules.NIGHT: "5 5 * * * UTC"}


def test_the_file_has_the_schedule_of_the_night() -> None:
    assert Path(schedules.__file__).exists()
    import yaml

    from cloze.flows.prefect.environment import PREFECT_YAML

    entries = {
        each["name"]: each for each in yaml.safe_load(PREFECT_YAML.read_text())["deployments"]
    }
    assert schedules.NIGHT in schedules.desired_schedules(entries, {})


KEPT = {schedules.NIGHT: "0 1 * * * Asia/Tokyo"}


@pytest.mark.parametrize(
    ("value", "last"),
    [
        (None, {}), ("", {}), ("x", {}), ("[1]", {}), (3, {}), ([], {}), ("{'a': 'b'}", {}),
        (json.dumps(KEPT), KEPT), (KEPT, KEPT), (json.dumps({**KEPT, "x": None}), KEPT),
    ],
)  # fmt: skip
def test_a_variable_that_was_edited_stops_no_deploy(value: Any, last: dict[str, str]) -> None:
    assert schedules.last_deployed(value) == last


@pytest.mark.parametrize("entrypoint", ["flows.py:night", "team.cloze.flows.prefect.x", None])
def test_a_deployment_of_others_under_our_name_is_not_replaced(entrypoint: str | None) -> None:
    entries = {"data": {"entrypoint": f"{ENTRYPOINTS}graph_run.data"}}
    theirs: Any = SimpleNamespace(entrypoint=entrypoint, name="data")
    with pytest.raises(UsageError, match="data/data .*rename it"):
        _check_owner({"data/data": theirs}, entries)
    _check_owner({"data/mine": theirs, "other/data": theirs}, entries)
    _check_owner({"data/data": SimpleNamespace(**entries["data"])}, entries)  # type: ignore[dict-item]
    _check_owner({}, entries)
