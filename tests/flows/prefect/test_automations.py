"""What a webhook gets: JSON, whatever a failed run's message holds. Prefect's own template engine
and block, and a real listener.
"""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect.automations import Automation, AutomationCore
from prefect.client.schemas.objects import Flow, FlowRun
from prefect.server.events import jinja_filters
from prefect.server.utilities.user_templates import (
    register_user_template_filters,
    render_user_template,
)
from prefect.states import Failed

from cloze.flows.prefect import automations
from cloze.flows.prefect.automations import (
    MARKS,
    NOTIFY_FAILED,
    TAG,
    _crash_without_heartbeat,
    apply_automations,
    automation_record,
)


class Listener(BaseHTTPRequestHandler):
    """Keeps the content type and the bytes that it is sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.heard.append((self.headers["Content-Type"], body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.mark.parametrize(
    "message",
    [
        'shard 3 is "cut short"',
        "a\nb\r\n\tc",
        "Zürich 日本 \N{SNOWMAN}",
        "back\\slash {{ flow.name }} <b>&'",
        None,
    ],
)
def test_a_webhook_gets_json_whatever_the_message_holds(message: str | None) -> None:
    server = HTTPServer(("127.0.0.1", 0), Listener)
    server.heard = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        flow = Flow(name='full "run"', labels={})
        run = FlowRun(flow_id=uuid4(), name="calm-owl", state=Failed(message=message))
        register_user_template_filters(jinja_filters.all_filters)
        url = f"http://127.0.0.1:{server.server_port}/"

        async def post() -> None:
            body = await render_user_template(automations.PAYLOAD, {"flow": flow, "flow_run": run})
            await automations.webhook(url).call(body)

        asyncio.run(post())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((kind, body),) = server.heard  # type: ignore[attr-defined]
    assert kind == "application/json"
    heard = json.loads(body)
    assert (heard["flow"], heard["run"], heard["state"]) == ('full "run"', "calm-owl", "Failed")
    assert heard["message"] == message
    assert set(heard) == {"flow", "run", "state", "message", "url"}


class Server:
    """Automations of a server, as far as a deploy uses them."""

    def __init__(self, *automations: AutomationCore) -> None:
        self.automations = {uuid4(): each for each in automations}
        self.last: dict[str, str] = {}

    def read_automations(self, *, sort: str, offset: int) -> list[Automation]:
        assert sort
        rows = [Automation(id=key, **each.model_dump()) for key, each in self.automations.items()]
        return rows[offset : offset + 200]

    def create_automation(self, automation: AutomationCore) -> None:
        self.automations[uuid4()] = automation

    def update_automation(self, key: UUID, automation: AutomationCore) -> None:
        self.automations[key] = automation

    def delete_automation(self, key: UUID) -> None:
        del self.automations[key]

    def deploy(self, *wanted: AutomationCore, notifies: bool = False) -> list[str]:
        how: dict[str, Any] = {"notifies": notifies, "last": self.last}
        _, changes = apply_automations(cast(Any, self), list(wanted), **how)
        self.last = automation_record(list(wanted), **how)
        return changes


OWN = _crash_without_heartbeat()
FOREIGN = OWN.model_copy(update={"tags": [], "description": "the team's", "enabled": False})


def test_an_automation_of_our_name_without_our_mark_stays() -> None:
    server = Server(FOREIGN)
    for _ in range(2):
        (told,) = server.deploy(OWN, notifies=True)
        assert "is not Cloze's and stays" in told
        assert list(server.automations.values()) == [FOREIGN, OWN]
    assert Server(FOREIGN.model_copy(update={"name": NOTIFY_FAILED})).deploy(OWN, notifies=True)


def test_what_was_changed_in_prefect_is_told_when_it_is_undone() -> None:
    assert Server(OWN).deploy(OWN) == []
    trigger = OWN.trigger.model_copy(update={"within": timedelta(seconds=600)})
    server = Server(OWN.model_copy(update={"trigger": trigger, "enabled": False}))
    told = "\n".join(server.deploy(OWN))
    assert "it was changed in Prefect" in told
    assert "stays switched off" in told
    assert server.deploy(OWN) == [f"automation {OWN.name!r} stays switched off"]


def test_of_several_of_ours_one_is_left() -> None:
    server = Server(OWN, OWN, FOREIGN)
    assert any("is deleted" in told for told in server.deploy(OWN))
    assert sorted(map(str, server.automations.values())) == sorted(map(str, [OWN, FOREIGN]))


@pytest.mark.parametrize("others", [0, 250])
def test_one_that_was_renamed_and_tagged_in_prefect_is_no_second_one(others: int) -> None:
    """Two automations would send each alert twice."""
    renamed = OWN.model_copy(update={"name": "night watch", "tags": [*OWN.tags, "team-a"]})
    foreign = [FOREIGN.model_copy(update={"name": f"other {number}"}) for number in range(others)]
    server = Server(*foreign, renamed)
    assert server.deploy(OWN) == []
    assert list(server.automations.values()) == [*foreign, renamed]


def test_a_copy_of_one_of_ours_stays() -> None:
    copy = OWN.model_copy(update={"name": "copy for the team"})
    server = Server(copy, OWN)
    assert server.deploy(OWN) == []
    assert list(server.automations.values()) == [copy, OWN]


def test_none_ends_those_that_were_renamed_too() -> None:
    failed = OWN.model_copy(update={"name": "alerts", "tags": [TAG, MARKS[NOTIFY_FAILED]]})
    server = Server(OWN, failed)
    assert any("is deleted" in told for told in server.deploy(OWN, notifies=True))
    assert list(server.automations.values()) == [OWN]


FAILED = OWN.model_copy(update={"name": NOTIFY_FAILED, "tags": [TAG, MARKS[NOTIFY_FAILED]]})


@pytest.mark.parametrize("deleted", [[OWN], [FAILED], [OWN, FAILED]])
def test_what_an_operator_has_deleted_stays_deleted_and_is_said(
    deleted: list[AutomationCore],
) -> None:
    server = Server()
    assert server.deploy(OWN, FAILED, notifies=True) == []
    left = [each for each in (OWN, FAILED) if each not in deleted]
    server.automations = {uuid4(): each for each in left}
    for _ in range(2):
        told = server.deploy(OWN, FAILED, notifies=True)
        assert list(server.automations.values()) == left
        assert len(told) == len(deleted)
        assert all("stays deleted" in each and "cloze_schedules" in each for each in told)
    server.deploy(OWN)  # a shell without the setting
    assert server.last.keys() == {MARKS[OWN.name], MARKS[NOTIFY_FAILED]}
    server.last = {}  # the variable is deleted: all that was deleted comes back
    server.deploy(OWN, FAILED, notifies=True)
    assert len(server.automations) == 2


def test_a_deleted_one_comes_back_when_it_is_another_and_that_is_said() -> None:
    server = Server()
    server.deploy(OWN)
    server.automations.clear()
    (told,) = server.deploy(OWN.model_copy(update={"description": "of a newer version"}))
    assert "is made again" in told
    assert len(server.automations) == 1


def test_none_forgets_what_it_deletes() -> None:
    server = Server()
    for wanted in ([OWN, FAILED], [OWN], [OWN, FAILED]):
        server.deploy(*wanted, notifies=True)
        assert [each.name for each in server.automations.values()] == [e.name for e in wanted]
