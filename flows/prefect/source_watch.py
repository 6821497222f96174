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
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, cast
from uuid import NAMESPACE_URL, uuid5

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import State
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.events import Event
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from pydantic import Field

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.lock import locked
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.humanize import format_bytes
from cloze.core.records import read_record
from cloze.core.secrets import redact
from cloze.flows.graph import config as configs
from cloze.flows.graph import overrides as nested
from cloze.flows.graph.plan import runs_directory
from cloze.flows.prefect import parameters as form
from cloze.flows.prefect.automations import GROWN, TAG
from cloze.flows.prefect.client import connected
from cloze.flows.prefect.graph_run import OPTIONS, watch_parent
from cloze.flows.prefect.node import install_log_filter
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.sources import source_fingerprints

DIRECTORY = ".watch"  # below the runs directory
FIELDS = {"fingerprint": str, "sizes": str, "files": int, "bytes": int, "gone": str, "time": float}
REST_SECONDS = 60.0  # in which no size changes; uploads that follow within it make one run
MOST_SECONDS = 3600.0  # of waiting for a rest
Minutes = Annotated[int, Field(ge=1, le=1440)]


@flow(name="source-watch", description="Start a run when the sources of a config grow.", **OPTIONS)
def source_watch(
    config: form.Config = "demo",
    overrides: form.Overrides = form.NO_OVERRIDES,
    every: Minutes = 5,
) -> State[Any]:
    """Look at the sources of a config now and every few minutes; a run starts when they grow.

    Args:
        every: Minutes between two looks. To end them, pause or delete the schedule.
    """
    install_log_filter()
    if deployment.id is not None:
        watch_parent()
    values = {"config": config, "overrides": overrides, "every": every}
    try:
        loaded = configs.load(config, nested.nest(overrides))
        with connected(str(PREFECT_API_URL.value())) as client:
            return _look_and_tell(client, loaded, values)
    except ClozeError as error:
        get_run_logger().error("%s", error)
        return Failed(message=redact(str(error)))


def _look_and_tell(
    client: SyncPrefectClient, config: configs.RunConfig, values: Mapping[str, Any]
) -> State[Any]:
    corpora = [each.config for each in config.nodes.values()]
    watched = [each for each in corpora if isinstance(each, CorpusConfig)]
    if not watched:
        raise UsageError(f"config {config.name!r} has no corpus, so there is no source to watch")
    path = str(runs_directory() / DIRECTORY / f"{config.name}.json")
    with locked(path.removesuffix(".json")):
        before = None
        with suppress(FileNotFoundError):
            before = read_record(storage.read_at_once(path), FIELDS)
        now, message = look(watched, before)
        if before and now["fingerprint"] != before["fingerprint"] and not message.startswith("shr"):
            told = {name: now[name] for name in ("fingerprint", "files", "bytes")}
            tag = {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}
            event = {
                # The same one if a kill forgets that it was sent.
                "id": uuid5(NAMESPACE_URL, f"{path} {before['time']} {now['fingerprint']}"),
                "event": GROWN,
                "resource": {"prefect.resource.id": f"cloze.source.{config.name}"},
                "related": [tag],
                "payload": {**values, **told, "message": message},
            }
            body = [Event.model_validate(event).model_dump(mode="json")]
            # At once: Prefect's own queue would lose it with a server that is away.
            cast(Any, client).request("POST", "/events", json=body)
        storage.write_bytes(path, json.dumps(now).encode())
    if deployment.id is not None and not client.read_flow_run(flow_run.id).auto_scheduled:
        message += f"; looks again {_schedule_looks(client, config.name, values)}"
    is_news = bool(now["gone"]) and not (before and before["gone"])
    return (Failed if is_news else Completed)(message=redact(message))


def look(
    corpora: list[CorpusConfig],
    before: Mapping[str, Any] | None,
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[dict[str, Any], str]:
    """Return what the sources are, and a sentence; wait for a rest if sizes differ from `before`.

    Raises:
        DataError: a source is missing at the first look.
    """
    try:
        sizes, waited = _sizes(corpora), 0.0
        is_other = before is not None and _digest(sizes) != before["sizes"]
        while is_other and waited < MOST_SECONDS:
            sleep(REST_SECONDS)
            waited += REST_SECONDS
            last, sizes = sizes, _sizes(corpora)
            if last == sizes:
                break
        hashes = [source_fingerprints(each.listing(again=True).slices) for each in corpora]
    except DataError as error:
        if before is None:
            raise
        return {**before, "gone": str(error)}, f"gone: {error}; no run starts"
    pairs = [(f"{n}/{kind}", sha) for n, each in enumerate(hashes) for kind, sha in each.items()]
    now = {
        "fingerprint": fingerprints.combine_hashes(pairs), "sizes": _digest(sizes),
        "files": len(sizes), "bytes": sum(sizes.values()), "gone": "", "time": time.time(),
    }  # fmt: skip
    size = _size(now)
    if before is None:
        return now, f"watches {size}"
    if now["fingerprint"] == before["fingerprint"]:
        return {
            **now,
            "time": before["time"],
        }, f"unchanged{' and back' * bool(before['gone'])}: {size}"
    late = f"; still growing after {waited / 60:.0f} min" if waited >= MOST_SECONDS else ""
    less = [now[name] <= before[name] for name in ("files", "bytes")]
    same = all(now[name] == before[name] for name in ("files", "bytes"))
    if all(less) and not same:
        return now, f"shrunk from {_size(before)} to {size}; no run starts"
    return (
        now,
        f"{'changed' if same else 'grown'} from {_size(before)} to {size}; a run starts{late}",
    )


def _size(seen: Mapping[str, Any]) -> str:
    return f"{seen['files']:,} file{'s' * (seen['files'] != 1)}, {format_bytes(seen['bytes'])}"


def _sizes(corpora: list[CorpusConfig]) -> dict[str, int]:
    """Return the bytes of each file that is read, without reading any."""
    sources = {source: None for each in corpora for source in each.sources}
    slices = (READERS.find(source.kind).slices(source.path) for source in sources)
    return {piece.path: piece.size for pieces in slices for piece in pieces}


def _digest(sizes: Mapping[str, int]) -> str:
    return fingerprints.combine_hashes((path, str(size)) for path, size in sizes.items())


def _schedule_looks(client: SyncPrefectClient, name: str, values: Mapping[str, Any]) -> str:
    """Make or change the deployment's schedule of looks at one config; describe it."""
    slug = f"watch-{name}"
    schedule = IntervalSchedule(interval=timedelta(minutes=int(values["every"])))
    of_all = client.read_deployment_schedules(deployment.id)
    found = next((each for each in of_all if each.slug == slug), None)
    own = dict(values)
    if found is None:
        new = DeploymentScheduleCreate(schedule=schedule, slug=slug, parameters=own)
        client.create_deployment_schedules(deployment.id, [new])
    else:
        client.update_deployment_schedule(
            deployment.id, found.id, active=True, schedule=schedule, parameters=own
        )
    return f"every {values['every']} min, by the schedule {slug}"
