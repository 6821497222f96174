"""`--launcher srun`: an agent on each node of the Slurm job that this process runs in. Inside `salloc` or `sbatch`; see also `slurm.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flows.launchers import slurm_queue
from flows.launchers.by_agents import ByAgents
from flows.launchers.protocol import Elastic, Handle, Host, Launch, Launcher
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.worker import LOGS, local_directory

END_SECONDS = 20.0  # for srun to end what it has started
# `srun` numbers the nodes; the shell becomes the agent, so Slurm's signals are the agent's.
AGENT = 'exec "$0" -m flows.launchers.agent "$1" "$SLURM_NODEID"'


class Srun:
    """See `protocol.Starter`."""

    allots = True

    def check(self, execution: Execution) -> None:
        if execution.hostfile is not None:
            raise UsageError(f"hostfile ({execution.hostfile}) is for --launcher ssh or torchrun; a Slurm job has its nodes")
        slurm_queue.check()
        there = len(slurm_queue.nodes())
        if execution.nodes > there:
            raise UsageError(f"nodes ({execution.nodes}) are more than the {there} of Slurm's job {os.environ['SLURM_JOB_ID']}")

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [Host(name=address, count=processes) for _, address in slurm_queue.nodes()[: execution.nodes]]

    def elastic(self, execution: Execution) -> Elastic | None:
        del execution
        return None

    def start(self, launch: Launch, execution: Execution) -> Handle:
        return _Step(launch, execution)


class _Step:
    """A step of the job, an agent a node. See `protocol.Handle`."""

    def __init__(self, launch: Launch, execution: Execution) -> None:
        self._launch = launch
        names = [name for name, address in slurm_queue.nodes() if address in launch.hosts]
        logs = local_directory(launch.artifact) / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "srun.log"
        with self._log.open("ab") as output:
            self._begin = output.tell()
            self._process = subprocess.Popen(
                [
                    "srun", f"--nodes={launch.nodes}", f"--ntasks={launch.nodes}", "--ntasks-per-node=1",
                    f"--nodelist={','.join(names)}", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", "--overlap", "--export=ALL",
                    "sh", "-c", AGENT, execution.remote_python or sys.executable, launch.directory,
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def host(self, node: int) -> str:
        return self._launch.hosts[node]

    def waiting(self) -> str | None:
        return None

    def gone(self) -> Mapping[int, tuple[int, str]]:
        code = self._process.poll()
        return {} if code is None else dict.fromkeys(range(self._launch.nodes), (code, self._words()))

    def _words(self) -> str:
        """The last line that srun, or an agent, has printed."""
        with suppress(OSError), Path(self._log).open("rb") as stream:
            stream.seek(self._begin)
            lines = stream.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    def stop(self) -> None:
        """srun passes SIGKILL on to the step's processes when it gets SIGTERM."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


LAUNCHER: Launcher = ByAgents(Srun())
