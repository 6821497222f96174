"""Schedules of the deployments: those of `prefect.yaml`, without undoing what was set in Prefect.

A Prefect variable keeps what was deployed last. Only a schedule whose setting has changed since
then is updated; a pause, an hour or a deletion in Prefect's UI stays. Schedules that no deploy has
made are not touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, VariableCreate, VariableUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule

from cloze.core.errors import UsageError
from cloze.core.records import read_record

NIGHTLY = "CLOZE_NIGHTLY"
NIGHT = "nightly-evaluation/nightly"  # deployment and slug of the schedule that NIGHTLY sets
VARIABLE = "cloze_schedules"  # {"deployment/slug": "MINUTE HOUR DAY MONTH WEEKDAY ZONE"}


def parse(text: str) -> CronSchedule:
    """Return the schedule in `MINUTE HOUR DAY MONTH WEEKDAY [ZONE]`; default zone: UTC.

    Raises:
        UsageError: it is no such schedule.
    """
    *cron, zone = text.split() if len(text.split()) == 6 else [*text.split(), "UTC"]
    try:
        if len(cron) != 5:
            raise ValueError
        return CronSchedule(cron=" ".join(cron), timezone=zone)
    except ValueError as error:
        raise UsageError(
            f"{NIGHTLY} ({text!r}) must be five fields of cron and a time zone, such as"
            f' "30 3 * * * Europe/Berlin"'
        ) from error


def desired_schedules(
    entries: Mapping[str, Mapping[str, Any]], last: Mapping[str, str]
) -> dict[str, str]:
    """Return the text of each schedule by `deployment/slug`.

    Args:
        entries: deployments of the file, by name.
        last: what was deployed last. Without `$CLOZE_NIGHTLY` the night stays as it was.
    """
    desired = {
        f"{name}/{schedule['slug']}": f"{schedule['cron']} {schedule.get('timezone', 'UTC')}"
        for name, entry in entries.items()
        for schedule in entry.get("schedules") or []
    }
    if NIGHT in desired:
        wanted = os.environ.get(NIGHTLY, "").strip()
        desired[NIGHT] = describe(parse(wanted)) if wanted else last.get(NIGHT, desired[NIGHT])
    return desired


def last_deployed(value: Any) -> dict[str, str]:
    """Return the schedules in the variable, which Prefect's UI may have made an object, or cut."""
    found = value if isinstance(value, dict) else read_record(str(value)) or {}
    return {key: text for key, text in found.items() if isinstance(text, str)}


def describe(schedule: Any) -> str:
    """Return a schedule as `parse` reads it; one that is no cron in Prefect's words."""
    if not isinstance(schedule, CronSchedule):
        return str(schedule)
    return f"{schedule.cron} {schedule.timezone or 'UTC'}"


def sync_schedules(
    client: SyncPrefectClient,
    entries: Mapping[str, Mapping[str, Any]],
    deployments: Mapping[str, DeploymentResponse],
) -> tuple[list[str], list[str]]:
    """Bring the schedules of deployments up to the file and the environment.

    Args:
        entries: deployments of the file, by name.
        deployments: the same on the server.

    Returns:
        `deployment/slug: schedule` of the file's schedules as they are now, and sentences about
        what was changed, or left although it differs.
    """
    variable = client.read_variable_by_name(VARIABLE)
    last = last_deployed(variable.value if variable else None)
    desired, changes, now = desired_schedules(entries, last), [], []
    written = variable.updated if variable else None
    is_remade = False  # whether a deployment was deleted since, with its schedules
    for key in sorted({*desired, *last}):
        name, _, slug = key.partition("/")
        deployment, wanted = deployments.get(name), desired.get(key)
        if deployment is None:
            continue
        found = client.read_deployment_schedules(deployment.id)
        current = next((schedule for schedule in found if schedule.slug == slug), None)
        # a server of an earlier version has the schedule, and no variable
        is_said = key in last or current is None or (key == NIGHT and os.environ.get(NIGHTLY))
        is_back = written is not None and (deployment.created or written) > written
        is_remade |= is_back
        is_new = is_back or (wanted != last.get(key) and is_said)
        was = describe(current.schedule) if current else "none"
        if wanted is None:
            if current:
                client.delete_deployment_schedule(deployment.id, current.id)
                changes.append(f"schedule {key} ({was}) is removed: no file has it any more")
        elif is_new and current:
            if was != wanted:
                client.update_deployment_schedule(deployment.id, current.id, schedule=parse(wanted))
                changes.append(f"schedule {key} is {wanted}; it was {was}")
        elif is_new:
            new = DeploymentScheduleCreate(schedule=parse(wanted), active=True, slug=slug)
            client.create_deployment_schedules(deployment.id, [new])
            changes.append(f"schedule {key} is {wanted}; it was not there")
        elif was != wanted:
            changes.append(f"schedule {key} stays as set in Prefect: {was} instead of {wanted}")
        if current and not current.active and wanted:
            changes.append(f"schedule {key} stays paused")
        if wanted:
            now.append(f"{key}: {wanted if is_new else was}")
    value = json.dumps(desired)
    if variable is None:
        client.create_variable(VariableCreate(name=VARIABLE, value=value, tags=["cloze"]))
    elif desired != last or is_remade:
        client.update_variable(VariableUpdate(name=VARIABLE, value=value))
    return now, changes
