"""Checks of a host before its ranks start, and the ranks' environment variables."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.fence import TOKEN
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.identity import difference, identity
from cloze.core.stages.execution import Execution
from cloze.flows.launch.protocol import LaunchSpec
from cloze.flows.machine import slots


def check_host(launch: LaunchSpec, node: int, host: str) -> None:
    """Check that this host can take part in the launch.

    Raises:
        UsageError: another program version, or too few GPUs.
        DataError: the host sees other inputs.
    """
    differs = difference(identity(), launch.program)
    if differs is not None:
        name, host_value, head_value = differs
        component = "other source files of Cloze: hash" if name == "code" else name
        raise UsageError(
            f"host {host} has {component} {host_value}, the head {head_value}; install the same on"
            f" all hosts"
        )
    for role, (path, expected) in launch.inputs.items():
        try:
            fingerprint = fingerprints.input_fingerprint(path)
        except (ClozeError, OSError) as error:
            raise DataError(f"host {host} cannot read the input {role}: {error}") from error
        if fingerprint != expected:
            raise DataError(
                f"host {host} sees another {role} at {path} (fingerprint {fingerprint[:12]}, the"
                f" head's {expected[:12]}); share one directory"
            )
    visible_gpus = slots.visible_gpus()
    if launch.device == "cuda" or (launch.device == "auto" and visible_gpus):
        required_gpus = len(launch.gpu_ids) or launch.counts[node]
        if required_gpus > len(visible_gpus):
            raise UsageError(
                f"host {host} has {len(visible_gpus)} GPUs for {required_gpus} processes; lower "
                f"processes, or its slots in the hostfile"
            )


# Environment variables of ranks, as torch.distributed reads them; set by Cloze or by torchrun.

INTERFACE = "GLOO_SOCKET_IFNAME"
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FOREIGN_FIELDS = ("processes", "nodes", "restarts", "min_processes", "min_nodes", "hostfile")
# otherwise restarted ranks of torchrun find the addresses of the dead ones
UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def foreign_rank() -> tuple[int, int] | None:
    """Return (rank, world size) if torchrun or the like has started this process, else None."""
    if not all(os.environ.get(name) for name in FOREIGN) or os.environ["WORLD_SIZE"] == "1":
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_foreign(execution: Execution) -> None:
    """Refuse options that conflict with torchrun's, and a torchrun whose restarts cannot work.

    Raises UsageError: an option sets what torchrun decides, or torchrun's restarts share one store.
    """
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and os.environ.get(UNSHARED) != "1":
        raise UsageError(
            f"torchrun --max-restarts reuses the store of the failed ranks; set {UNSHARED}=1 for "
            f"torchrun, or leave it out"
        )
    for name in ("launcher", *FOREIGN_FIELDS):
        value = getattr(execution, name)
        if value != Execution.model_fields[name].default:
            raise UsageError(
                f"{name} ({value}) conflicts with torchrun, which starts this rank; use torchrun's "
                f"own option instead (--nproc-per-node, --nnodes, --max-restarts)"
            )


def rank_environments(
    ranks: range, world_size: int, master: tuple[str, int], gpu_ids: Sequence[str], token: str
) -> list[dict[str, str]]:
    """Return the environment variables of each rank of one host.

    `master`: host and port of rank 0's store; `gpu_ids`: visible GPUs; empty: all.
    """
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        TOKEN: token,
        **({"CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)} if gpu_ids else {}),
    }
    return [
        {**common, "RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in enumerate(ranks)
    ]


def distributed_envs(launch: LaunchSpec, node: int, go: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the environment variables of each rank of the node. Args: go: content of `go.json`."""
    hosts = go["hosts"]
    master, world_size = (hosts[0], go["port"]), sum(launch.counts)
    environments = rank_environments(
        launch.ranks_of(node), world_size, master, launch.gpu_ids, launch.token
    )
    return [{**interface(hosts, node), **environment} for environment in environments]


def interface(hosts: list[str], node: int) -> dict[str, str]:
    """Return the network interface for gloo, the one that leads to the other hosts.

    Gloo's default is the interface of the host's own name, which many systems map to the loopback.
    A value that the user has set is kept.
    """
    if os.environ.get(INTERFACE) or len(hosts) == 1:
        return {}
    own = own_address(hosts[1 if node == 0 else 0])
    for name, addresses in psutil.net_if_addrs().items():
        if own in (each.address for each in addresses):
            return {INTERFACE: name}
    return {}


def own_address(other: str) -> str | None:
    """Return this host's IPv4 address on the route to `other`; None: no route, or the loopback."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing; the kernel only chooses the route
        address = str(probe.getsockname()[0])
        return None if address.startswith("127.") else address
    return None


# Command lines of schedulers (Slurm, kubectl), which are busy at times, and of ssh.

COMMAND_SECONDS = 60.0


def run_command(
    *command: str, content: str = "", seconds: float = COMMAND_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command with `content` as its input; a timeout counts as a failure."""
    try:
        return subprocess.run(
            command, input=content, capture_output=True, text=True, timeout=seconds, check=False,
            errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        message = f"{command[0]} did not answer in {seconds:.0f} s"
    except OSError as error:
        message = f"{command[0]}: {error.strerror}"
    return subprocess.CompletedProcess(command, 1, "", message)


def last_line(path: Path) -> str:
    """Return the last line of a log; '' if the log is empty or missing."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""
    return ""
