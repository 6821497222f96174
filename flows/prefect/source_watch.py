"""The flow that watches the sources of a config: an event says that they have grown.

    form ─► look ─► schedule of looks, one for each config
             └─ other sizes? wait until they rest ─► other fingerprint? ─► event ─► automation

The fingerprint is that of the corpus stage: names and bytes, or a store's tags. So a changed time
alone starts nothing, and a run starts only if the corpus would be built again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pkgutil import resolve_name
from typing import Annotated, Any, cast
from uuid import NAMESPACE_URL, uuid5

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import State
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.events import Event
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from pydantic import Field

from cloze.core import storage
from cloze.core.accounts import project, share
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.lock import is_locked, locked
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.humanize import agree, format_bytes
from cloze.core.places import runs_directory
from cloze.core.records import read_record
from cloze.core.secrets import redact
from cloze.flows.graph import config as configs
from cloze.flows.graph import overrides as nested
from cloze.flows.prefect import parameters as form
from cloze.flows.prefect.automations import GROWN, name_in
from cloze.flows.prefect.client import connected
from cloze.flows.prefect.graph_run import OPTIONS
from cloze.flows.prefect.node import install_log_filter

CORPUS = "cloze.pipeline.corpus"  # reached by name: flows import nothing of the pipeline
DIRECTORY = ".watch"  # below the runs directory
FIELDS = {"fingerprint": str, "files": int, "bytes": int, "gone": str, "time": float}
REST_SECONDS = 60.0  # in which no size changes; uploads that follow within it make one run
MOST_SECONDS = 3600.0  # of waiting for a rest


@flow(name="source-watch", description="Start a run when the sources of a config grow.", **OPTIONS)
def source_watch(
    config: form.Config = "demo",
    overrides: form.Overrides = form.NO_OVERRIDES,
    every: Annotated[int, Field(ge=1, le=1440)] = 5,
) -> State[Any]:
    """Look at the sources of a config now and every few minutes; a run starts when they grow.

    Args:
        every: Minutes between two looks. To end them, pause or delete the schedule.
    """
    install_log_filter()
    try:
        loaded = configs.load(config, nested.nest(overrides))
        values = {"config": config, "overrides": overrides, "every": every}
        with connected(str(PREFECT_API_URL.value())) as client:
            return look_once(client, loaded, values)
    except ClozeError as error:
        return Failed(message=redact(str(error)))


def look_once(
    client: SyncPrefectClient, config: configs.RunConfig, values: Mapping[str, Any]
) -> State[Any]:
    """Compare the sources with what was seen last; send an event if they have grown.

    A form that a person has sent, with these values, makes the schedule of the next looks.

    Raises:
        UsageError: the config has no corpus.
        DataError: a source is missing at the first look.
    """
    nodes = (node.config for node in config.nodes.values())
    corpora = [
        each for each in nodes if isinstance(each, resolve_name(f"{CORPUS}.config:CorpusConfig"))
    ]
    if not corpora:
        raise UsageError(f"config {config.name!r} has no corpus, so there is no source to watch")
    share(runs := runs_directory())
    path = str(runs / DIRECTORY / f"{config.name}.json")
    if is_locked(place := str(runs / DIRECTORY / ".locks" / config.name)):
        return Completed(message="another look at these sources is in progress")
    with locked(place):
        before = read_record(storage.read_at_once(path), FIELDS) if storage.exists(path) else None
        now, message, has_grown = compare(corpora, before)
        if before and has_grown:
            started = client.read_deployment_by_name(f"full-run/{name_in(project(), 'full-run')}")
            event = {
                # The same one if a kill forgets that it was sent.
                "id": uuid5(NAMESPACE_URL, f"{path} {before['time']} {now['fingerprint']}"),
                "event": GROWN,
                "resource": {"prefect.resource.id": f"cloze.source.{config.name}"},
                "related": [{"prefect.resource.id": f"prefect.deployment.{started.id}",
                             "prefect.resource.role": "deployment"}],
                "payload": {**values, **now, "message": message},
            }  # fmt: skip
            # At once: Prefect's own queue would lose it with a server that is away.
            body = [Event.model_validate(event).model_dump(mode="json")]
            cast(Any, client).request("POST", "/events", json=body)
        storage.write_bytes(path, json.dumps(now).encode())
    if deployment.id is not None and not client.read_flow_run(flow_run.id).auto_scheduled:
        message += f"; looks again {_schedule_looks(client, config.name, values)}"
    is_news = now["gone"] and not (before and before["gone"])
    return (Failed if is_news else Completed)(message=redact(message))


def compare(
    corpora: list[Any],
    before: Mapping[str, Any] | None,
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[dict[str, Any], str, bool]:
    """Return what the sources are, a sentence, and whether they have grown since `before`.

    If they have another size, it waits until they rest.
    """
    try:
        sizes, waited = _sizes(corpora), 0.0
        while before and waited < MOST_SECONDS and not _total(sizes).items() <= before.items():
            sleep(REST_SECONDS)
            waited += REST_SECONDS
            last, sizes = sizes, _sizes(corpora)
            if last == sizes:
                break
        hash_of = resolve_name(f"{CORPUS}.sources:source_fingerprints")
        hashes = [hash_of(each.listing(again=True).slices) for each in corpora]
    except DataError as error:
        if before is None:
            raise
        return {**before, "gone": str(error)}, f"gone: {error}; no run starts", False
    pairs = [(f"{n}/{kind}", sha) for n, each in enumerate(hashes) for kind, sha in each.items()]
    now = {"fingerprint": fingerprints.combine_hashes(pairs), **_total(sizes), "gone": ""}
    if before is None:
        return {**now, "time": time.time()}, f"watches {_describe(now)}", False
    if now["fingerprint"] == before["fingerprint"]:
        back = " and back" if before["gone"] else ""
        return {**before, **now}, f"unchanged{back}: {_describe(now)}", False
    now["time"] = time.time()
    is_less = now["files"] <= before["files"] and now["bytes"] <= before["bytes"]
    is_same = _total(sizes).items() <= before.items()
    word = "changed" if is_same else "shrunk" if is_less else "grown"
    end = "no run starts" if word == "shrunk" else "a run starts"
    end += f"; still growing after {waited / 60:.0f} min" if waited >= MOST_SECONDS else ""
    return now, f"{word} from {_describe(before)} to {_describe(now)}; {end}", word != "shrunk"


def _sizes(corpora: list[Any]) -> dict[str, int]:
    """Return the bytes of each file that is read, without reading any."""
    sources = {source for each in corpora for source in each.sources}
    readers = resolve_name(f"{CORPUS}.readers:READERS")
    slices = (readers.find(source.kind).slices(source.path) for source in sources)
    return {piece.path: piece.size for pieces in slices for piece in pieces}


def _total(sizes: Mapping[str, int]) -> dict[str, int]:
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _describe(seen: Mapping[str, Any]) -> str:
    return agree(f"{seen['files']:,} files, {format_bytes(seen['bytes'])}")


def _schedule_looks(client: SyncPrefectClient, name: str, values: Mapping[str, Any]) -> str:
    """Make or change the deployment's schedule of looks at one config; describe it."""
    slug, own = f"watch-{name}", deployment.id
    given: Any = {
        "schedule": IntervalSchedule(interval=timedelta(minutes=values["every"])),
        "active": True, "parameters": dict(values),
    }  # fmt: skip
    of_all = client.read_deployment_schedules(own)
    found = next((each for each in of_all if each.slug == slug), None)
    if found is None:
        client.create_deployment_schedules(own, [DeploymentScheduleCreate(slug=slug, **given)])
    else:
        client.update_deployment_schedule(own, found.id, **given)
    return f"every {values['every']} min, by the schedule {slug}"
