"""ASGI middleware that protects a server on loopback from pages of other sites.

A site whose name resolves to 127.0.0.1 (DNS rebinding) sends its name as `Host`. A script or form
of another site sends that site as `Origin`. Both are rejected, for websockets too. Programs other
than browsers send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `cloze doctor` runs where no server is installed
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
READING = frozenset({"GET", "HEAD", "OPTIONS"})


def names(port: int) -> frozenset[str]:
    """Return the `Host` values that a server on this port accepts."""
    return frozenset(f"{host}:{port}" for host in (LOOPBACK, "localhost"))


def origins(port: int) -> list[str]:
    """Return the origins of the server's own pages."""
    return [f"http://{name}" for name in sorted(names(port))]


class LoopbackOnlyMiddleware:
    """An ASGI application that passes on only requests for `port` on loopback, or for `allowed`."""

    def __init__(self, app: ASGIApp, port: int, allowed: Collection[str] = ()) -> None:
        self.app, self.origins = app, origins(port)
        self.names = names(port) | frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import Headers
        from starlette.responses import PlainTextResponse

        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = None
        if headers.getlist("host") not in [[name] for name in self.names]:
            refusal = f"this server is not called that; use http://{min(self.names)}"
        elif (
            headers.get("origin") not in (None, *self.origins)
            and scope.get("method") not in READING
        ):
            refusal = "a page of another site may not change anything here"
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal})
        else:
            await PlainTextResponse(f"{refusal}\n", status_code=403)(scope, receive, send)
