"""A stage's verb in MLflow: an artifact that is made by itself has a run with none above it, where `$MLFLOW_TRACKING_URI` names a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from flows.tracking.node import NodeFacts, NodeRecord
from flows.tracking.records import closed
from flows.tracking.spool import DIRECTORY, EXPERIMENT, FLUSH_SECONDS, STOP_SECONDS, URI, Spool
from pipeline.core.execute import Result
from pipeline.core.reporting import Reporter


class _Records:
    """What a node's record needs of those above it, of which there are none."""

    def __init__(self, name: str, spool: Spool) -> None:
        self.name, self.spool = name, spool

    def begun(self, facts: NodeFacts, build_id: str, tags: Mapping[str, str]) -> str:
        """Start the run, or go on in that of the same build."""
        del facts
        self.spool.start_sender()
        return self.spool.start_run(self.name, tags=tags, run=build_id)

    def ended(self, facts: NodeFacts, status: str) -> None:
        """Nothing more ends with it."""


def recorded(
    make: Callable[[Reporter], Result], facts: NodeFacts, runs: Path, display: Reporter, tell: Callable[[str], None]
) -> Result:
    """What `make` makes; what it tells its reporter goes to MLflow and to `display`.

    Args:
        runs: the runs' directory, below which records wait for the server.
        tell: takes what the user should know at the end.
    """
    name = f"{facts.stage} {Path(facts.artifact).name}"
    spool = Spool(runs / DIRECTORY, os.environ[URI], EXPERIMENT)
    seconds = STOP_SECONDS
    try:
        with NodeRecord(_Records(name, spool), facts, display) as record:
            result = make(record)
            record.result(result)
        seconds = FLUSH_SECONDS
    finally:
        for sentence in closed(spool, seconds):
            tell(sentence)
    return result
