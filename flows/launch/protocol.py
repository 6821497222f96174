"""Interfaces of launchers, which start ranks and pass on their events; the table of launchers.

    Launcher      entry of the table: `check` the options before anything starts, `start` the ranks
    RankGroup     started ranks; the coordinator polls `events` until all have ended, or stops them
    AgentLauncher launcher that starts agents on other hosts, as by ssh (`agent_launcher.py`)

Ranks on this host are child processes (`local.py`). On another host their parent is an agent,
`python -m cloze.flows.launch.agent LAUNCH NODE`. It communicates through files in the artifact's
directory, which all hosts share.

An event is a JSON object of one of these kinds:

    events of the stage                   see core/stages/worker.py
    {"ended": code, "ours": bool, …}      a rank's process has ended; code: as in `subprocess`;
                                          ours: stopped by us; `short`: the host was short of
                                          memory; `step`: the rank's step, from 1
    {"hung": sentence, "step": n}         a rank hangs
    {"fault": sentence, "exit_code": n}   no rank (None): the launch failed, such as by a lost host;
                                          `silent`: the host may live, and its ranks may save
    {"waiting": sentence}                 no rank: why ranks have not started, such as a queue
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter

from cloze.core import storage
from cloze.core.artifacts.fence import Fence
from cloze.core.errors import ClozeError
from cloze.core.plugins import Table
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import Job
from cloze.flows.launch import event_files

# written by the coordinator; HEAD until GO exists, to show that it lives
LAUNCH, HEAD, GO, STOP = "launch.json", "head.json", "go.json", "stop.json"
LOST_SECONDS = 180.0  # without a heartbeat: a failover of shared storage takes minutes
LAUNCHES = "launches"  # below the artifact's `_logs/`: one directory per launch
Event = Mapping[str, Any]
RankEvent = tuple[int | None, Event]  # global rank and event


class RanksLostError(ClozeError):
    """Ranks or their hosts are gone for a possibly transient reason; a restart may succeed."""


class PreemptedError(RanksLostError):
    """The scheduler gave the ranks' hosts to another job. This is no failure of the training."""


class HostsUnreachableError(RanksLostError):
    """Too few hosts respond. At the first attempt this is a usage error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A stage that shall run in ranks."""

    job: Job
    worker: str  # module that a rank's process runs
    processes: int  # ranks per host
    build: BuildContext  # build context of the coordinator; its reporter receives rank 0's reports
    # id of the launch (`cloze.core.artifacts.fence`); empty if another process starts the
    # ranks
    launch: str = ""
    token: str = ""  # id of this attempt to start ranks; empty if another process starts them
    single: bool = False  # the stage has one process, on one host

    @property
    def execution(self) -> Execution:
        return self.build.execution


class RankGroup(Protocol):
    """Started ranks. Not thread-safe."""

    @property
    def ranks(self) -> Sequence[int]:
        """Global ranks; progress and result are taken from the first one."""

    @property
    def finished(self) -> bool:
        """All ranks have ended and all their events were returned."""

    def events(self, seconds: float) -> Sequence[RankEvent]:
        """Return the events since the last call, in order per rank; wait at most `seconds`."""

    def stop(self, grace: float) -> None:
        """Send SIGTERM to every rank, and SIGKILL after `grace` seconds; return when all ended.

        With `grace` 0 SIGKILL is sent at once.
        """

    def close(self) -> None:
        """Release all resources; no started process survives."""

    def host(self, rank: int) -> str | None:
        """Return the name of the rank's host; None if this host is the only one."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A launch that survives the process that started it, and still runs or is queued."""

    name: str  # description for messages
    # ends it; takes a callback for messages, as `cancel_requests.cancel` does
    cancel: Callable[[Callable[[str], None]], dict[str, Any]]


class Launcher(Protocol):
    """Stateless object that starts ranks.

    Attributes:
        attaches: `start` follows a launch that still runs, instead of starting another one.
    """

    attaches: bool = False

    def check(self, execution: Execution) -> None:
        """Check the options before anything starts.

        Raises UsageError: an option is missing, wrong, or not supported by this launcher.
        """

    def start(self, work: LaunchRequest) -> RankGroup:
        """Start the ranks, or the agents that will start them."""

    def living(self, path: str) -> Detached | None:
        """Return the launch that trains, or will train, at `path`; None if there is none.

        Only asked of a launcher that has left a directory of its name in the artifact's `_logs/`.

        Raises ClozeError: the scheduler does not respond.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Host of a launch."""

    name: str  # name under which the launcher reaches the host; empty if not known in advance
    count: int  # number of ranks
    address: str = ""  # address under which other hosts reach the host; empty: `name`


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Content of `launch.json`, which every agent of a launch reads."""

    artifact: str
    directory: str  # unique directory of this launch, below the artifact's `_logs/launches/`
    job: str
    worker: str  # module that a rank's process runs
    # host names by node number, one agent each; empty names are not known in advance
    hosts: tuple[str, ...]
    counts: tuple[int, ...]  # number of ranks by node number
    # identity of the program (`cloze.core.identity`), which must be equal on all hosts
    program: Mapping[str, str]
    # path and fingerprint by role; all hosts must see the same
    inputs: Mapping[str, tuple[str, str]]
    grace_seconds: float
    grace_grows: bool  # extend the grace period if ranks report that they need more
    device: str = "auto"
    gpu_ids: tuple[str, ...] = ()  # GPUs to use on each host; empty: any free ones, one per rank
    # agents take slots for their GPUs; false if the scheduler allocates GPUs or the user shares
    # them
    slots: bool = True
    # id of the attempt (`cloze.core.artifacts.fence`); an agent with a superseded token ends
    # its ranks
    token: str = ""
    # addresses under which other hosts reach the hosts, by node number
    addresses: tuple[str, ...] = ()
    cpus: int = 0  # cores that a stage of one process takes slots for; trainings take none

    @property
    def fence(self) -> Fence:
        return Fence(self.artifact, self.token)

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    def ranks_of(self, node: int) -> range:
        first = sum(self.counts[:node])
        return range(first, first + self.counts[node])

    def file(self, name: str) -> str:
        return storage.join(self.directory, name)

    def write(self) -> None:
        event_files.write_json(self.file(LAUNCH), asdict(self))

    @classmethod
    def read(cls, directory: str) -> LaunchSpec | None:
        """Return the launch in `directory`; None if this host does not see the file."""
        content = event_files.read_json(storage.join(directory, LAUNCH))
        return None if content is None else TypeAdapter(cls).validate_python(content)


class AgentGroup(Protocol):
    """Agents that an `AgentLauncher` has started."""

    def host(self, node: int) -> str:
        """Return the host's name; empty if it is not known yet."""

    def waiting(self) -> str | None:
        """Return why the agents have not started, such as a queued job; None if they should run."""
        return None

    def preempted(self) -> bool:
        """Return whether the scheduler has ended agents to make room for another job."""
        return False

    def exited(self) -> Mapping[int, tuple[int, str]]:
        """Return exit code and last output line ('' if none) of ended agents, by node number."""

    def stop(self) -> None:
        """End all running agents unconditionally."""


# Table of launchers: name -> import path. A new launcher is one file and one line here, or a row of
# a plug-in.

_LAUNCHERS = {
    "local": "cloze.flows.launch.local:LAUNCHER",
    "ssh": "cloze.flows.launch.ssh:LAUNCHER",
    "slurm": "cloze.flows.launch.slurm.launcher:LAUNCHER",
    "srun": "cloze.flows.launch.slurm.job:LAUNCHER",
}
LAUNCHERS: Table[Launcher] = Table("launchers", "launcher", _LAUNCHERS)
