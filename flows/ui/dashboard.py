"""The dashboard: runs, servers, slots and champion on one page.

It reads run records and the state of the servers, and changes nothing. Graphs, logs and progress
are in Prefect. The page is one file, works without scripts, and its template escapes all text. A
nonce allows its script and its style.

Routes: `/` the page; `/trend` of the nights, `/report/RUN` and `/card/RUN`, files of the runs
directory; `/metrics` for Prometheus; `/health` answers `ok`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cloze.core.accounts import owner
from cloze.core.errors import ClozeError
from cloze.core.humanize import agree, format_duration, templates_in
from cloze.flows.machine import slots
from cloze.flows.nightly.journal import Champion, Journal
from cloze.flows.run import server_addresses, status_file
from cloze.flows.tracking import spool, spool_state
from cloze.flows.ui import prometheus
from cloze.flows.ui.login import LOGIN_PATH, LoginMiddleware
from cloze.flows.ui.loopback_guard import LOOPBACK, LoopbackOnlyMiddleware
from cloze.flows.views.run_tables import describe_duration

MISSING = (
    '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">'
    "<title>No such page</title><main>{links}<h1>No such page</h1><p>There is nothing at {path}. "
    "Its run may be deleted or renamed, or has not written this page yet. <i>Runs</i> lists the "
    "runs that are here; `cloze status` does so in a terminal.</p></main></html>"
)
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
BACK = '<a href="/">Runs</a>'  # on pages that are also files
TEMPLATES = Path(__file__).parent / "templates"
PAGES = {"report": "report*/report.html", "card": "corpus*/card.html"}  # of a run
REFRESH_SECONDS, IDLE_SECONDS = 3, 15
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(
    runs: Path,
    port: int,
    host: str = LOOPBACK,
    allowed: Collection[str] = (),
    login: str | None = None,
    announce: Callable[[], object] = lambda: None,
) -> None:
    """Serve the dashboard of a runs directory until the process ends.

    Args:
        allowed: further `Host` values to accept, such as `dashboard:8090`.
        login: `user:password` that each request must have; None: none is asked for.
        announce: called once it listens.
    """
    from uvicorn import Config

    from cloze.flows.ui.timed_protocol import AnnouncingServer, TimedProtocol

    settings = Config(
        application(runs, port, allowed, login), host=host, port=port, http=TimedProtocol,
        log_level="warning", access_log=False,
    )  # fmt: skip
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has ended
        AnnouncingServer(settings, announce).run()


def application(
    runs: Path, port: int, allowed: Collection[str] = (), login: str | None = None
) -> ASGIApp:
    """Return the ASGI application for requests to `port` of this machine, or to `allowed`."""

    def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def metrics(request: Request) -> Response:
        return Response(prometheus.metrics(runs), headers=HEADERS, media_type=CONTENT_TYPE_LATEST)

    def page(request: Request) -> Response:
        servers = reachable(server_addresses.servers(runs))
        rows = run_rows(runs, servers)
        mlflow = servers.get("mlflow")
        links = {
            "Prefect": _page_of(servers, "prefect", ""),
            "MLflow": mlflow and spool_state.home(runs / spool.DIRECTORY, mlflow),
            "Nights": "/trend" if Journal(runs).trend.exists() else None,
        }
        nonce = secrets.token_urlsafe(16)
        running = [row for row in rows if row["state"] == status_file.RUNNING]
        template = templates_in(TEMPLATES).get_template("page.html")
        content = template.render(
            nonce=nonce,
            moment=_format_time,
            seconds=REFRESH_SECONDS if running or servers.get("state") != "up" else IDLE_SECONDS,
            place=str(runs),
            runs=rows,
            links=links,
            zone=_local(time.time()).tzname(),
            servers=server_rows(servers, links),
            servers_of=servers.get("owner"),
            has_owners=len({row["owner"] for row in rows}) > 1,
            slots=slot_rows(),
            champion=_champion(runs),
        )
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(content, headers={**HEADERS, "Content-Security-Policy": policy})

    def trend(request: Request) -> Response:
        path = Journal(runs).trend
        return _file(path) if path.is_file() else missing(request)

    def made(request: Request) -> Response:
        run = request.path_params["run"]
        known = {status_file.name_of(runs, path): path for path in status_file.directories(runs)}
        pages = _made(known[run]) if run in known else {}
        links = [BACK, *(f'<a href="/{page}/{quote(run)}">{page}</a>' for page in pages)]
        path = pages.get(request.path_params["page"])
        return _file(path, " · ".join(links)) if path else missing(request)

    routes = [Route("/", page), Route("/metrics", metrics), Route("/health", health)]
    routes += [Route("/trend", trend), Route("/{page}/{run:path}", made)]
    app: ASGIApp = Starlette(routes=routes, exception_handlers={404: missing})
    if login is not None:
        app = LoginMiddleware(app, login)
    return LoopbackOnlyMiddleware(app, port, allowed)


def missing(request: Request, _: Exception | None = None) -> Response:
    """Return the page of an address that has none: a run may be deleted, renamed or in progress."""
    content = MISSING.format(links=BACK, path=escape(request.url.path))
    headers = {**HEADERS, "Content-Security-Policy": FILE_POLICY}
    return HTMLResponse(content, status_code=404, headers=headers)


def _file(path: Path, links: str = BACK) -> Response:
    """Return a page that Cloze has written: its styles are its own, and it runs no script."""
    content = path.read_text(encoding="utf-8").replace("<main>", f"<main>{links}", 1)
    return HTMLResponse(content, headers={**HEADERS, "Content-Security-Policy": FILE_POLICY})


def _made(directory: Path) -> dict[str, Path]:
    """Return the newest page of each kind that a run has on this disk."""
    found = {name: list(directory.glob(pattern)) for name, pattern in PAGES.items()}
    return {
        name: max(pages, key=lambda page: page.stat().st_mtime)
        for name, pages in found.items()
        if pages
    }


def reachable(servers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the servers, without pages but with `owner` if another account has their login."""
    login = servers.get("login")
    if not login or os.access(login, os.R_OK) or not os.path.exists(login):
        return dict(servers)
    services = {name: {**each, "address": None} for name, each in servers["services"].items()}
    pages = dict.fromkeys(("prefect", "mlflow"))
    return {**servers, **pages, "services": services, "owner": owner(login)}


def _page_of(servers: Mapping[str, Any], name: str, path: str) -> str | None:
    """Return the link to a page of a server; with a login, the link logs the browser in first."""
    address = servers.get(name)
    entry = f"{LOGIN_PATH}?next={path or '/'}" if servers.get("login") else path
    return f"{address}{entry}" if address else None


def run_rows(runs: Path, servers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for the newest start of each run, newest first.

    `servers`: addresses of the servers, for links to flow runs.
    """
    rows = []
    records = status_file.all_records(runs).values()
    for record in sorted(records, key=lambda record: -float(record["started"])):
        nodes = record["nodes"]
        errors = [
            f"{name}: {node['error']}"
            for name, node in nodes.items()
            if node.get("error") and node["state"] in (status_file.FAILED, status_file.CRASHED)
        ]
        directory = runs / record["run"]
        flow_run = servers.get("prefect") and _flow_run(directory)
        rows.append(
            {
                "name": record["run"],
                "owner": record.get("owner") or "",
                "state": record["state"],
                "started": _format_time(record["started"]),
                "took": describe_duration(record),
                "done": sum(node["state"] in ("finished", "cached") for node in nodes.values()),
                "total": len(nodes),
                "now": _now(nodes),
                "error": errors[0] if errors else str(record.get("error") or ""),
                "link": flow_run and _page_of(servers, "prefect", f"/runs/flow-run/{flow_run}"),
                "pages": list(_made(directory)),
            }
        )
    return rows


def _flow_run(directory: Path) -> str | None:
    """Return the id of a run's newest start in Prefect; a later one from a terminal has none."""
    starts = map(status_file.read_file, reversed(status_file.records_in(directory)))
    return next((start["prefect"] for start in starts if start and start.get("prefect")), None)


def _now(nodes: Mapping[str, Any]) -> list[str]:
    """Return running nodes; then the others that wait, one entry for each reason."""
    waiting: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        if node["state"] in (status_file.QUEUED, status_file.RETRYING):
            waiting[node["why"]].append(name)
    now = [name for name, node in nodes.items() if node["state"] == status_file.RUNNING]
    for why, (first, *others) in waiting.items():
        now.append(f"{first}{f' and {len(others)} more' if others else ''}: {why}")
    return now


def server_rows(
    servers: Mapping[str, Any], links: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """Return a row for each server in `state.json`; `links`: pages to open, by title."""
    return [
        {
            **{key: service[key] for key in ("title", "state", "restarts", "last")},
            "address": links.get(service["title"]) or service["address"],
            "uptime": format_duration(time.time() - service["since"]) if service["since"] else "",
        }
        for service in server_addresses.observed(servers).values()
    ]


def slot_rows() -> list[tuple[str, str, str]]:
    """Return run, node and slots of each holder of slots on this machine."""
    slots_by_node: dict[tuple[str, str], list[str]] = defaultdict(list)
    for holder in slots.holders():
        slots_by_node[holder.run, holder.node].append(holder.slot)
    rows = []
    for (run, node), node_slots in slots_by_node.items():
        gpus = [slot for slot in node_slots if slot.startswith(slots.GPU)]
        cores = len(node_slots) - len(gpus)
        labels = [*gpus, *([agree(f"{cores} cores")] if cores else [])]
        rows.append((run, node, " ".join(labels)))
    return rows


def _champion(runs: Path) -> Champion | None:
    with suppress(OSError, ClozeError):
        return Journal(runs).champion()
    return None


def _local(seconds: float) -> datetime:
    """Return a time in the zone of now, which the page names, in summer as in winter."""
    return datetime.fromtimestamp(seconds, datetime.now().astimezone().tzinfo)


def _format_time(seconds: float) -> str:
    return f"{_local(seconds):%Y-%m-%d %H:%M}"
