"""HTTP protocol of all servers; `python -m cloze.flows.ui.timed_protocol` is uvicorn with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from uvicorn import Config, Server, config, main
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
        is_whole = self.cycle is not previous or self.transport.get_protocol() is not self
        if is_whole and self._headers_due is not None:  # or a websocket has taken the connection
            self._headers_due.cancel()
            self._headers_due = None


class AnnouncingServer(Server):
    """Server that calls `announce` once it listens: whoever reads its address gets an answer."""

    def __init__(self, settings: Config, announce: Callable[[], object]) -> None:
        super().__init__(settings)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


if __name__ == "__main__":
    config.HTTP_PROTOCOLS["auto"] = "cloze.flows.ui.timed_protocol:TimedProtocol"
    main()
