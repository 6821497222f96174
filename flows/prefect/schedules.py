"""Schedules of the deployments: those of `prefect.yaml`, without undoing what was set in Prefect.

A Prefect variable keeps what was deployed last. Only a schedule whose setting has changed since
then is updated; a pause, an hour or a deletion in Prefect's UI stays. Schedules that no deploy has
made are not touched. Projects on one server share the variable: each replaces its own keys only.

`night_schedule` says when nights were due, for those that are made up.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, cast
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, VariableCreate, VariableUpdate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.server.schemas import schedules as server_schedules
from prefect.server.schemas.schedules import CronSchedule as ServerSchedule
from prefect.utilities.asyncutils import run_coro_as_sync

from cloze.core.errors import ClozeError, UsageError
from cloze.core.records import read_record
from cloze.flows.nightly.missed import Schedule
from cloze.flows.prefect.client import connected
from cloze.flows.prefect.environment import PREFECT_YAML

NIGHTLY = "CLOZE_NIGHTLY"
NIGHT = "nightly-evaluation/nightly"  # deployment and slug of the schedule that NIGHTLY sets
# {"DEPLOYMENT/SLUG": "MINUTE HOUR DAY MONTH WEEKDAY ZONE", "DEPLOYMENT": its id,
#  "MARK": digest of the automation}
VARIABLE = "cloze_schedules"


def parse(text: str, origin: str = "prefect.yaml") -> CronSchedule:
    """Return the schedule in `MINUTE HOUR DAY MONTH WEEKDAY [ZONE]`; default zone: UTC.

    Raises:
        UsageError: it is no such schedule, or comes never; the message names its origin.
    """
    *cron, zone = text.split() if len(text.split()) == 6 else [*text.split(), "UTC"]
    try:
        if len(cron) != 5:
            raise ValueError
        schedule = CronSchedule(cron=" ".join(cron), timezone=zone)
    except ValueError as error:
        raise UsageError(
            f"{origin}: a schedule ({text!r}) must be five fields of cron and a time zone, such as"
            f' "30 3 * * * Europe/Berlin"'
        ) from error
    try:
        asyncio.run(ServerSchedule(cron=schedule.cron, timezone=zone).get_dates(1))
    except ValueError as error:
        raise UsageError(
            f"{origin}: a schedule ({text!r}) never comes: Prefect finds no date for it; change "
            f"its day or month"
        ) from error
    return schedule


def desired_schedules(
    entries: Mapping[str, Mapping[str, Any]], last: Mapping[str, str]
) -> dict[str, str]:
    """Return the text of each schedule by `deployment/slug`.

    Args:
        entries: deployments of the file, by name.
        last: what was deployed last. Without `$CLOZE_NIGHTLY` the night stays as it was.

    Raises:
        UsageError: see `parse`.
    """
    desired = {}
    for name, entry in entries.items():
        for schedule in entry.get("schedules") or []:
            text = f"{schedule.get('cron', '')} {schedule.get('timezone') or 'UTC'}"
            key = f"{name}/{schedule.get('slug', name)}"
            desired[key] = describe(parse(text, f"deployment {name}"))
    wanted = os.environ.get(NIGHTLY, "").strip()
    for key in filter(_is_night, desired):
        desired[key] = describe(parse(wanted, NIGHTLY)) if wanted else last.get(key, desired[key])
    return desired


def _is_night(key: str) -> bool:
    return key.rpartition(":")[2] == NIGHT  # with or without a project


def last_deployed(value: Any) -> dict[str, str]:
    """Return the record in the variable, which Prefect's UI may have made an object, or cut."""
    found = value if isinstance(value, dict) else read_record(str(value)) or {}
    return {key: text for key, text in found.items() if isinstance(text, str)}


def describe(schedule: Any) -> str:
    """Return a schedule as `parse` reads it; one that is no cron in Prefect's words."""
    if not isinstance(schedule, CronSchedule):
        return str(schedule)
    return f"{schedule.cron} {schedule.timezone or 'UTC'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScheduleState:
    """A schedule as the file wants it, as it was deployed last, and as the server has it.

    Attributes:
        key: `deployment/slug`.
        wanted: text of the file or of `$CLOZE_NIGHTLY`; None: the file has it no more.
        last: text that was deployed last; None: never by this version.
        is_remade: its deployment was deleted since then, and its schedules with it.
    """

    key: str
    deployment: UUID
    wanted: str | None
    last: str | None
    found: DeploymentSchedule | None
    is_remade: bool

    @property
    def is_due(self) -> bool:
        """Whether the deploy sets it; otherwise it stays as the operator has set it."""
        # a server of an earlier version has the schedule, and no variable
        is_known = self.last is not None or self.found is None
        is_said = is_known or (_is_night(self.key) and bool(os.environ.get(NIGHTLY)))
        return self.is_remade or (self.wanted != self.last and is_said)

    @property
    def was(self) -> str:
        return describe(self.found.schedule) if self.found else "none"

    @property
    def now(self) -> str:
        """Return `deployment/slug: schedule` as it is after `apply`."""
        return f"{self.key}: {self.wanted if self.is_due else self.was}"

    def apply(self, client: SyncPrefectClient) -> Iterator[str]:
        """Set the schedule if it is due; yield what was changed, or left although it differs."""
        found, wanted, was = self.found, self.wanted, self.was
        if wanted is None:
            if found:
                client.delete_deployment_schedule(self.deployment, found.id)
                yield f"schedule {self.key} ({was}) is removed: no file has it any more"
            return
        if not self.is_due:
            if was != wanted:
                yield f"schedule {self.key} stays as set in Prefect: {was} instead of {wanted}"
        elif found is None:
            slug = self.key.partition("/")[2]
            new = DeploymentScheduleCreate(schedule=parse(wanted), active=True, slug=slug)
            client.create_deployment_schedules(self.deployment, [new])
            yield f"schedule {self.key} is {wanted}; it was not there"
        elif was != wanted:
            client.update_deployment_schedule(self.deployment, found.id, schedule=parse(wanted))
            yield f"schedule {self.key} is {wanted}; it was {was}"
        if found and not found.active:
            yield f"schedule {self.key} stays paused"


def sync_schedules(
    client: SyncPrefectClient,
    entries: Mapping[str, Mapping[str, Any]],
    deployments: Mapping[str, DeploymentResponse],
    last: Mapping[str, str],
    remade: Collection[str],
) -> tuple[list[str], list[str]]:
    """Bring the schedules of deployments up to the file and the environment.

    Args:
        entries: deployments of the file, by name.
        deployments: the same on the server.
        last: what was deployed last, see `VARIABLE`.
        remade: names of deployments that were deleted since then, and are made again.

    Returns:
        `deployment/slug: schedule` of the file's schedules as they are now, and sentences about
        what was changed, or left although it differs.
    """
    desired = desired_schedules(entries, last)
    states: list[_ScheduleState] = []
    for key in sorted({*desired, *last}):
        name, _, slug = key.partition("/")
        if (deployment := deployments.get(name)) is None:
            continue
        found = client.read_deployment_schedules(deployment.id)
        state = _ScheduleState(
            key=key,
            deployment=deployment.id,
            wanted=desired.get(key),
            last=last.get(key),
            found=next((schedule for schedule in found if schedule.slug == slug), None),
            is_remade=name in remade,
        )
        states.append(state)
    changes = [sentence for state in states for sentence in state.apply(client)]
    return [state.now for state in states if state.wanted], changes


def read_last(client: SyncPrefectClient) -> dict[str, str]:
    """Return the record of the last deploys, see `VARIABLE`."""
    variable = client.read_variable_by_name(VARIABLE)
    return last_deployed(variable.value if variable else None)


def write_last(client: SyncPrefectClient, own: Collection[str], record: Mapping[str, str]) -> None:
    """Replace the keys that are, or begin with, a name in `own`.

    The others are read again: another project may just have written them.
    """
    last = read_last(client)
    kept = {key: text for key, text in last.items() if key.partition("/")[0] not in own}
    value = json.dumps({**kept, **record})
    if client.read_variable_by_name(VARIABLE) is None:
        client.create_variable(VariableCreate(name=VARIABLE, value=value, tags=["cloze"]))
    elif {**kept, **record} != last:
        client.update_variable(VariableUpdate(name=VARIABLE, value=value))


def night_schedule(api: str | None) -> Schedule:
    """Return the schedule of the nightly evaluation: the server's, or else the file's.

    Args:
        api: URL of a Prefect server's API; None: there is no server.

    Raises:
        UsageError: `$CLOZE_NIGHTLY` is no schedule.
    """
    name, _, slug = NIGHT.partition("/")
    why = "no Prefect server is known"
    if api:
        try:
            with connected(api) as client:
                deployment = client.read_deployment_by_name(f"{name}/{name}")
                found = client.read_deployment_schedules(deployment.id)
            if found:
                # Without the file's, those that an operator has made instead.
                own = [each.schedule for each in found if each.slug == slug] or [
                    each.schedule for each in found
                ]
                origin = f"{', '.join(map(describe, own))} in Prefect"
                return Schedule(origin, partial(_times, own))
            why = f"{name} has no schedule in Prefect"
        except ClozeError as error:
            is_absent = isinstance(error.__cause__, ObjectNotFound)
            why = f"Prefect at {api} has no {name}" if is_absent else str(error)
    entries = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))["deployments"]
    text = desired_schedules({each["name"]: each for each in entries}, {})[NIGHT]
    source = NIGHTLY if os.environ.get(NIGHTLY, "").strip() else PREFECT_YAML.name
    return Schedule(f"{text} of {source}: {why}", partial(_times, [parse(text)]))


def _times(schedules: Collection[Any], start: float, end: float) -> list[float]:
    """Return the dates of schedules between two times, in Unix seconds."""
    found: set[float] = set()
    until = datetime.fromtimestamp(end, timezone.utc)
    for schedule in schedules:
        server = getattr(server_schedules, type(schedule).__name__)  # which knows the dates
        known, first = server.model_validate(schedule.model_dump()), start
        while first <= end:  # Prefect gives a thousand at a time
            begin = datetime.fromtimestamp(first, timezone.utc)
            dates = cast(Any, run_coro_as_sync)(known.get_dates(start=begin, end=until))
            if not dates:
                break
            found |= {date.timestamp() for date in dates if date.timestamp() >= first}
            last = dates[-1].timestamp()
            # In the hour that summer time skips, Prefect may give dates before the start.
            first = last + 1 if last >= first else first + 3600
    return sorted(found)
