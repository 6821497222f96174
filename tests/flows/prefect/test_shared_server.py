"""Two projects on one Prefect server, and what an operator deletes there: schedules, deployments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.actions import VariableCreate, VariableUpdate

from cloze.flows.prefect import schedules
from cloze.flows.prefect.deploy import _remade

DAILY = {"schedules": [{"slug": "daily", "cron": "0 5 * * *"}]}


class Server:
    """Variables, deployments and schedules of a server, as far as a deploy uses them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.deployments: dict[str, Any] = {}
        self.schedules: dict[UUID, list[Any]] = {}

    def read_variable_by_name(self, name: str) -> Any:
        return SimpleNamespace(value=self.values[name]) if name in self.values else None

    def create_variable(self, variable: VariableCreate) -> None:
        self.values[variable.name] = str(variable.value)

    def update_variable(self, variable: VariableUpdate) -> None:
        assert variable.name in self.values
        self.values[str(variable.name)] = str(variable.value)

    def read_deployment_schedules(self, deployment: UUID) -> list[Any]:
        return self.schedules[deployment]

    def create_deployment_schedules(self, deployment: UUID, new: list[Any]) -> None:
        self.schedules[deployment] += [
            SimpleNamespace(id=uuid4(), **{key: getattr(each, key) for key in
                                           ("schedule", "active", "slug")}) for each in new
        ]  # fmt: skip

    def delete_deployment_schedule(self, deployment: UUID, schedule: UUID) -> None:
        kept = [each for each in self.schedules[deployment] if each.id != schedule]
        self.schedules[deployment] = kept

    def delete(self, name: str) -> None:
        del self.schedules[self.deployments.pop(name).id]

    def deploy(self, entries: Mapping[str, Any]) -> list[str]:
        """What `deploy` does after Prefect's command; return its sentences."""
        client, last = cast(Any, self), schedules.read_last(cast(Any, self))
        before = dict(self.deployments)
        for name in entries:
            if name not in self.deployments:
                self.deployments[name] = SimpleNamespace(id=uuid4())
                self.schedules[self.deployments[name].id] = []
        own = {name: self.deployments[name] for name in entries}
        remade = _remade(before, own, last)
        _, changes = schedules.sync_schedules(client, entries, own, last, remade)
        record = schedules.desired_schedules(entries, last)
        record |= {name: str(each.id) for name, each in own.items()}
        schedules.write_last(client, entries, record)
        return [*remade, *changes]

    def slugs(self, name: str) -> list[str]:
        return [each.slug for each in self.schedules[self.deployments[name].id]]

    @property
    def record(self) -> dict[str, str]:
        return dict(json.loads(self.values[schedules.VARIABLE]))


names = st.sampled_from(["a", "b", "c", "daily", "cloze-silent2"])


@given(
    mine=st.sets(names, min_size=1), theirs=st.sets(names, min_size=1),
    turns=st.lists(st.booleans(), min_size=1, max_size=5),
)  # fmt: skip
def test_a_deploy_never_drops_anothers_keys(
    mine: set[str], theirs: set[str], turns: list[bool]
) -> None:
    server, projects = Server(), {True: mine, False: theirs - mine}
    for turn in turns:
        before = server.record if server.values else {}
        server.deploy(dict.fromkeys(projects[turn], DAILY))
        others = {key: text for key, text in before.items()
                  if key.partition("/")[0] not in projects[turn]}  # fmt: skip
        assert others.items() <= server.record.items()
        assert {f"{name}/daily" for name in projects[turn]} <= server.record.keys()


def test_a_deletion_outlives_the_deploys_of_another_project() -> None:
    server = Server()
    for entries in ({"a": DAILY}, {"b": DAILY}):
        server.deploy(entries)
    server.schedules[server.deployments["a"].id].clear()
    for entries in ({"b": DAILY}, {"a": DAILY}, {"b": DAILY}, {"a": DAILY}):
        told = server.deploy(entries)
        assert server.slugs("a") == []
        assert server.slugs("b") == ["daily"]
        assert bool(told) == ("a" in entries)
    assert server.deploy({"a": {}}) == []  # the file has it no more
    assert set(server.record) == {"a", "b", "b/daily"}


@pytest.mark.parametrize("between", [[], [{"b": DAILY}], [{"b": {}}, {"c": DAILY}]])
def test_a_deployment_that_is_made_again_is_said_and_whole(between: list[dict[str, Any]]) -> None:
    server = Server()
    assert not any(" again" in told for told in server.deploy({"a": DAILY, "z": {}}))
    server.delete("a")
    server.delete("z")
    for entries in between:
        server.deploy(entries)
    told = server.deploy({"a": DAILY, "z": {}})
    assert told[:2] == ["a", "z"]
    assert server.slugs("a") == ["daily"]
    assert server.deploy({"a": DAILY, "z": {}}) == []


def test_a_record_of_an_earlier_version_knows_deployments_by_their_schedules() -> None:
    server = Server()
    server.values[schedules.VARIABLE] = json.dumps({"a/daily": "0 5 * * * UTC"})
    assert server.deploy({"a": DAILY, "new": {}})[0] == "a"
    assert server.slugs("a") == ["daily"]
