"""torchrun on every host of a hostfile, over ssh: its rendezvous goes on without a host that is lost, from the newest checkpoint.

The rendezvous is on the first host. When that one is lost, all ranks end, and are begun anew on the hosts that answer, as with ssh.
"""

from __future__ import annotations

from flows.launchers import restarts
from flows.launchers.by_agents import ByAgents
from flows.launchers.protocol import Elastic, Launcher
from flows.launchers.ssh import Ssh, lines_of
from pipeline.core.execution import Execution


class Torchrun(Ssh):
    """See `protocol.Starter`."""

    def elastic(self, execution: Execution) -> Elastic | None:
        nodes = execution.min_nodes or len(lines_of(execution))
        return Elastic(nodes=nodes, restarts=restarts.allowed(execution))


LAUNCHER: Launcher = ByAgents(Torchrun())
