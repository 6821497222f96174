"""Who may talk to a server on loopback: requests for one of its own names, and from its own pages.

A page of another site that has made its name point to 127.0.0.1 comes with that name as `Host`; a script or form of another site that
wants to change something comes with that site as `Origin`. Both are refused, of websockets too. Programs send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def names(port: int) -> frozenset[str]:
    """What a server on that port of loopback may be called in `Host`."""
    return frozenset(f"{host}:{port}" for host in ("127.0.0.1", "localhost"))


def origins(port: int) -> list[str]:
    """The origins of its own pages."""
    return [f"http://{name}" for name in sorted(names(port))]


class OnlyFromHere:
    """An ASGI application that lets through what is meant for `port` on loopback."""

    def __init__(self, app: ASGIApp, port: int, origins_too: Collection[str] = ()) -> None:
        """Args:
        origins_too: of other pages that may change something here.
        """
        self.app, self.names, self.origins = app, names(port), {*origins(port), *origins_too}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = None
        if headers.getlist("host") not in [[name] for name in self.names]:
            refused = f"this server is not called that; use http://{min(self.names)}"
        elif headers.get("origin") not in (None, *self.origins) and scope.get("method") not in READING:
            refused = "a page of another site may not change anything here"
        if refused is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refused})
        else:
            await PlainTextResponse(f"{refused}\n", status_code=403)(scope, receive, send)
