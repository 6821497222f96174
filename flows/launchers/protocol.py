"""What a launcher is: it begins a stage's ranks, and tells what they tell.

    Launcher   one line of the table: `check` the wish before anything starts, `begin` the ranks
    Started    ranks that were begun; the head (`head.py`) asks it for events until all have ended, and stops it

The ranks of the machine where `cloze` runs are its own children (`local.py`). On other machines an **agent**
(`python -m flows.launchers.agent LAUNCH NODE`) is each node's parent, and all that it has to say goes through files in the artifact's
directory, which all machines share. So what starts agents is small, a `Starter`: ssh, Slurm, Kubernetes; `ByAgents`
(`by_agents.py`) makes a launcher of it.

An event is a JSON object of one of these kinds:

    what the rank's stage tells               see pipeline/core/worker.py
    {"ended": code, "ours": bool, …}          of a rank: its process has ended, as `subprocess` gives codes; ours: we ended it; `short`:
                                              its host was short of memory; `step`: that it was at, from 1
    {"hung": sentence, "step": n}             of a rank: it does not go on
    {"fault": sentence, "exit_code": code}    of no rank (None): the launch itself failed: a host refuses, or is lost
    {"note": sentence}                        of no rank: something is to be known, and the ranks go on
    {"waiting": sentence}                     of no rank: why they have not begun yet, such as a queue
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from flows.launchers import mailbox
from pipeline.core import storage
from pipeline.core.errors import ClozeError
from pipeline.core.execution import Execution
from pipeline.core.stage import Build
from pipeline.core.worker import Job

LAUNCH, GO, STOP, LOST = "launch.json", "go.json", "stop.json", "lost.json"  # in a launch's directory: from the head
LOST_SECONDS = 30.0  # without a sign of life
LAUNCHES = "launches"  # in the artifact's `_logs/`: a directory a launch
Event = Mapping[str, Any]
Told = tuple[int | None, Event]  # the rank, among all machines', and what it tells


class Lost(ClozeError):
    """Ranks are gone for a reason that may pass: killed, or their host is. They may be started again, perhaps on fewer hosts."""


class Unanswered(Lost):
    """Hosts do not answer, and too few others do. At the very first start that is bad usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stage that is to run in ranks.

    Attributes:
        worker: the module of the ranks' process.
        processes: ranks a node.
        build: of the head; its reporter hears of rank 0.
    """

    job: Job
    worker: str
    processes: int
    build: Build

    @property
    def execution(self) -> Execution:
        return self.build.execution


class Started(Protocol):
    """Ranks that were begun. Not to be used by several threads."""

    @property
    def ranks(self) -> Sequence[int]:
        """The numbers of those that are told of; the first one is listened to. They may become fewer, where a host is lost."""

    @property
    def over(self) -> bool:
        """Whether every rank has ended and all they told was given out."""

    def events(self, seconds: float) -> Sequence[Told]:
        """What was told since the last call, in each rank's order; waits at most `seconds` for it."""

    def stop(self, grace: float) -> None:
        """SIGTERM to every rank, and after `grace` seconds SIGKILL; 0: SIGKILL at once. Returns when all have ended."""

    def close(self) -> None:
        """Let go of all that is held; nothing that was started lives afterwards."""

    def host(self, rank: int) -> str | None:
        """The name of the rank's host; None: this machine is the only one."""


class Launcher(Protocol):
    """A way to start ranks; an object without state."""

    def check(self, execution: Execution) -> None:
        """Refuse what cannot work, before anything starts.

        Raises:
            UsageError: an option is missing, wrong, or not for this launcher.
        """

    def begin(self, work: Work) -> Started:
        """Start the ranks, or what will start them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One to start on. Attributes: name: empty where it is not known before; count: its ranks."""

    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """How torchrun is to start the ranks. Attributes: nodes: the fewest to go on with; restarts: of the ranks, at most."""

    nodes: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What every agent of one launch must know: the content of `launch.json`.

    Attributes:
        artifact: the directory that is made.
        directory: of this launch, below the artifact's `_logs/launches/`: its name is one that no other launch has.
        job: the path of the job file.
        hosts: the nodes' host names by number, an agent each; empty names where they are not known beforehand.
        counts: the ranks of each node.
        master: HOST:PORT of rank 0's store; port 0: the first node chooses. HOST may be empty: the first node's own name.
        program: what identifies the program (`program.identity`), the same on all hosts.
        inputs: each input's path and fingerprint, the same on all hosts.
        grace_grows: whether ranks that tell how long they need to stop get that.
        devices: the GPUs of each host to be used; empty: as many free ones as there are ranks.
        slots: whether each agent takes the slots of its host's GPUs; not where they are this launch's alone already, or shared on purpose.
        elastic: how torchrun starts the ranks, where it does; else None.
    """

    artifact: str
    directory: str
    job: str
    worker: str
    hosts: tuple[str, ...]
    counts: tuple[int, ...]
    master: str
    program: Mapping[str, str]
    inputs: Mapping[str, tuple[str, str]]
    grace_seconds: float
    grace_grows: bool
    device: str = "auto"
    devices: tuple[str, ...] = ()
    slots: bool = True
    elastic: Elastic | None = None

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    def ranks_of(self, node: int) -> range:
        """The numbers of a node's ranks among all."""
        first = sum(self.counts[:node])
        return range(first, first + self.counts[node])

    def file(self, name: str) -> str:
        return storage.join(self.directory, name)

    def write(self) -> None:
        mailbox.put(self.file(LAUNCH), asdict(self))

    @classmethod
    def read(cls, directory: str) -> Launch | None:
        """The launch there; None: this host does not see it."""
        found = mailbox.get(storage.join(directory, LAUNCH))
        if found is None:
            return None
        told: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        told["inputs"] = {name: tuple(value) for name, value in found["inputs"].items()}
        told["elastic"] = Elastic(**found["elastic"]) if found["elastic"] else None
        return cls(**told)


class Handle(Protocol):
    """The agents that a starter has started."""

    def host(self, node: int) -> str:
        """The host's name; empty where it is not known yet."""

    def waiting(self) -> str | None:
        """What the agents wait for that nobody is to blame for, such as `job 17 is queued`; None: they are to answer now."""

    def gone(self) -> Mapping[int, tuple[int, str]]:
        """Nodes whose agent has ended as the starter sees it: its exit code, and its last words or the starter's ('': none)."""

    def stop(self) -> None:
        """End all agents that still live, whatever they do."""


class Starter(Protocol):
    """What starts an agent on each of several hosts, which share the artifact's directory.

    Attributes:
        allots: whether the hosts' GPUs are this launch's alone, as Slurm and Kubernetes give them out; else agents take their slots.
    """

    allots: bool

    def check(self, execution: Execution) -> None:
        """See `Launcher.check`."""

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        """The hosts to start on: those that answer now.

        Args:
            processes: ranks a host, where the starter knows no better.

        Raises:
            Unanswered: a host that must be there does not answer; it is named.
        """

    def elastic(self, execution: Execution) -> Elastic | None:
        """Whether torchrun is what starts the ranks on a host, and how; None: the agents do."""

    def start(self, launch: Launch, execution: Execution) -> Handle:
        """Start `python -m flows.launchers.agent DIRECTORY NODE` for each node, DIRECTORY being `launch.directory`."""
