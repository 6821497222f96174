"""Result of a nightly run: for the terminal, the flow, MLflow and the disk.

MLflow gets a run with the decision and the trend page, with a child run for each checkpoint's
scores. They go through the spool, so nothing waits for a server. The suite's session records its
own nodes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core.artifacts.artifact import MANIFEST
from cloze.core.artifacts.lock import locked
from cloze.core.errors import UsageError
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.journal import Champion
from cloze.flows.nightly.promotion_gate import PromotionDecision
from cloze.flows.tracking.spool import DIRECTORY, EXPERIMENT, Spool, tracking_uri


@dataclass(slots=True, kw_only=True)
class NightlyResult:
    """Result of a nightly run.

    Attributes:
        evaluated: results as in the journal.
        gone: checkpoints that their training pruned before they were read.
        errors: errors by node.
        notes: warnings for the user.
    """

    choice: CheckpointSelection
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    gone: list[CheckpointInfo] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)
    decision: PromotionDecision | None = None
    candidate: str | None = None
    champion: Champion | None = None
    replaced: Champion | None = None
    notes: list[str] = field(default_factory=list)
    trend: str | None = None
    told: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "new": len(self.choice.new),
            "evaluated": self.evaluated,
            "waiting": [found.key for found in self.choice.waiting],
            "passed": len(self.choice.passed),
            "gone": [found.key for found in self.gone],
            "failed": {name: str(error) for name, error in self.errors.items()},
            "candidate": self.candidate,
            "promoted": self.promoted_one,
            "why": self.why,
            "told": self.told,
            "champion": self.champion.as_json() if self.champion else None,
            "notes": self.notes,
            "trend": self.trend,
        }

    @property
    def why(self) -> str:
        """The gate's explanation; without a candidate, the summary of the checkpoints."""
        return self.decision.why if self.decision else self.told

    @property
    def summary(self) -> str:
        """Summary line: numbers of checkpoints and the gate's explanation."""
        return f"{self.told}; {self.decision.why}" if self.decision else self.told

    @property
    def promoted_one(self) -> bool:
        return self.decision is not None and self.decision.promoted

    def sentence(self, failed: int) -> str:
        """Describe what happened to the checkpoints; `failed`: number of failed evaluations."""
        if not self.choice.new:
            return "Nothing new: no checkpoint has come"
        parts = [f"{len(self.evaluated)} of {len(self.choice.new)} new checkpoints evaluated"]
        for number, what in (
            (
                len(self.choice.passed),
                "passed over, as neither the newest of their training nor milestones",
            ),
            (len(self.gone), "removed by their training before they could be read"),
            (len(self.choice.waiting), "waiting for the next night"),
            (failed, "failed"),
        ):
            parts += [f"{number} {what}"] if number else []
        return "; ".join(parts)


def record(runs: Path, started: float, outcome: NightlyResult) -> None:
    """Write the result to the MLflow spool."""
    spool = Spool(runs / DIRECTORY, tracking_uri(runs), EXPERIMENT)
    spool.start_sender()
    name = time.strftime("gate %Y-%m-%d %H:%M", time.gmtime(started))
    night = spool.start_run(name, tags={"cloze.kind": "night"})
    new = len(outcome.choice.new)
    spool.params(night, {"new": new, "promoted": outcome.promoted_one, "why": outcome.why})
    for result in outcome.evaluated:
        tags = {
            "cloze.kind": "candidate",
            "cloze.fingerprint": result["key"],
            "cloze.run_name": result["run"],
        }
        run = spool.start_run(f"{result['run']} step {result['step']}", night, tags)
        figures = {
            task: {score["metric"]: score["mean"], "deviation": score["deviation"]}
            for task, score in result["scores"].items()
        }
        if result["perplexity"] is not None:
            figures["heldout_perplexity"] = result["perplexity"]
        spool.metrics(run, figures, int(result["step"]))
        spool.end_run(run)
    spool.file(night, str(outcome.trend))
    spool.end_run(night)
    spool.close()


def clear(directory: Path, before: float, labels: Collection[str]) -> list[str]:
    """Remove old artifacts of the suite and the links to them, unless the suite is running.

    Args:
        directory: run directory of the suite.
        before: Unix seconds; newer artifacts are kept.
        labels: labels of champions; their artifacts are kept for the next comparison.

    Returns:
        Names of the removed directories.
    """
    gone: list[str] = []
    if not directory.is_dir():
        return gone
    try:
        with locked(str(directory)):
            for path in sorted(directory.glob("*@*")):
                if (
                    path.is_symlink()
                    or not path.is_dir()
                    or any(label in path.name for label in labels)
                ):
                    continue
                mark = path / MANIFEST
                if (mark if mark.exists() else path).stat().st_mtime < before:
                    shutil.rmtree(path, ignore_errors=True)
                    gone.append(path.name)
            for link in directory.glob("*@*"):
                if link.is_symlink() and not link.exists():
                    link.unlink()
    except UsageError:  # a user is running the suite
        pass
    return gone
