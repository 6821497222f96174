"""What came of a night, for the terminal, for `--json` and for the flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flows.night.gate import Decision
from flows.night.journal import Champion
from flows.night.looking import Choice, Found


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a night.

    Attributes:
        evaluated: the lines of the journal.
        gone: checkpoints that their training removed before they were read.
        errors: what nodes raised, by node.
        notes: sentences for who reads on.
    """

    choice: Choice
    evaluated: list[dict[str, Any]] = field(default_factory=list)
    gone: list[Found] = field(default_factory=list)
    errors: dict[str, BaseException] = field(default_factory=dict)
    decision: Decision | None = None
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
        """The gate's sentence; without a candidate, why there was none."""
        return self.decision.why if self.decision else self.told

    @property
    def summary(self) -> str:
        """One line: how much there was, and what the gate said."""
        return f"{self.told}; {self.decision.why}" if self.decision else self.told

    @property
    def promoted_one(self) -> bool:
        return self.decision is not None and self.decision.promoted

    def sentence(self, failed: int) -> str:
        """How much there was, and what became of it. Args: failed: checkpoints whose evaluation failed."""
        if not self.choice.new:
            return "Nothing new: no checkpoint has come"
        parts = [f"{len(self.evaluated)} of {len(self.choice.new)} new checkpoints evaluated"]
        for number, what in (
            (len(self.choice.passed), "passed over, as neither the newest of their training nor milestones"),
            (len(self.gone), "removed by their training before they could be read"),
            (len(self.choice.waiting), "waiting for the next night"),
            (failed, "failed"),
        ):
            parts += [f"{number} {what}"] if number else []
        return "; ".join(parts)
