"""What came of kills: counts and times, and the lines that tell them."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What came of kills, by the moment: how many, how many of them ended as the
    undisturbed run.
    """

    name: str
    killed: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    resumed: list[float] = field(default_factory=list)  # seconds from a kill to the next step
    useful: int = 0  # steps of the runs' results
    done: int = 0  # steps that were run for them, those twice counted twice
    wall: float = 0.0
    undisturbed: float = 0.0  # seconds of the undisturbed run

    def rows(self) -> list[str]:
        """Lines of a table in Markdown."""
        found = [
            f"| {self.name}, {kind} | {self.killed[kind]} | {self.equal[kind]} |"
            for kind in sorted(self.killed)
        ]
        return [
            *found,
            f"| **{self.name}, all** | **{self.killed.total()}** | **{self.equal.total()}** |",
        ]

    def words(self) -> list[str]:
        """Goodput, and how soon it goes on."""
        told = []
        runs = self.killed.total()
        if self.wall and runs:
            share = 100 * self.undisturbed * runs / self.wall
            told.append(
                f"{self.name}: {share:.0f} % of the wall time is what undisturbed runs take "
                f"({self.undisturbed:.1f} s each)."
            )
        if self.done:
            told.append(
                f"{self.name}: {self.useful} useful steps of {self.done} that were run "
                f"({100 * self.useful / self.done:.0f} %)."
            )
        if self.resumed:
            middle, longest = statistics.median(self.resumed), max(self.resumed)
            told.append(
                f"{self.name}: from a kill to the next step {middle:.1f} s (median), {longest:.1f} "
                f"s (longest)."
            )
        return told
