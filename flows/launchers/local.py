"""Ranks on this machine alone: children of the process that asked for them.

Also one machine of several, where a person types the command on each (`--nodes 2 --node-rank 1 --master HOST:PORT`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flows.launchers.protocol import Launcher, Started, Told, Work
from flows.launchers.ranks import Ranks, rank_environments
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.worker import JOB, LOGS, local_directory


class Local:
    """See `protocol.Launcher`."""

    def check(self, execution: Execution) -> None:
        if execution.hostfile is not None:
            raise UsageError(f"hostfile ({execution.hostfile}) is for a launcher that reaches other hosts; add --launcher ssh")

    def begin(self, work: Work) -> Started:
        return _Children(work)


class _Children:
    """See `protocol.Started`."""

    def __init__(self, work: Work) -> None:
        build, execution = work.build, work.execution
        node = execution.node_rank
        job_file = build.file(LOGS, f"job-node{node}.json" if node else JOB)
        work.job.write(job_file)
        environments = rank_environments(execution, work.processes)
        self._ranks = Ranks(work.worker, job_file, environments, local_directory(build.path) / LOGS)
        try:
            self._ranks.start()
        except BaseException:
            self._ranks.close()
            raise
        self._report = build.report
        self._report.processes({rank: process.pid for rank, process in self._ranks.processes.items()})

    @property
    def ranks(self) -> Sequence[int]:
        return list(self._ranks.processes)

    @property
    def over(self) -> bool:
        return self._ranks.over

    def events(self, seconds: float) -> Sequence[Told]:
        return self._ranks.events(seconds)

    def stop(self, grace: float) -> None:
        self._ranks.stop(grace)

    def close(self) -> None:
        self._ranks.close()
        self._report.processes({})

    def host(self, rank: int) -> str | None:
        del rank
        return None


LAUNCHER: Launcher = Local()
