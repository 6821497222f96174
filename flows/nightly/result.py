"""Result of a nightly run: for the terminal, the flow, MLflow and the disk.

MLflow gets a run with the decision and the trend page, with a child run for each checkpoint's
scores. They go through the spool, so nothing waits for a server. The suite's session records its
own nodes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cloze.core.artifacts.artifact import MANIFEST
from cloze.core.artifacts.lock import locked
from cloze.core.errors import UsageError
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.journal import Champion
from cloze.flows.nightly.promotion_gate import PromotionDecision
from cloze.flows.tracking.spool import DIRECTORY, Spool, tracking_uri


@dataclass(slots=True, kw_only=True)
class NightlyResult:
    """Result of a nightly run.

    Attributes:
        evaluated: results as in the journal.
        gone: checkpoints that their training pruned before they were read.
        errors: errors by node.
        warnings: messages for the user.
        message: number of checkpoints by what happened to them.
    """

    choice: CheckpointSelection
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    gone: list[CheckpointInfo] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)
    decision: PromotionDecision | None = None
    candidate: str | None = None
    champion: Champion | None = None
    replaced: Champion | None = None
    warnings: list[str] = field(default_factory=list)
    trend: str | None = None
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "new": len(self.choice.new),
            "evaluated": self.evaluated,
            "waiting": [item.key for item in self.choice.waiting],
            "passed": len(self.choice.passed),
            "gone": [item.key for item in self.gone],
            "failed": {name: str(error) for name, error in self.errors.items()},
            "candidate": self.candidate,
            "promoted": self.is_promoted,
            "why": self.why,
            "message": self.message,
            "champion": asdict(self.champion) if self.champion else None,
            "warnings": self.warnings,
            "trend": self.trend,
        }

    @property
    def why(self) -> str:
        """The gate's explanation; without a candidate, the message on the checkpoints."""
        return self.decision.why if self.decision else self.message

    @property
    def summary(self) -> str:
        """Message on the checkpoints, and the gate's explanation."""
        return f"{self.message}; {self.decision.why}" if self.decision else self.message

    @property
    def is_promoted(self) -> bool:
        return self.decision is not None and self.decision.promoted

    def describe_checkpoints(self, failed: int) -> str:
        """Count the checkpoints by outcome; `failed`: number of failed evaluations."""
        if not self.choice.new:
            return "No new checkpoints"
        counts = {
            "skipped, neither the newest of their training nor milestones": len(self.choice.passed),
            "removed by their training before they could be read": len(self.gone),
            "waiting for the next nightly run": len(self.choice.waiting),
            "failed": failed,
        }
        phrases = [f"{len(self.evaluated)} of {len(self.choice.new)} new checkpoints evaluated"]
        return "; ".join(
            phrases + [f"{number} {outcome}" for outcome, number in counts.items() if number]
        )


def log_to_mlflow(runs: Path, started: float, outcome: NightlyResult) -> None:
    """Write the result to the spool of the MLflow records."""
    spool = Spool(runs / DIRECTORY, tracking_uri(runs))
    spool.start_sender()
    name = time.strftime("gate %Y-%m-%d %H:%M", time.gmtime(started))
    night = spool.start_run(name, tags={"cloze.kind": "night"})
    new = len(outcome.choice.new)
    spool.params(night, {"new": new, "promoted": outcome.is_promoted, "why": outcome.why})
    for result in outcome.evaluated:
        tags = {
            "cloze.kind": "candidate",
            "cloze.fingerprint": result["key"],
            "cloze.run_name": result["run"],
        }
        run = spool.start_run(f"{result['run']} step {result['step']}", night, tags)
        metrics = {
            task: {score["metric"]: score["mean"], "deviation": score["deviation"]}
            for task, score in result["scores"].items()
        }
        if result["perplexity"] is not None:
            metrics["heldout_perplexity"] = result["perplexity"]
        spool.metrics(run, metrics, int(result["step"]))
        spool.end_run(run)
    spool.file(night, str(outcome.trend))
    spool.end_run(night)
    spool.close()


def remove_old_artifacts(directory: Path, before: float, labels: Collection[str]) -> list[str]:
    """Remove old artifacts of the suite and the links to them, unless the suite is running.

    Args:
        directory: run directory of the suite.
        before: Unix seconds; newer artifacts are kept.
        labels: labels of champions; their artifacts are kept for the next comparison.

    Returns:
        Names of the removed directories.
    """
    removed: list[str] = []
    if not directory.is_dir():
        return removed
    with suppress(UsageError), locked(str(directory)):  # UsageError: a user is running the suite
        paths = sorted(directory.glob("*@*"))
        for path in paths:
            if path.is_symlink() or any(label in path.name for label in labels):
                continue
            manifest = path / MANIFEST
            modified = (manifest if manifest.exists() else path).stat().st_mtime
            if path.is_dir() and modified < before:
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path.name)
        for path in paths:
            if path.is_symlink() and not path.exists():
                path.unlink()
    return removed
