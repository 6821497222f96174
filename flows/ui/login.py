"""Login of the servers of `cloze ui`: one `user:password`, in a file that only its owner reads.

Programs send it as HTTP Basic. A browser opens `LOGIN_PATH#KEY` once: the page stores the key as
a cookie, which all ports of the host share, and where Prefect's pages look for it. The part after
`#` is never sent nor logged. `LOGIN_PATH?next=/PATH` then leads to a page of the server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import stat
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloze.core import storage
from cloze.core.accounts import open_private
from cloze.flows.run import server_addresses

LOGIN_PATH, COOKIE = "/cloze-login", "cloze-login"
FIRST_SECONDS = 10.0  # for the first message of a websocket
HEALTH = "/health"  # answers everybody, and says nothing about runs
_SCRIPT = f"""
const stored = document.cookie.match(/(?:^|; ){COOKIE}=([^;]+)/);
const key = location.hash.slice(1) || (stored && stored[1]);
if (key) {{
  localStorage.setItem("prefect-password", key);
  localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");  // takes room
  document.cookie = "{COOKIE}=" + key + "; path=/; max-age=31536000; samesite=strict";
  const next = new URL(new URLSearchParams(location.search).get("next") || "/", location.origin);
  location.replace(next.origin === location.origin ? next.href : "/");
}}
"""


def create(directory: Path) -> str:
    """Return the login of a state directory as `user:password`; create it at the first start.

    `PREFECT_SERVER_API_AUTH_STRING` in the environment takes precedence.
    """
    path = directory / server_addresses.LOGIN
    login = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or ""
    with suppress(OSError):
        status = path.stat()
        # what others could have read or written is replaced
        if not login and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077:
            login = path.read_text(encoding="utf-8")
    login = login or f"cloze:{secrets.token_urlsafe(24)}"
    storage.write_bytes(str(path), login.encode(), opener=open_private)
    return login


def key_of(login: str) -> str:
    """Return the login as in HTTP Basic, in cookies and in links."""
    return b64encode(login.encode()).decode()


class LoginMiddleware:
    """ASGI application that answers requests without the login with 401.

    Args:
        login: `user:password`.
        checks: False: the application asks for the login itself, and only gets the login page.
    """

    def __init__(self, app: ASGIApp, login: str, *, checks: bool = True) -> None:
        self.app, self.key, self.checks = app, key_of(login), checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        connection, response = HTTPConnection(scope), None
        if scope["type"] == "http" and connection.url.path == LOGIN_PATH:
            response = _page()
        elif self.checks and connection.url.path != HEALTH and not self._knows(connection):
            response = PlainTextResponse(
                "log in with the link that `cloze ui` prints, or with its login file\n",
                status_code=401, headers={"WWW-Authenticate": 'Basic realm="cloze"'},
            )  # fmt: skip
        if response is None and scope["type"] == "websocket":
            await self.app(scope, _first_in_time(receive, send), send)
        elif response is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no login"})
        else:
            await response(scope, receive, send)

    def _knows(self, connection: HTTPConnection) -> bool:
        scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
        sent = (
            credentials if scheme.lower() == "basic" else "",
            connection.cookies.get(COOKIE, ""),
        )
        return any(secrets.compare_digest(each.encode(), self.key.encode()) for each in sent)


def _first_in_time(receive: Receive, send: Send) -> Receive:
    """Return `receive` that ends a websocket whose first message, the login, comes too late."""
    received = itertools.count()

    async def timed() -> Message:
        is_first = next(received) == 1  # 0: the connection
        try:
            return await asyncio.wait_for(receive(), FIRST_SECONDS if is_first else None)
        except TimeoutError:
            await send({"type": "websocket.close", "code": 1008, "reason": "no login"})
            return {"type": "websocket.disconnect", "code": 1008}

    return timed


def _page() -> Response:
    nonce = secrets.token_urlsafe(16)
    policy = f"default-src 'none'; script-src 'nonce-{nonce}'; frame-ancestors 'none'"
    content = (
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><title>Cloze: login</title>'
        "<p>Open the link that <code>cloze ui</code> prints in the terminal.</p>"
        f'<script nonce="{nonce}">{_SCRIPT}</script></html>'
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
    return HTMLResponse(content, headers={**headers, "Referrer-Policy": "no-referrer"})
