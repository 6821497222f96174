"""The journal of nightly runs: `RUNS/.night/nights.jsonl`, one JSON object a line, append-only.

It alone names the champion; MLflow's alias follows when MLflow answers. A line torn by a kill is
skipped.

    {"kind": "night", "started", "ended", "seen": [key], "results": [{"key", "run", "training",
    "step", "written", "scores", "perplexity"}],
     "candidate": key, "why", "champion": the promoted {…} or null, "failed": {key: message},
     "gone": [key], "errors": number of nodes that failed}
    {"kind": "champion", "time", "champion": {…}}    a user promoted a checkpoint by hand
    {"kind": "rollback", "time", "why", "by"}        the champion's predecessor is champion again
    {"kind": "registered", "time", "key", "version"} MLflow has registered the champion

Times are Unix seconds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core.artifacts.lock import LOCK, locked
from cloze.core.errors import UsageError

DIRECTORY = ".night"  # below the runs directory
FILE = "nights.jsonl"
NIGHT, CHAMPION, ROLLBACK, REGISTERED = "night", "champion", "rollback", "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A champion at the time of its promotion.

    Attributes:
        key: key of the checkpoint; see `cloze.flows.nightly.discovery`.
        checkpoint: original directory.
        build: id of the training's build; empty: unknown.
        scores: score by task, in hundredths.
        since: Unix seconds.
        why: reason, in one sentence.
    """

    key: str
    checkpoint: str
    run: str
    step: int
    build: str = ""
    made_from: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    since: float = 0.0
    why: str = ""

    @property
    def describe(self) -> str:
        """Name for people: `demo step 200`."""
        return f"{self.run} step {self.step:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of champion."""

    time: float
    kind: str
    champion: Champion
    replaced: Champion | None
    why: str


class Journal:
    """The journal of a runs directory; a writer must hold its lease."""

    def __init__(self, runs: Path) -> None:
        self.directory = runs / DIRECTORY
        self.path = self.directory / FILE

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the exclusive right to do a nightly run or to change the champion.

        Raises:
            UsageError: another process holds it; the message names that process.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(str(self.directory)))
            except UsageError as error:
                with suppress(OSError):
                    holder = (self.directory / LOCK).read_text(encoding="utf-8").strip()
                    raise UsageError(
                        f"a nightly run is in progress ({holder}); wait until it ends, or stop it"
                    ) from error
                raise
            yield

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield all complete lines, oldest first."""
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().split(b"\n"):
                with suppress(ValueError):
                    content = json.loads(line)
                    if isinstance(content, dict) and "kind" in content:
                        yield content

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as stream:
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":  # a torn line: end it
                    stream.write(b"\n")
            stream.write(json.dumps(line).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def nights(self) -> list[dict[str, Any]]:
        """Return the lines of all nightly runs, including those without work."""
        return [line for line in self.lines() if line["kind"] == NIGHT]

    def seen(self) -> set[str]:
        """Return the keys of all checkpoints that need no second evaluation."""
        return {key for night in self.nights() for key in night["seen"]}

    def failures(self) -> Counter[str]:
        """Return the number of failed evaluations by checkpoint key."""
        return Counter(key for night in self.nights() for key in night["failed"])

    def changes(self) -> list[Change]:
        """Return all changes of champion, oldest first."""
        return [change for change, _ in self._reigns()]

    def champion(self) -> Champion | None:
        """Return the current champion."""
        reigns = self._reigns()
        return reigns[-1][1][-1] if reigns else None

    def _reigns(self) -> list[tuple[Change, list[Champion]]]:
        """Return each change with the stack of champions after it; a rollback pops the top."""
        reigns: list[tuple[Change, list[Champion]]] = []
        stack: list[Champion] = []
        for line in self.lines():
            previous = stack[-1] if stack else None
            if line["kind"] in (NIGHT, CHAMPION) and line.get("champion"):
                stack = [*stack, Champion(**line["champion"])]
                time, reason = stack[-1].since, stack[-1].why
            elif line["kind"] == ROLLBACK and len(stack) > 1:
                stack = stack[:-1]
                time, reason = float(line["time"]), str(line["why"])
            else:
                continue
            kind = str(line["kind"])
            change = Change(time=time, kind=kind, champion=stack[-1], replaced=previous, why=reason)
            reigns.append((change, stack))
        return reigns

    def rollback(self, why: str, by: str, time: float) -> Champion:
        """Make the champion's predecessor champion again.

        Raises:
            UsageError: there is no predecessor.
        """
        reigns = self._reigns()
        if not reigns or len(reigns[-1][1]) < 2:
            raise UsageError(
                f"{self.path} has no champion before the current one, so there is nothing to roll "
                f"back to; promote a checkpoint instead"
            )
        self.append({"kind": ROLLBACK, "time": time, "why": why, "by": by})
        return reigns[-1][1][-2]

    def version(self) -> int | None:
        """Return the champion's version in MLflow; None: not registered yet."""
        version: int | None = None
        for line in self.lines():
            if line["kind"] == REGISTERED:
                version = int(line["version"])
            elif line["kind"] == ROLLBACK or line.get("champion"):
                version = line.get("version")
        return version
