"""Limits of one HTTP request: size, and time to send and to receive it."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class LimitsMiddleware:
    """ASGI middleware that reads bodies up to `max_body` bytes before the application runs.

    A longer body is refused with 413, one that takes longer than `seconds` with 408. A client that
    reads its answer too slowly is disconnected.
    """

    def __init__(self, app: ASGIApp, max_body: int, seconds: float) -> None:
        self.app, self._max_body, self._seconds = app, max_body, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self._seconds)
        except asyncio.TimeoutError:
            refusal = f"the request did not arrive within {self._seconds:g} seconds"
            await _refuse(408, refusal)(scope, receive, send)
            return
        if body is None:
            refusal = f"the body is longer than {self._max_body:,} bytes; send less at once"
            await _refuse(413, refusal)(scope, receive, send)
            return
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def timed_send(message: Message) -> None:
            await asyncio.wait_for(send(message), self._seconds)

        await self.app(scope, replay, timed_send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None: it is too long."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _refuse(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status, headers={"Connection": "close"})
