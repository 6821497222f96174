"""Send the deployments of `prefect.yaml` to a Prefect server, with the work pool and the automations; what was removed from it goes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect import PREFECT_YAML, automations, lint
from pipeline.core.errors import ClozeError, UsageError

HOME = "CLOZE_HOME"
OURS = "flows.prefect."  # entrypoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What a server has now: deployments as `flow/name`, what was removed, automations by name."""

    api: str
    pool: str
    deployments: list[str]
    removed: list[str]
    schedules: list[str]
    automations: list[str]


def deploy(api_url: str | None = None, path: Path = PREFECT_YAML, notify: str | None = None) -> Deployed:
    """Make the server's set of deployments that of the file. Twice does no more than once.

    Args:
        api_url: of the server's API; by default the one that Prefect's settings name.
        notify: where failed runs are told, see `automations.wanted`.

    Raises:
        UsageError: the file has a fault, or no server is named.
        ClozeError: Prefect refuses.
    """
    content = lint.read(path)
    api = api_url or PREFECT_API_URL.value()
    if not api:
        raise UsageError("no Prefect server is named; set PREFECT_API_URL, or start one with `cloze ui`")
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        try:
            client.api_healthcheck()
            pool = _pool(client, content)
            _send(api, path)
            wanted = {str(entry["name"]): entry for entry in content["deployments"]}
            removed = _removed(client, wanted, pool)
            schedules = _schedules(client, wanted)
            names = automations.apply(client, automations.wanted(client, notify))
            return Deployed(
                api=api,
                pool=pool,
                deployments=sorted(_names(client, pool)),
                removed=removed,
                schedules=schedules,
                automations=names,
            )
        except (UsageError, ClozeError):
            raise
        except Exception as error:
            raise ClozeError(f"Prefect at {api}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def _pool(client: SyncPrefectClient, content: Mapping[str, Any]) -> str:
    """The work pool that the file names, made if it is missing."""
    pools = {str((entry.get("work_pool") or {}).get("name")) for entry in content["deployments"]}
    if len(pools) != 1:
        raise UsageError(f"the deployments name several work pools ({', '.join(sorted(pools))}); give them one")
    (name,) = pools
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        from prefect.workers.process import ProcessWorker

        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
    return name


def _send(api: str, path: Path) -> None:
    """Prefect's own command, which knows all that the file may say."""
    home = os.environ.get(HOME) or str(Path.cwd())  # where deployed flows run, and find ./runs
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(path)],
        env={**os.environ, "PREFECT_API_URL": api, HOME: home, "DO_NOT_TRACK": "1"},
        capture_output=True, text=True, check=False, cwd=path.parent,
    )  # fmt: skip
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise ClozeError(f"prefect deploy failed: {told[-1] if told else 'without a word'}")


def _ours(client: SyncPrefectClient, pool: str) -> list[tuple[str, Any]]:
    flows = {flow.id: flow.name for flow in client.read_flows()}
    found = [deployment for deployment in client.read_deployments() if deployment.work_pool_name == pool]
    return [(f"{flows.get(deployment.flow_id, '?')}/{deployment.name}", deployment) for deployment in found]


def _names(client: SyncPrefectClient, pool: str) -> list[str]:
    return [name for name, _ in _ours(client, pool)]


def _removed(client: SyncPrefectClient, wanted: Mapping[str, Mapping[str, Any]], pool: str) -> list[str]:
    """Delete deployments of our flows in our pool that the file has no more, or has with another flow; the user's own stay."""
    removed = []
    for name, deployment in _ours(client, pool):
        entry = wanted.get(deployment.name)
        if entry is not None and entry["entrypoint"] == deployment.entrypoint:
            continue
        if str(deployment.entrypoint).startswith(OURS):
            client.delete_deployment(deployment.id)
            removed.append(name)
    return removed


def _schedules(client: SyncPrefectClient, wanted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Delete schedules with a slug that the file has no more; those made in the UI have none, and stay where the file has none either.

    Returns the file's, as `deployment/slug`.
    """
    for deployment in client.read_deployments():
        entry = wanted.get(deployment.name)
        if entry is None or entry["entrypoint"] != deployment.entrypoint:
            continue
        slugs = {schedule["slug"] for schedule in entry.get("schedules") or []}
        for schedule in client.read_deployment_schedules(deployment.id):
            if schedule.slug and schedule.slug not in slugs:
                client.delete_deployment_schedule(deployment.id, schedule.id)
    return [f"{name}/{schedule['slug']}" for name, entry in wanted.items() for schedule in entry.get("schedules") or []]
