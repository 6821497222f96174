"""Registration of `prefect.yaml`'s deployments, the work pool and the automations with Prefect.

Deployments of this project that the file no longer contains are deleted; those of other projects
are not touched. What an operator has set in
Prefect stays: pauses, schedules (`schedules.py`), automations that are off or deleted
(`automations.py`). What has to be made again is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentUpdate,
    GlobalConcurrencyLimitCreate,
    WorkPoolCreate,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL

from cloze.core import accounts, places
from cloze.core.accounts import DEFAULT_PROJECT
from cloze.core.errors import ClozeError, UsageError
from cloze.core.secrets import redact
from cloze.flows.prefect.automations import (
    MARKS,
    NOTIFY,
    apply_automations,
    automation_record,
    desired_automations,
    name_in,
    tag,
)
from cloze.flows.prefect.client import connected
from cloze.flows.prefect.environment import HOME, PREFECT_YAML
from cloze.flows.prefect.parameters import fields_of
from cloze.flows.prefect.schedules import (
    desired_schedules,
    read_last,
    sync_schedules,
    write_last,
)
from cloze.flows.prefect.sweep import read_all
from cloze.flows.views.terminal import saying

MOST_SECONDS = 600.0  # for Prefect's command
ENTRYPOINTS = "cloze.flows.prefect."  # prefix of the entrypoints of Cloze's deployments
LIMIT = "cloze-deploy"  # global concurrency limit: deploys of all projects change one record
LEASE_SECONDS = 60.0  # after which a killed deploy holds up no other


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployResult:
    """State of the server after a deploy; `deployments` and `removed` are named `flow/name`.

    Attributes:
        changes: sentences about what the deploy changed, or left as an operator has set it.
    """

    api: str
    pool: str
    pool_type: str
    deployments: list[str]
    removed: list[str]
    schedules: list[str]
    automations: list[str]
    changes: list[str]


def deploy(api_url: str | None = None) -> DeployResult:
    """Make the server's deployments those of `prefect.yaml`. Idempotent.

    `api_url`: URL of the server's API. Default: the one in Prefect's settings.

    Raises:
        UsageError: the file is not valid YAML, no server is configured, or a deployment of others
            has a name of the file's.
        ClozeError: Prefect rejects a request.
    """
    project = accounts.project()
    content = _of_project(_read(), project)
    api = api_url or PREFECT_API_URL.value()
    if not api:
        raise UsageError(
            "no Prefect server is set; set PREFECT_API_URL, or start a server with `cloze ui`"
        )
    waits = saying(f"a deploy waits for Prefect at {api}")
    with waits, connected(api) as client, _alone(client):
        last = read_last(client)
        pool, changes = _pool(client, content, is_known=bool(last))
        before = dict(_of_pool(client))  # a team's stack moves some
        entries = {str(entry["name"]): entry for entry in content["deployments"]}
        _check_owner(before, entries)
        desired = desired_schedules(entries, last)  # a wrong one is refused before any change
        paused = {name for name in entries if (it := before.get(_full_name(name))) and it.paused}
        _run_prefect_deploy(api, content, paused)
        after = {
            name: each for name, each in _of_pool(client, pool) if project_of(each.name) == project
        }
        removed = [name for name, each in after.items() if _is_dropped(each, entries)]
        for name in removed:
            client.delete_deployment(after.pop(name).id)
        for deployment in after.values():
            _fit_form(client, deployment)
        changes += [f"deployment {_full_name(name)} stays paused" for name in sorted(paused)]
        own = _of_file(after, entries)
        remade = _remade(before, own, last)
        changes += [
            f"deployment {name} had been deleted and is made again; pause it in Prefect to keep it"
            f" from running"
            for name in remade
        ]
        schedules, of_schedules = sync_schedules(client, entries, own, last, remade)
        notify = os.environ.get(NOTIFY, "")
        automations, of_block = desired_automations(client, notify)
        notifies = bool(notify.strip())
        names, of_automations = apply_automations(client, automations, notifies=notifies, last=last)
        record = desired | {name: str(each.id) for name, each in own.items()}
        record |= automation_record(automations, notifies=notifies, last=last)
        write_last(client, {*entries, *MARKS.values()}, record)
        changes = [*_differences(before, after), *changes, *of_schedules, *of_block]
        return DeployResult(
            api=api,
            pool=pool,
            pool_type=client.read_work_pool(pool).type,
            deployments=sorted(after),
            removed=removed,
            schedules=schedules,
            automations=names,
            changes=[*changes, *of_automations],
        )


def _read() -> dict[str, Any]:
    try:
        return dict(yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"{PREFECT_YAML} cannot be read ({' '.join(str(error).split())}); correct the file"
        ) from error


def project_of(deployment: str) -> str:
    """Return the project of a deployment by its name: `PROJECT:FLOW`, or of cloze `FLOW`."""
    return deployment.rpartition(":")[0] or DEFAULT_PROJECT


def _of_project(content: dict[str, Any], project: str) -> dict[str, Any]:
    """Return the file with the deployments of a project: name, tag, environment of their flows."""
    entries: list[dict[str, Any]] = []
    for entry in content["deployments"]:
        pool = entry.get("work_pool") or {}
        variables = pool.get("job_variables") or {}
        environment = {**(variables.get("env") or {}), accounts.PROJECT: project}
        own_pool = {**pool, "job_variables": {**variables, "env": environment}}
        own = {
            "name": name_in(project, entry["name"]),
            "tags": [*entry.get("tags", ()), tag(project)],
        }
        entries.append({**entry, **own, "work_pool": own_pool})
    return {**content, "deployments": entries}


@contextmanager
def _alone(client: SyncPrefectClient) -> Iterator[None]:
    """Let deploys to a server follow each other; ClozeError: another one has not ended in time."""
    with suppress(ObjectAlreadyExists):
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
    try:
        with concurrency(LIMIT, 1, MOST_SECONDS, lease_duration=LEASE_SECONDS, strict=True):
            yield
    except TimeoutError:
        raise ClozeError(
            f"another deploy to this server goes on for more than {MOST_SECONDS:.0f} s (it holds"
            f" Prefect's concurrency limit {LIMIT}); try again later"
        ) from None


def _check_owner(
    before: Mapping[str, DeploymentResponse], entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise UsageError if the server has a deployment of others under a name of the file."""
    for name, entry in entries.items():
        there = before.get(_full_name(name))
        found = str(there.entrypoint) if there else ENTRYPOINTS
        if not found.startswith(ENTRYPOINTS) and found != entry["entrypoint"]:
            raise UsageError(
                f"the server's deployment {_full_name(name)} runs {found}, which is not Cloze's; "
                f"rename it or its flow, so that Cloze's does not replace it"
            )


def _full_name(name: str) -> str:
    """Return FLOW/NAME of a deployment of Cloze, whose name is FLOW or PROJECT:FLOW."""
    return f"{name.rpartition(':')[2]}/{name}"


REPLACED = (
    "parameters", "job_variables", "description", "tags", "concurrency_limit",
    "concurrency_options", "enforce_parameter_schema", "work_pool_name", "work_queue_name",
    "pull_steps",
)  # fmt: skip


def _differences(
    before: Mapping[str, DeploymentResponse], after: Mapping[str, DeploymentResponse]
) -> list[str]:
    """Return a sentence for each field of a deployment that the file has replaced."""
    return [
        f"deployment {name}: {field} are the file's again; they were"
        f" {redact(vars(before[name])[field])}"
        for name in sorted(before.keys() & after.keys())
        for field in REPLACED
        if vars(before[name])[field] != vars(after[name])[field]  # reading a deprecated one warns
    ]


def _remade(
    before: Mapping[str, DeploymentResponse],
    own: Mapping[str, DeploymentResponse],
    last: Mapping[str, str],
) -> list[str]:
    """Return the file's deployments that were deleted since the last deploy, and exist again."""
    ids = {each.id for each in before.values()}
    known = own.keys() & {key.partition("/")[0] for key in last}
    return sorted(
        name
        for name in known
        if own[name].id not in ids or last.get(name, str(own[name].id)) != str(own[name].id)
    )


def _pool(
    client: SyncPrefectClient, content: Mapping[str, Any], *, is_known: bool
) -> tuple[str, list[str]]:
    """Return the name of the file's work pool, and what there is to say about it.

    The pool is created if it does not exist; on a server that is known, it was deleted.
    """
    pools = {str((entry.get("work_pool") or {}).get("name")) for entry in content["deployments"]}
    if len(pools) != 1:
        raise UsageError(
            f"the deployments name several work pools ({', '.join(sorted(pools))}); use one for all"
        )
    (name,) = pools
    changes: list[str] = []
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        from prefect.workers.process import ProcessWorker

        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template)
            )
        if is_known:
            changes.append(f"work pool {name} is made: it was not there; pause it to stop its runs")
    return name, changes


def _run_prefect_deploy(api: str, content: Mapping[str, Any], paused: set[str]) -> None:
    """Run `prefect deploy`, which supports everything that the file may contain.

    It gets no schedules: it would replace all that a deployment has. A pause that it is not given
    would end, and a scheduled run begin.
    """
    entries = [
        {key: value for key, value in entry.items() if key != "schedules"}
        | ({"paused": True} if entry["name"] in paused else {})
        for entry in content["deployments"]
    ]
    home = str(places.local_setting(HOME, ".").resolve())  # working directory of deployed flows
    waits = saying("a deploy waits for `prefect deploy`, which registers the deployments")
    with waits, tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**content, "deployments": entries}, file)
        file.flush()
        result = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file",
                file.name],
            env={**os.environ, "PREFECT_API_URL": api, HOME: home, "DO_NOT_TRACK": "1"},
            capture_output=True, text=True, check=False, cwd=PREFECT_YAML.parent,
            timeout=MOST_SECONDS,
        )  # fmt: skip
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise ClozeError(f"prefect deploy failed: {lines[-1] if lines else 'no output'}")


def _of_pool(
    client: SyncPrefectClient, pool: str | None = None
) -> list[tuple[str, DeploymentResponse]]:
    """Return the deployments of a work pool, or of all, with their names `flow/name`."""
    flows = read_all(lambda offset: client.read_flows(offset=offset))
    names = {flow.id: flow.name for flow in flows}
    return [
        (f"{names.get(deployment.flow_id, '?')}/{deployment.name}", deployment)
        for deployment in deployments(client)
        if pool in (None, deployment.work_pool_name)
    ]


def deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return all deployments of the server."""
    return read_all(lambda offset: client.read_deployments(offset=offset))


def _of_file(
    found: Mapping[str, DeploymentResponse], entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, DeploymentResponse]:
    """Return those of the server's deployments that the file has, by their name there."""
    return {
        each.name: each
        for each in found.values()
        if each.name in entries and each.entrypoint == entries[each.name]["entrypoint"]
    }


def _is_dropped(deployment: DeploymentResponse, entries: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a deployment is Cloze's, and the file lacks it or has it with another flow."""
    entry = entries.get(deployment.name)
    is_same = entry is not None and entry["entrypoint"] == deployment.entrypoint
    return not is_same and str(deployment.entrypoint).startswith(ENTRYPOINTS)


def _fit_form(client: SyncPrefectClient, deployment: DeploymentResponse) -> None:
    """Remove fields of other stages and null defaults from a deployment's form; name the others.

    The UI sends the default of an untouched field, and the server rejects null for a typed field
    with a default. An empty field without a default is not sent.
    """
    schema = deployment.parameter_openapi_schema
    if not schema or not str(deployment.entrypoint).startswith(ENTRYPOINTS):
        return
    visible = fields_of(deployment.parameters.get("until") or ())
    for name, field in list(schema["properties"].items()):
        if visible is not None and name not in visible:
            del schema["properties"][name]
            continue
        field["title"] = name.capitalize().replace("_", " ")
        if field.get("default", ...) is None:
            del field["default"]
    update = DeploymentUpdate.model_validate({"parameter_openapi_schema": schema})
    client.update_deployment(deployment.id, update)
