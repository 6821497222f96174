"""Registration of `prefect.yaml`'s deployments, the work pool and the automations with Prefect.

Deployments and schedules of Cloze that the file no longer contains are deleted. Automations mark
flow runs without heartbeats as crashed, and notify of failed runs and of nightly evaluations with
results. They match flow runs with the tag `TAG` only: other flows may need other limits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.automations import AutomationCore
from prefect.blocks.core import Block
from prefect.blocks.notifications import SlackWebhook
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import CallWebhook, ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.types import SecretDict
from pydantic import SecretStr

from cloze.core.errors import ClozeError, UsageError
from cloze.flows.prefect.environment import HOME, PREFECT_YAML
from cloze.flows.prefect.parameters import fields_of
from cloze.flows.prefect.sweep import read_all
from cloze.flows.run.server_addresses import TRUST, UNTRUSTED

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
    "match_related": {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"},
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
    message = f"no heartbeat for {SILENT_SECONDS} s: its process is gone; retry it to continue"
    action = ChangeFlowRunState(state=StateType.CRASHED, name=None, message=message, force=False)
    description = f"A flow run without a heartbeat for {SILENT_SECONDS} s has no process."
    return AutomationCore(
        name=CRASH_SILENT, description=description, trigger=trigger, actions=[action]
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
    description = f"Set up by `cloze deploy` from ${NOTIFY}."
    return AutomationCore(name=name, description=description, trigger=trigger, actions=[action])


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


def apply_automations(client: SyncPrefectClient, automations: list[AutomationCore]) -> list[str]:
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


# Deployments and schedules, as in `prefect.yaml`.

ENTRYPOINTS = "cloze.flows.prefect."  # prefix of the entrypoints of Cloze's deployments


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployResult:
    """State of the server after a deploy; `deployments` and `removed` are named `flow/name`."""

    api: str
    pool: str
    pool_type: str
    deployments: list[str]
    removed: list[str]
    schedules: list[str]
    automations: list[str]


def deploy(
    api_url: str | None = None, path: Path = PREFECT_YAML, notify: str | None = None
) -> DeployResult:
    """Make the server's deployments those of the file. Idempotent.

    Args:
        api_url: URL of the server's API. Default: the one in Prefect's settings.
        notify: address for notifications, see `desired_automations`.

    Raises:
        UsageError: the file is not valid YAML, or no server is configured.
        ClozeError: Prefect rejects a request.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} cannot be read ({' '.join(str(error).split())}); correct the file"
        ) from error
    api = api_url or PREFECT_API_URL.value()
    if not api:
        raise UsageError(
            "no Prefect server is set; set PREFECT_API_URL, or start a server with `cloze ui`"
        )
    with connected(api) as client:
        pool = _pool(client, content)
        _run_prefect_deploy(api, path)
        entries = {str(entry["name"]): entry for entry in content["deployments"]}
        removed = _delete_removed(client, entries, pool)
        _fit_forms(client, pool)
        schedules = _sync_schedules(client, entries)
        names = apply_automations(client, desired_automations(client, notify))
        return DeployResult(
            api=api,
            pool=pool,
            pool_type=client.read_work_pool(pool).type,
            deployments=sorted(name for name, _ in _of_pool(client, pool)),
            removed=removed,
            schedules=schedules,
            automations=names,
        )


@contextmanager
def connected(api: str) -> Iterator[SyncPrefectClient]:
    """Yield an authenticated client of the server at `api`.

    Raises:
        ClozeError: the server does not answer, or rejects the login or a request.
    """
    try:
        with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
            client.api_version()
            yield client
    except ClozeError:
        raise
    except Exception as error:
        if _requires_login(error):
            raise ClozeError(
                f"Prefect at {api} rejects the login; set PREFECT_API_AUTH_STRING to "
                f"user:password, or PREFECT_API_KEY for Prefect Cloud"
            ) from error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if UNTRUSTED in reason:
            reason = f"its certificate is not trusted; {TRUST}"
        raise ClozeError(f"Prefect at {api}: {reason}") from error


def _requires_login(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes is an HTTP status 401 or 403."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            return True
        error = error.__cause__ or error.__context__
    return False


def _pool(client: SyncPrefectClient, content: Mapping[str, Any]) -> str:
    """Return the name of the file's work pool; create the pool if it does not exist."""
    pools = {str((entry.get("work_pool") or {}).get("name")) for entry in content["deployments"]}
    if len(pools) != 1:
        raise UsageError(
            f"the deployments name several work pools ({', '.join(sorted(pools))}); use one for all"
        )
    (name,) = pools
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        from prefect.workers.process import ProcessWorker

        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template)
            )
    return name


def _run_prefect_deploy(api: str, path: Path) -> None:
    """Run `prefect deploy`, which supports everything that the file may contain."""
    home = str(Path(os.environ.get(HOME) or ".").resolve())  # working directory of deployed flows
    result = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file",
            str(path)],
        env={**os.environ, "PREFECT_API_URL": api, HOME: home, "DO_NOT_TRACK": "1"},
        capture_output=True, text=True, check=False, cwd=path.parent,
    )  # fmt: skip
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ClozeError(f"prefect deploy failed: {lines[-1] if lines else 'no output'}")


def _of_pool(client: SyncPrefectClient, pool: str) -> list[tuple[str, DeploymentResponse]]:
    """Return the deployments of a work pool with their names `flow/name`."""
    flows = read_all(lambda offset: client.read_flows(offset=offset))
    names = {flow.id: flow.name for flow in flows}
    return [
        (f"{names.get(deployment.flow_id, '?')}/{deployment.name}", deployment)
        for deployment in deployments(client)
        if deployment.work_pool_name == pool
    ]


def deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return all deployments of the server."""
    return read_all(lambda offset: client.read_deployments(offset=offset))


def _delete_removed(
    client: SyncPrefectClient, entries: Mapping[str, Mapping[str, Any]], pool: str
) -> list[str]:
    """Delete Cloze deployments in the pool that the file lacks, or has with another flow.

    Returns:
        Names of the deleted deployments; the user's own deployments are not deleted.
    """
    removed = []
    for name, deployment in _of_pool(client, pool):
        entry = entries.get(deployment.name)
        if entry is not None and entry["entrypoint"] == deployment.entrypoint:
            continue
        if str(deployment.entrypoint).startswith(ENTRYPOINTS):
            client.delete_deployment(deployment.id)
            removed.append(name)
    return removed


def _fit_forms(client: SyncPrefectClient, pool: str) -> None:
    """Remove fields of other stages and null defaults from each deployment's form.

    The UI sends the default of an untouched field, and the server rejects null for a typed field
    with a default. An empty field without a default is not sent.
    """
    for _, deployment in _of_pool(client, pool):
        schema = deployment.parameter_openapi_schema
        if not schema or not str(deployment.entrypoint).startswith(ENTRYPOINTS):
            continue
        visible = fields_of(deployment.parameters.get("until") or ())
        for name, field in list(schema["properties"].items()):
            if visible is not None and name not in visible:
                del schema["properties"][name]
            elif field.get("default", ...) is None:
                del field["default"]
        update = DeploymentUpdate.model_validate({"parameter_openapi_schema": schema})
        client.update_deployment(deployment.id, update)


def _sync_schedules(
    client: SyncPrefectClient, entries: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Delete schedules whose slug is not in the file; return the file's as `deployment/slug`.

    Schedules made in the UI have no slug and are kept.
    """
    for deployment in deployments(client):
        entry = entries.get(deployment.name)
        if entry is None or entry["entrypoint"] != deployment.entrypoint:
            continue
        slugs = {schedule["slug"] for schedule in entry.get("schedules") or []}
        for schedule in client.read_deployment_schedules(deployment.id):
            if schedule.slug and schedule.slug not in slugs:
                client.delete_deployment_schedule(deployment.id, schedule.id)
    return [
        f"{name}/{schedule['slug']}"
        for name, entry in entries.items()
        for schedule in entry.get("schedules") or []
    ]
