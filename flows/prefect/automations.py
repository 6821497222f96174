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
CRASH_SILENT = "cloze: mark runs without heartbeat as crashed"
NOTIFY_FAILED = "cloze: notify of failed runs"
NOTIFY_NIGHTLY = "cloze: notify of nightly evaluations"
# name of the completed state of a nightly run that evaluated something; its message has the trend
# page's path
EVALUATED = "Evaluated"
CLOZE_FLOW_RUNS: dict[str, Any] = {  # each flow run with the tag
    "match": {"prefect.resource.id": "prefect.flow-run.*"},
    "match_related": {
        "prefect.resource.role": "tag",
        "prefect.resource.id": f"prefect.tag.{TAG}",
    },
    "for_each": {"prefect.resource.id"},
    "threshold": 1,
}
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
        return [_crash_without_heartbeat()]
    action = _action(client, notify.strip())
    return [
        _crash_without_heartbeat(),
        _notify(NOTIFY_FAILED, ("Failed", "Crashed", "TimedOut"), action),
        _notify(NOTIFY_NIGHTLY, (EVALUATED,), action),
    ]


def _crash_without_heartbeat() -> AutomationCore:
    ends = (
        "Completed", EVALUATED, "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Suspended",
        "Paused",
    )  # fmt: skip
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{name}" for name in ends)},
        posture=Posture.Proactive,
        within=timedelta(seconds=SILENT_SECONDS),
        **CLOZE_FLOW_RUNS,
    )
    action = ChangeFlowRunState(
        state=StateType.CRASHED,
        name=None,
        message=f"no heartbeat for {SILENT_SECONDS} s: its process is gone; retry it to continue",
        force=False,
    )
    return AutomationCore(
        name=CRASH_SILENT,
        description=f"A flow run without a heartbeat for {SILENT_SECONDS} s has no process.",
        trigger=trigger,
        actions=[action],
    )


def _notify(
    name: str, states: tuple[str, ...], action: SendNotification | CallWebhook
) -> AutomationCore:
    trigger = EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in states},
        posture=Posture.Reactive,
        within=timedelta(0),
        **CLOZE_FLOW_RUNS,
    )
    return AutomationCore(
        name=name,
        description=f"Set up by `cloze deploy` from ${NOTIFY}.",
        trigger=trigger,
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
            f"{NOTIFY}: Prefect has no block {notify}; create it in Prefect's UI, or choose one "
            f"of `prefect block ls`"
        ) from error
    return SendNotification(block_document_id=document.id, subject=SUBJECT, body=BODY)


def webhook(url: str) -> Webhook:
    """Return the block that posts the rendered `PAYLOAD` to `url`."""
    return Webhook(
        method="POST", url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"})
    )


def _saved(block: Block) -> UUID:
    """Save the block under the name `BLOCK` and return its id."""
    return UUID(str(block.save(BLOCK, overwrite=True)))


def apply(client: SyncPrefectClient, automations: list[AutomationCore]) -> list[str]:
    """Create, update or delete this package's automations on the server; return their names."""
    desired = {automation.name: automation for automation in automations}
    for name in (CRASH_SILENT, NOTIFY_FAILED, NOTIFY_NIGHTLY):
        existing = client.read_automations_by_name(name)
        for extra in existing[1 if name in desired else 0 :]:
            client.delete_automation(extra.id)
        if name in desired and existing:
            client.update_automation(existing[0].id, desired[name])
        elif name in desired:
            client.create_automation(desired[name])
    return list(desired)
