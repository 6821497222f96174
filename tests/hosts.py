"""Several hosts on one machine, for real: network namespaces on one bridge, each with a name, a
hosts file and an ssh server of its own.

They share the disk, as hosts of a cluster share a directory. Needs root, iproute2 and an OpenSSH
server.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import warm
from tests.checkout import import_path
from tests.conftest import REPOSITORY

NETWORK = "10.231.8"
SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")


def missing() -> str | None:
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need iproute2 and util-linux"
    if SSHD is None or shutil.which("ssh") is None:
        return "hosts need an OpenSSH server and client"
    name = f"cz-try-{os.getpid()}"
    made = (
        subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
        == 0
    )
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if made else "this container makes no network namespaces"


@dataclass(slots=True)
class Hosts:
    """The hosts by name, and one more, the head, from which commands are typed.

    Attributes:
        environments: by host, what is set there beside.
    """

    directory: Path
    names: Sequence[str]
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tag: str = field(default_factory=lambda: f"cz{os.getpid() % 100000}")
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name))
        addresses = {
            name: f"{NETWORK}.{number}" for number, name in enumerate(self.names, start=1)
        } | {"head": f"{NETWORK}.254"}
        listed = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for name, address in addresses.items()
        )
        for name in addresses:
            place = Path("/etc/netns") / self.namespace(name)
            place.mkdir(parents=True)
            (place / "hosts").write_text(listed)
            _run("ip", "netns", "add", self.namespace(name))
            _run("ip", "-n", self.namespace(name), "link", "set", "lo", "up")
        head = self.namespace("head")
        _run("ip", "-n", head, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", head, "address", "add", f"{addresses['head']}/24", "dev", "br0")
        _run("ip", "-n", head, "link", "set", "br0", "up")
        for name in self.names:
            there = self.namespace(name)
            _run(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                there,
                "type",
                "veth",
                "peer",
                "name",
                f"to-{name}",
                "netns",
                head,
            )
            _run("ip", "-n", there, "address", "add", f"{addresses[name]}/24", "dev", "eth0")
            _run("ip", "-n", there, "link", "set", "eth0", "up")
            _run("ip", "-n", head, "link", "set", f"to-{name}", "master", "br0")
            _run("ip", "-n", head, "link", "set", f"to-{name}", "up")
            self.serve(name)
        deadline = time.monotonic() + 60
        for name in self.names:
            while subprocess.run(
                self.ssh(name, "true"), capture_output=True, check=False
            ).returncode:
                assert time.monotonic() < deadline, f"sshd of {name} does not answer"
                time.sleep(0.2)

    def serve(self, name: str) -> None:
        """Start the host's ssh server, in a mount and host name of its own."""
        options = (
            f"HostKey={self.directory / 'host_key'}",
            f"AuthorizedKeysFile={self.directory / 'key.pub'}", "StrictModes=no", "UsePAM=no",
            "PidFile=none", "MaxStartups=100", "PrintMotd=no",
        )  # fmt: skip
        words = " ".join(
            f"{variable}={value}" for variable, value in self.environments.get(name, {}).items()
        )
        told = [*options, f"'SetEnv={words}'"] if words else options
        command = " ".join(
            [
                f"hostname {name};",
                f"exec {SSHD} -D -e -f /dev/null",
                *(f"-o {option}" for option in told),
            ]
        )
        with (self.directory / f"sshd-{name}.log").open("ab") as log:
            self.servers[name] = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace(name), "unshare", "--uts", "sh", "-c",
                    command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        for name in (*self.names, "head"):
            for pid in self.pids(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for server in self.servers.values():
            server.wait()
        for name in (*self.names, "head"):
            subprocess.run(
                ["ip", "netns", "del", self.namespace(name)], capture_output=True, check=False
            )
            shutil.rmtree(Path("/etc/netns") / self.namespace(name), ignore_errors=True)

    def namespace(self, name: str) -> str:
        return f"{self.tag}{name}"

    @property
    def options(self) -> list[str]:
        """ssh's, for `--ssh-option`."""
        return [
            f"IdentityFile={self.directory / 'key'}",
            "UserKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=no",
        ]

    def ssh(self, name: str, *command: str) -> list[str]:
        options = [
            word
            for option in (*self.options, "BatchMode=yes", "LogLevel=ERROR")
            for word in ("-o", option)
        ]
        return ["ip", "netns", "exec", self.namespace("head"), "ssh", *options, name, *command]

    def hostfile(self, *lines: str) -> str:
        """A hostfile of all hosts, or of these lines."""
        path = self.directory / f"hosts-{time.monotonic_ns()}"
        path.write_text("".join(f"{line}\n" for line in lines or self.names))
        return str(path)

    def pids(self, name: str) -> list[int]:
        """The processes on a host."""
        told = subprocess.run(
            ["ip", "netns", "pids", self.namespace(name)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        return [int(word) for word in told.split()]

    def ranks(self, name: str) -> list[int]:
        """The training processes on a host."""
        return [pid for pid in self.pids(name) if b"cloze.model.worker" in _command(pid)]

    def signal(self, name: str, number: signal.Signals) -> None:
        """To all that runs on a host, its ssh server included."""
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, name: str) -> None:
        """The host dies at once: its cable first, so that nobody hears of it."""
        self.link(name, "down")
        self.signal(name, signal.SIGKILL)

    def link(self, name: str, state: str) -> None:
        _run("ip", "-n", self.namespace(name), "link", "set", "eth0", state)

    def inside(self, name: str, *command: str) -> None:
        """Run a command as the host sees the file system."""
        _run("nsenter", "-t", str(_sshd(self.servers[name].pid)), "-m", "-n", "-u", *command)

    def start(self, *arguments: Any, at: str = "head", **environment: str) -> subprocess.Popen[str]:
        """Type `cloze ARGUMENTS --json` on a host."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(at), warm.python(), "-c", warm.ENTRY, *map(str,
                arguments), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ,
            "PYTHONPATH": import_path(REPOSITORY), **environment},
        )  # fmt: skip

    def cloze(self, *arguments: Any, at: str = "head", **environment: str) -> tuple[int, str]:
        """Its exit code, and what it said on standard error."""
        process = self.start(*arguments, at=at, **environment)
        try:
            _, told = process.communicate(timeout=1000)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(process.communicate()[1][-3000:]) from None
        return process.returncode, told

    def by(self, launcher: str, hostfile: str | None = None) -> list[str]:
        """The options that start on all hosts."""
        ssh = [word for option in self.options for word in ("--ssh-option", option)]
        return ["--launcher", launcher, "--hostfile", hostfile or self.hostfile(), *ssh]


@contextmanager
def hosts(
    directory: Path, *names: str, environments: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Hosts]:
    """Args: directory: for keys and logs; environments: see `Hosts`."""
    found = Hosts(directory, names, environments or {})
    try:
        found.begin()
        yield found
    finally:
        found.end()


def last_json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _sshd(pid: int) -> int:
    """The server itself: `ip netns exec` and `unshare` become it."""
    return pid
