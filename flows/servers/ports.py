"""Ports of this machine's own address: the usual ones if they are free, others if not, and the very one that somebody asked for."""

from __future__ import annotations

import socket
from collections.abc import Collection

from pipeline.core.errors import UsageError
from pipeline.core.processes import free_ports

LOOPBACK = "127.0.0.1"
NEARBY = 50  # ports that are tried after the usual one, before any free one is taken


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def choose(usual: int, asked: int | None, option: str, taken: Collection[int] = ()) -> int:
    """A free port that is not among `taken`: the one that was asked for, or the usual one, or one after it.

    Raises:
        UsageError: the port that was asked for with `option` is not free.
    """
    if asked is not None:
        if asked in taken or not is_free(asked):
            raise UsageError(f"{option} {asked} is taken by another program; name another port, or leave the option out")
        return asked
    for port in range(usual, min(usual + NEARBY, 65536)):
        if port not in taken and is_free(port):
            return port
    return next(port for port in free_ports(len(taken) + 1) if port not in taken)
