"""What MLflow gets of a night: a run with the decision and the trend page, and below it a run for each checkpoint with its scores.

The nodes of the suite are recorded by their session, as those of any run are. All goes through the spool, so nothing waits for a server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.tracking.spool import DIRECTORY, EXPERIMENT, Spool, tracking_uri


def record(runs: Path, started: float, evaluated: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], page: str) -> bool:
    """Spool a night. Returns whether MLflow has taken it all; what it has not is sent later.

    Args:
        evaluated: the journal's results.
        facts: of the night, as parameters.
        page: the trend page's file.
    """
    spool = Spool(runs / DIRECTORY, tracking_uri(runs), EXPERIMENT)
    spool.start_sender()
    night = spool.start_run(time.strftime("gate %Y-%m-%d %H:%M", time.gmtime(started)), tags={"cloze.kind": "night"})
    spool.params(night, facts)
    for result in evaluated:
        name = f"{result['run']} step {result['step']}"
        tags = {"cloze.kind": "candidate", "cloze.fingerprint": result["key"], "cloze.run_name": result["run"]}
        run = spool.start_run(name, night, tags)
        scores = {
            task: {score["metric"]: score["mean"], "deviation": score["deviation"]} for task, score in result["scores"].items()
        }
        more = {} if result["perplexity"] is None else {"heldout_perplexity": result["perplexity"]}
        spool.metrics(run, {**scores, **more}, int(result["step"]))
        spool.end_run(run)
    spool.file(night, page)
    spool.end_run(night)
    return spool.close()
