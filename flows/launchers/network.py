"""Where ranks find each other: what torch.distributed reads from the environment, on one host of several."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flows.launchers.protocol import Launch

INTERFACE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915


def environments(launch: Launch, node: int, go: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of each of the node's ranks. Args: go: the head's word, `go.json`."""
    ranks = launch.ranks_of(node)
    common = {
        "WORLD_SIZE": str(sum(launch.counts)),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": str(go["host"]),
        "MASTER_PORT": str(go["port"]),
        **interface(go["hosts"], node),
        **({"CUDA_VISIBLE_DEVICES": ",".join(launch.devices)} if launch.devices else {}),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in enumerate(ranks)]


def interface(hosts: list[str], node: int) -> dict[str, str]:
    """Which network interface gloo is to use, unless the user says it: the one that leads to the other hosts.

    By itself gloo takes the one of this host's own name, which many systems give to the loopback.
    """
    if os.environ.get(INTERFACE) or len(hosts) == 1:
        return {}
    mine = own_address(hosts[1 if node == 0 else 0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return next(({INTERFACE: name} for _, name in socket.if_nameindex() if mine and _address(probe, name) == mine), {})


def own_address(other: str) -> str | None:
    """This host's IPv4 address on the way to another host; None: there is no way, or it is this host itself by its loopback."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing: asks the kernel which way it would go
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found
    return None


def is_here(host: str) -> bool:
    """Whether the name or address is this host's own."""
    with suppress(OSError), socket.socket() as probe:
        probe.bind((host, 0))
        return True
    return False


def _address(probe: socket.socket, name: str) -> str | None:
    """An interface's IPv4 address."""
    with suppress(OSError):
        found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    return None
