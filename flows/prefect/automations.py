"""Automations of Cloze in Prefect: runs without heartbeats, sources that grow, and notifications.

They match flow runs with the tag `TAG` only: other flows may need other limits. They carry it
themselves; automations without it are not touched, whatever their names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from prefect.automations import AutomationCore
from prefect.blocks.notifications import SlackWebhook
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import AutomationSort
from prefect.events.actions import (
    CallWebhook,
    ChangeFlowRunState,
    RunDeployment,
    SendNotification,
)
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.types import SecretDict
from pydantic import SecretStr

from cloze.core.accounts import DEFAULT_PROJECT
from cloze.core.errors import UsageError
from cloze.flows.prefect.schedules import VARIABLE
from cloze.flows.prefect.sweep import read_all

TAG = "cloze"  # of the flow runs and automations of all projects
NOTIFY = "CLOZE_NOTIFY"
NO_NOTIFICATIONS = "none"
SILENT_SECONDS = 90  # three heartbeats
CRASH_SILENT = "cloze: mark runs without heartbeat as crashed"
RUN_GROWN = "cloze: start a run when a source has grown"
NOTIFY_FAILED = "cloze: notify of failed runs"
NOTIFY_NIGHTLY = "cloze: notify of nightly evaluations"
# Tags by which one that was renamed in Prefect is found again.
MARKS = {
    CRASH_SILENT: "cloze-silent", RUN_GROWN: "cloze-grown", NOTIFY_FAILED: "cloze-failed",
    NOTIFY_NIGHTLY: "cloze-nightly",
}  # fmt: skip
GROWN = "cloze.source.grown"  # event of `source_watch`
# name of the completed state of a nightly run that evaluated something; its message has the trend
# page's path
EVALUATED = "Evaluated"
CLOZE_FLOW_RUNS: dict[str, Any] = {  # each flow run with the tag
    "match": {"prefect.resource.id": "prefect.flow-run.*"},
    "match_related": {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"},
    "for_each": {"prefect.resource.id"},
    "threshold": 1,
}
COMPARED = ("expect", "after", "for_each", "threshold", "within", "posture")  # of a trigger
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


def tag(project: str) -> str:
    """Return the tag of a project's deployments and flow runs."""
    return f"project:{project}"


def name_in(project: str, flow: str) -> str:
    """Return the name of a project's deployment of a flow: `PROJECT:FLOW`, or of cloze `FLOW`."""
    return flow if project == DEFAULT_PROJECT else f"{project}:{flow}"


def desired_automations(
    client: SyncPrefectClient, notify: str
) -> tuple[list[AutomationCore], list[str]]:
    """Return the automations that the server should have, as far as the environment says.

    The second list has a sentence if the address for notifications was another one: all projects
    of a server share it.

    The address for notifications is stored encrypted, in a Prefect block.

    Args:
        notify: the URL of a webhook (hooks.slack.com for Slack), or TYPE/NAME of a Prefect
            notification block such as `sendgrid-email/team`. Empty: as on the server. `none`: no
            notifications.

    Raises:
        UsageError: `notify` has neither form, or the block does not exist.
    """
    always = [_crash_without_heartbeat(), _run_when_grown()]
    if notify.strip() in ("", NO_NOTIFICATIONS):
        return always, []
    changes: list[str] = []
    action = _action(client, notify.strip(), changes)
    return [
        *always,
        _notify(NOTIFY_FAILED, ("Failed", "Crashed", "TimedOut"), action),
        _notify(NOTIFY_NIGHTLY, (EVALUATED,), action),
    ], changes


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
    message = f"no heartbeat for {SILENT_SECONDS} s: its process is gone; retry it to continue"
    action = ChangeFlowRunState(state=StateType.CRASHED, name=None, message=message, force=False)
    description = f"A flow run without a heartbeat for {SILENT_SECONDS} s has no process."
    return _automation(CRASH_SILENT, description, trigger, action)


def _run_when_grown() -> AutomationCore:
    trigger = EventTrigger(
        expect={GROWN}, match={"prefect.resource.id": "cloze.source.*"}, posture=Posture.Reactive,
        threshold=1, within=timedelta(0),
    )  # fmt: skip
    values = {name: f"{{{{ event.payload.{name} }}}}" for name in ("config", "overrides")}
    # The event names the deployment: that of the project whose source it is.
    action = RunDeployment(
        source="inferred", deployment_id=None, parameters=values, job_variables=None
    )
    description = "The deployment source-watch says that the sources of a config have grown."
    return _automation(RUN_GROWN, description, trigger, action)


def _notify(
    name: str, states: tuple[str, ...], action: SendNotification | CallWebhook
) -> AutomationCore:
    trigger = EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in states},
        posture=Posture.Reactive,
        within=timedelta(0),
        **CLOZE_FLOW_RUNS,
    )
    description = f"Set up by `cloze deploy` from ${NOTIFY}."
    return _automation(name, description, trigger, action)


def _automation(name: str, description: str, trigger: EventTrigger, action: Any) -> AutomationCore:
    tags = [TAG, MARKS[name]]
    return AutomationCore(
        name=name, description=description, tags=tags, trigger=trigger, actions=[action]
    )


def _action(
    client: SyncPrefectClient, notify: str, changes: list[str]
) -> SendNotification | CallWebhook:
    block: SlackWebhook | Webhook
    if notify.startswith("https://hooks.slack.com/"):
        block = SlackWebhook(url=SecretStr(notify))
        return SendNotification(
            block_document_id=_saved(block, changes), subject=SUBJECT, body=BODY
        )
    if notify.startswith(("http://", "https://")):
        block = webhook(notify)
        return CallWebhook(block_document_id=_saved(block, changes), payload=PAYLOAD)
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


def _saved(block: SlackWebhook | Webhook, changes: list[str]) -> UUID:
    """Save the block under the name `BLOCK` and return its id; say if its address was another."""
    with suppress(ValueError):  # none is there
        if cast(Any, type(block).load(BLOCK)).url != block.url:
            changes.append(
                f"notifications of all projects of this server go to {NOTIFY}'s address (block"
                f" {BLOCK}); it was another"
            )
    return UUID(str(block.save(BLOCK, overwrite=True)))


def apply_automations(
    client: SyncPrefectClient,
    automations: list[AutomationCore],
    *,
    notifies: bool,
    last: Mapping[str, str],
) -> tuple[list[str], list[str]]:
    """Create, update or delete this package's automations on the server.

    One that is switched off, renamed or deleted in Prefect stays so, with the tags that it was
    given. As with schedules, a deleted one comes back when what it should be changes.

    Args:
        notifies: whether the environment says anything about notifications; if not, they stay.
        last: what was deployed last, see `automation_record`.

    Returns:
        Names of the automations, and sentences about changes.
    """
    desired = {automation.name: automation for automation in automations}
    names, changes = [], []
    sort = AutomationSort.UPDATED_DESC
    every = read_all(lambda offset: client.read_automations(sort=sort, offset=offset))
    own = [each for each in every if TAG in each.tags]
    for name, mark in MARKS.items():
        wanted = desired.get(name)
        existing = [each for each in own if each.name == name]
        # A copy with another name may be the operator's: only `none` deletes it.
        existing = existing or [each for each in own if mark in each.tags][: 1 if wanted else None]
        if any(each.name == name and TAG not in each.tags for each in every):
            changes.append(f"automation {name!r} without the tag {TAG!r} is not Cloze's and stays")
        if wanted is None and not notifies:
            names += [name for _ in existing[:1]]
            continue
        for extra in existing[1 if wanted else 0 :]:
            client.delete_automation(extra.id)
            changes.append(f"automation {name!r} is deleted")
        if wanted is None:
            continue
        is_same = last.get(mark) == _digest(wanted)
        if not existing and is_same:
            changes.append(
                f"automation {name!r} stays deleted as in Prefect; to have it again, delete"
                f" Prefect's variable {VARIABLE}"
            )
            continue
        names.append(name)
        if not existing:
            client.create_automation(wanted)
            if mark in last:
                changes.append(f"automation {name!r} is new and is made again; it was deleted")
            continue
        first = existing[0]
        kept = {"enabled": first.enabled, "name": first.name}
        tags = [*wanted.tags, *(tag for tag in first.tags if tag not in wanted.tags)]
        update = wanted.model_copy(update={**kept, "tags": tags})
        if _content(first) != _content(update):
            reason = (
                "was changed in Prefect" if is_same or mark not in last else "has other content"
            )
            changes.append(f"automation {name!r} is Cloze's again; it {reason}")
        client.update_automation(first.id, update)
        if not update.enabled:
            changes.append(f"automation {name!r} stays switched off")
    return names, changes


def automation_record(
    automations: list[AutomationCore], *, notifies: bool, last: Mapping[str, str]
) -> dict[str, str]:
    """Return the digest of each automation by its mark; those that are left alone stay."""
    kept = {} if notifies else {mark: last[mark] for mark in MARKS.values() if mark in last}
    return kept | {MARKS[each.name]: _digest(each) for each in automations}


def _digest(automation: AutomationCore) -> str:
    content = json.dumps(_content(automation), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _content(automation: AutomationCore) -> dict[str, Any]:
    """Return what an operator can change, without ids that the server gives."""
    content = automation.model_dump(mode="json", include={"trigger", "actions", "description"})
    content["trigger"] = {key: content["trigger"].get(key) for key in COMPARED}
    for key in ("expect", "after", "for_each"):  # sets, which come in any order
        content["trigger"][key] = sorted(content["trigger"][key] or ())
    return content
