"""What an agent makes sure of before any rank starts: each a sentence that names the host, what is found, and what to do."""

from __future__ import annotations

import socket

from flows.launchers import gpus, program
from flows.launchers.protocol import Launch
from pipeline.core import fingerprints
from pipeline.core.errors import ClozeError, DataError, UsageError


def check(launch: Launch, node: int, host: str) -> None:
    """Whether this host can take part.

    Raises:
        UsageError: its program is another, or it has too few GPUs.
        DataError: it sees other data.
    """
    differs = program.difference(program.identity(), launch.program)
    if differs is not None:
        name, here, there = differs
        what = "other source files of Cloze: hash" if name == "code" else name
        raise UsageError(f"host {host} has {what} {here}, the head {there}; install the same on all hosts")
    for role, (path, wanted) in launch.inputs.items():
        try:
            found = fingerprints.input_fingerprint(path)
        except (ClozeError, OSError) as error:
            raise DataError(f"host {host} cannot read the input {role}: {error}") from error
        if found != wanted:
            raise DataError(
                f"host {host} sees another {role} at {path} (fingerprint {found[:12]}, the head's {wanted[:12]}); share one directory"
            )
    there_are = gpus.numbers()
    if launch.device == "cuda" or (launch.device == "auto" and there_are):
        wanted_gpus = len(launch.devices) or launch.counts[node]
        if wanted_gpus > len(there_are):
            raise UsageError(
                f"host {host} has {len(there_are)} GPUs for {wanted_gpus} processes; lower processes, or its slots in the hostfile"
            )


def free_port(host: str, wanted: int) -> int:
    """A port of this host that nobody uses; `wanted`, where that is not 0.

    Raises:
        UsageError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", wanted))
        except OSError as error:
            raise UsageError(
                f"port {wanted} of host {host} cannot be taken ({error.strerror}); name another with --master HOST:PORT, or leave it out"
            ) from error
        return int(probe.getsockname()[1])
