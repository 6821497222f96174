"""The flows over a graph of toy stages: what the test's deployments name."""

from __future__ import annotations

from cloze.flows.graph import stages
from cloze.flows.launch.protocol import LAUNCHERS
from cloze.flows.tracking.spool import Spool
from tests.operations.training import TABLE

stages.TABLE.clear()
stages.TABLE.update(TABLE)
LAUNCHERS["here"] = "tests.flows.launch.here:LAUNCHER"  # several nodes, all of them this machine
Spool.start_sender = lambda spool: None  # type: ignore[method-assign]  # records stay in the spool, as where MLflow is down

from cloze.flows.prefect.graph_run import full_run as toys  # noqa: E402 the form is made from the table

__all__ = ["toys"]
