"""A Slurm of two nodes on this machine, of a test's own: daemons, ports, keys and state below one
directory.

Needs root and Debian's `slurm-wlm` and `munge`. The nodes are two slurmd of one host, with a core
each; nothing below /etc is read or written. A node that is silent is lost after some 25 s.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cloze.core.processes import free_ports

PATIENCE = 240.0  # seconds: the machine may have other work
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
CONFIG = """
ClusterName=cloze
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
SlurmUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0
SlurmctldTimeout=30
SlurmdTimeout=5
KillWait=15
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeAddr=127.0.0.2 NodeHostname={host} Port={ports[1]} CPUs=1 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.3 NodeHostname={host} Port={ports[2]} CPUs=1 RealMemory=4000 State=UNKNOWN
PartitionName=usual Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1 State=UP
PartitionName=urgent Nodes=n1,n2 MaxTime=60 PriorityTier=10 State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None where it can."""
    if os.geteuid() != 0:
        return "a Slurm of the tests' own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return (
        f"{', '.join(absent)} not installed (apt-get install slurm-wlm munge)" if absent else None
    )


class Slurm:
    """The cluster. Attributes: environment: with which Slurm's commands and `cloze` find it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = socket.gethostname().partition(".")[0]
        self.config = root / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}

    def start(self) -> None:
        """All daemons; returns when both nodes are idle."""
        for name in ("munge", "state", "spool.n1", "spool.n2"):
            (self.root / name).mkdir()
        self.config.write_text(CONFIG.format(host=self.host, root=self.root, ports=free_ports(3)))
        key = self.root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        munge = {
            name: f"{self.root}/munge/{name.partition('-')[0]}"
            for name in ("key-file", "pid-file", "log-file", "seed-file")
        }
        self.run(
            "munged",
            *(f"--{name}={path}" for name, path in munge.items()),
            f"--socket={self.root}/munge/socket",
        )
        self.run("slurmctld")
        for node in ("n1", "n2"):
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """The daemon of one node; returns when work can go there."""
        self.run("slurmd", "-N", node)
        self.until(lambda: self.node_state(node) in ("idle", "mixed", "allocated"))

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of Slurm's prints; it must succeed."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=cwd or self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def node_state(self, node: str) -> str:
        found = subprocess.run(
            ["sinfo", "-h", "-N", "-n", node, "-p", "usual", "-o", "%T"], env=self.environment,
                capture_output=True, text=True, check=False
        )  # fmt: skip
        return found.stdout.strip()

    def jobs(self) -> dict[str, str]:
        """The states of the jobs that Slurm knows, by id."""
        lines = self.run("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def field(self, job: str, name: str) -> str:
        """A field of `scontrol show job`."""
        words = self.run("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def hasten(self, job: str) -> None:
        """Let a job that was queued again begin soon, not after Slurm's usual two minutes.

        Not at once: a node refuses what was started in the second in which it was told to end the
        job's last start (its credential counts as revoked, to the second), and the job has failed
        then.
        """

        next_time = 0.0  # to ask: Slurm may set its own two minutes after we have

        def begun() -> bool:
            nonlocal next_time
            state = self.jobs()[job]  # REQUEUED comes before PENDING
            again = self.field(job, "Restarts") != "0"
            if state == "PENDING" and again and time.monotonic() > next_time:
                command = [
                    "scontrol",
                    "update",
                    f"JobId={job}",
                    "StartTime=now+3",
                ]  # refused where it begins just now
                asked = (
                    subprocess.run(
                        command, env=self.environment, capture_output=True, check=False
                    ).returncode
                    == 0
                )
                next_time = time.monotonic() + (20.0 if asked else 0.0)
            return again and state in ("RUNNING", "COMPLETED", "FAILED")

        self.until(begun)

    def until(self, what: Callable[[], object], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"not so in {seconds:.0f} s; {self.told()}"
            time.sleep(0.2)

    def told(self) -> str:
        """What the daemons said last."""
        return "\n".join(
            f"{path.name}: {path.read_text()[-2000:]}" for path in self.root.glob("*.log")
        )

    def lose(self, node: str) -> None:
        """What happens when the power of a node fails: its daemon and all that it has started are
        gone at once.
        """
        daemon = psutil.Process(int((self.root / f"slurmd.{node}.pid").read_text()))
        lost = [daemon]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                # a step's daemon belongs to init; its name tells its node only through its spool
                if (
                    process.name() == "slurmstepd"
                    and process.environ().get("SLURMD_NODENAME", self._node_of(process)) == node
                ):
                    lost += [process, *process.children(recursive=True)]
        for process in lost:
            with suppress(psutil.Error):
                process.kill()

    def _node_of(self, process: psutil.Process) -> str:
        return next(
            (
                Path(found.path).stem
                for found in process.open_files()
                if found.path.startswith(f"{self.root}/slurmd.")
            ),
            "",
        )

    def stop(self) -> None:
        """End all jobs, then all daemons by their pid files."""
        with suppress(Exception):
            self.run("scancel", "--user=root", "--signal=KILL", "--full")
            self.run("scancel", "--user=root")
            self.until(lambda: not set(self.jobs().values()) & {"RUNNING", "COMPLETING"}, 20)
        pids = [self.root / f"slurmd.{node}.pid" for node in ("n1", "n2")]
        for path in (*pids, self.root / "slurmctld.pid", self.root / "munge" / "pid"):
            with suppress(OSError, ValueError):
                _end(int(path.read_text()))


def _end(pid: int) -> None:
    """SIGTERM, then SIGKILL. One that has ended stays a zombie where the first process of a
    container reaps nobody.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        deadline = time.monotonic() + 10
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.05)


@contextmanager
def running() -> Iterator[Slurm]:
    """A cluster that is up."""
    root = Path(
        tempfile.mkdtemp(prefix="cz-slurm-", dir="/tmp")
    )  # a socket's path may be 107 characters long
    root.chmod(0o755)  # munge wants to see it from everywhere
    found = Slurm(root)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(root, ignore_errors=True)
