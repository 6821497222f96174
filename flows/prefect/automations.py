"""Prefect automations: mark flow runs without heartbeats as crashed, and send notifications.

Notifications report failed runs and nightly evaluations with results. All automations match flow
runs with the tag `TAG` only, because other flows on the server may need other limits.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.automations import AutomationCore
from prefect.blocks.core import Block
from prefect.blocks.notifications import SlackWebhook
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.types import SecretDict
from pydantic import SecretStr

from cloze.core.errors import UsageError

TAG = "cloze"
NOTIFY = "CLOZE_NOTIFY"
SILENT_SECONDS = 90  # three heartbeats
LOST, FAILED, NIGHT = (
    "cloze: lost runs crash",
    "cloze: failed runs are told",
    "cloze: nights with news are told",
)
# name of the completed state of a nightly run that evaluated something; its message has the trend
# page's path
EVALUATED = "Evaluated"
BLOCK = "cloze-notify"
_DOCUMENT = re.compile(r"[a-z0-9-]+/[A-Za-z0-9._-]+")

SUBJECT = "{{ flow.name }} {{ flow_run.name }} is {{ flow_run.state.name }}"
BODY = "{{ flow_run.state.message }}\n{{ flow_run|ui_url }}"
PAYLOAD = """{{ {
    "flow": flow.name,
    "run": flow_run.name,
    "state": flow_run.state.name,
    "message": flow_run.state.message,
    "url": flow_run|ui_url,
}|tojson }}"""  # `tojson` escapes quotes and newlines


def desired_automations(
    client: SyncPrefectClient, notify: str | None = None
) -> list[AutomationCore]:
    """Return the automations that the server should have.

    The address for notifications is stored encrypted, in a Prefect block.

    Args:
        notify: the URL of a webhook (hooks.slack.com for Slack), or TYPE/NAME of a Prefect
            notification block such as `sendgrid-email/team`. Empty: no notifications. Default:
            `$CLOZE_NOTIFY`.

    Raises:
        UsageError: `notify` has neither form, or the block does not exist.
    """
    notify = os.environ.get(NOTIFY, "") if notify is None else notify
    if not notify.strip():
        return [_lost()]
    action = _action(client, notify.strip())
    return [
        _lost(),
        _told(FAILED, ("Failed", "Crashed", "TimedOut"), action),
        _told(NIGHT, (EVALUATED,), action),
    ]


def _lost() -> AutomationCore:
    ends = {
        f"prefect.flow-run.{name}"
        for name in (
            "Completed",
            EVALUATED,
            "Failed",
            "Cancelled",
            "Crashed",
            "AwaitingRetry",
            "Suspended",
            "Paused",
        )
    }
    return AutomationCore(
        name=LOST,
        description=f"A run of Cloze that was silent for {SILENT_SECONDS} s has lost its process.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "tag",
                "prefect.resource.id": f"prefect.tag.{TAG}",
            },
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name=None,
                message="its process is gone: no sign of life; retry it to go on",
                force=False,
            )
        ],
    )


def _told(
    name: str, states: tuple[str, ...], action: SendNotification | CallWebhook
) -> AutomationCore:
    return AutomationCore(
        name=name,
        description=f"Set up by `cloze deploy` from ${NOTIFY}.",
        trigger=EventTrigger(
            expect={f"prefect.flow-run.{state}" for state in states},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "tag",
                "prefect.resource.id": f"prefect.tag.{TAG}",
            },
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[action],
    )


def _action(client: SyncPrefectClient, notify: str) -> SendNotification | CallWebhook:
    block: Block
    if notify.startswith("https://hooks.slack.com/"):
        block = SlackWebhook(url=SecretStr(notify))
        return SendNotification(block_document_id=_saved(block), subject=SUBJECT, body=BODY)
    if notify.startswith(("http://", "https://")):
        return CallWebhook(block_document_id=_saved(webhook(notify)), payload=PAYLOAD)
    if not _DOCUMENT.fullmatch(notify):
        raise UsageError(
            f"{NOTIFY} must be a webhook's URL, or TYPE/NAME of a notification block in Prefect, "
            f"such as sendgrid-email/team"
        )
    kind, _, name = notify.partition("/")
    try:
        document = client.read_block_document_by_name(name=name, block_type_slug=kind)
    except Exception as error:
        raise UsageError(
            f"{NOTIFY} names a block that Prefect has not ({notify}); make it in Prefect's UI, or "
            f"`prefect block ls`"
        ) from error
    return SendNotification(block_document_id=document.id, subject=SUBJECT, body=BODY)


def webhook(url: str) -> Webhook:
    """Return the block that posts the rendered `PAYLOAD` to `url`."""
    return Webhook(
        method="POST", url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"})
    )


def _saved(block: Block) -> UUID:
    """Save the block under the name `BLOCK` and return its id."""
    found: Any = block.save(BLOCK, overwrite=True)
    return UUID(str(found))


def apply(client: SyncPrefectClient, automations: list[AutomationCore]) -> list[str]:
    """Create, update or delete this package's automations on the server; return their names."""
    for name in (LOST, FAILED, NIGHT):
        here = client.read_automations_by_name(name)
        core = next((found for found in automations if found.name == name), None)
        for extra in here[1 if core else 0 :]:
            client.delete_automation(extra.id)
        if core is not None and here:
            client.update_automation(here[0].id, core)
        elif core is not None:
            client.create_automation(core)
    return [found.name for found in automations]
