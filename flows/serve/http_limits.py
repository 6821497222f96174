"""Limits of one HTTP request: size, and time to send and to receive it."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """HTTP protocol that closes a connection if a request's headers take too long.

    The time runs from the connection or from the first byte of a later request. uvicorn's own
    limit ends with that byte.
    """

    header_seconds = 10.0
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._headers_due = self.loop.call_later(self.header_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        previous = self.cycle
        if self._headers_due is None and previous.response_complete:
            self._headers_due = self.loop.call_later(self.header_seconds, self.transport.close)
        super().data_received(data)
        if self.cycle is not previous and self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None


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
