"""The page of all runs: reads records and the servers' state, changes nothing.

    /                    the runs, what runs now, the servers, the machine, the night
    /runs/NAME           one run: its graph, its nodes, what they made
    /files/PLACE         a file of the runs' directory (`files.py` says which)
    /health              answers `ok`

Every page is one file with everything inside, works without scripts, and is escaped by its template; the one script, which brings
the page up to date, and the style are let through by a number used once.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flows.graph import record
from flows.servers import state
from flows.servers.hosts import OnlyFromHere
from flows.servers.page import files, rows
from flows.views import graph_picture
from pipeline.core.errors import DataError
from pipeline.core.humanize import figures
from pipeline.core.pages import templates_in

TEMPLATES = Path(__file__).parent / "templates"
REFRESH_SECONDS, IDLE_SECONDS = 3, 15


class Page:
    """The endpoints, over the runs of one directory."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.templates = templates_in(TEMPLATES)
        self.templates.filters |= {"anchor": rows.anchor, "moment": rows.moment, "figures": figures}

    def index(self, request: Request) -> Response:
        addresses = state.running(self.runs)
        runs = rows.all_runs(self.runs, addresses)
        return self._page(
            "index.html",
            busy=any(run.state == record.RUNNING for run in runs) or addresses.get("state") != "up",
            runs=runs,
            servers=rows.servers(self.runs),
            addresses=addresses,
            mended=rows.mended(self.runs),
            machine=rows.machine(self.runs),
            trends=rows.trends(self.runs),
            champion=rows.champion(self.runs),
            place=str(self.runs),
        )

    def run(self, request: Request) -> Response:
        name = request.path_params["name"]
        try:
            found = record.read(self.runs, name) if name in {path.name for path in record.directories(self.runs)} else None
        except DataError:
            found = None
        if found is None:
            raise HTTPException(404, "there is no such run")
        run = rows.run_row(found, state.running(self.runs), self.runs)
        return self._page(
            "run.html",
            busy=run.state == record.RUNNING,
            run=run,
            graph=rows.picture(run),
            starts=rows.starts(self.runs, name),
        )

    def file(self, request: Request) -> Response:
        found = files.find(self.runs, request.path_params["place"])
        if found is None:
            raise HTTPException(404, "there is no such file, or it is not handed out")
        return FileResponse(found, headers={**files.HEADERS, "Content-Type": files.TYPES[found.suffix]})

    def health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def _page(self, template: str, *, busy: bool, **values: Any) -> Response:
        nonce = secrets.token_urlsafe(16)
        seconds = REFRESH_SECONDS if busy else IDLE_SECONDS
        content = self.templates.get_template(template).render(
            nonce=nonce, seconds=seconds, graph_style=graph_picture.STYLE, **values
        )
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(content, headers={**files.HEADERS, "Content-Security-Policy": policy})


def application(runs: Path, port: int) -> ASGIApp:
    """The page of the runs in a directory, for requests that come to `port` of this machine."""
    page = Page(runs)
    routes = [
        Route("/", page.index),
        Route("/runs/{name}", page.run),
        Route("/files/{place:path}", page.file),
        Route("/health", page.health),
    ]
    return OnlyFromHere(Starlette(routes=routes), port)
