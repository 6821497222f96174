"""What the nights have done: `RUNS/.night/nights.jsonl`, one JSON object a line, only ever appended to.

It is the truth about the champion; MLflow's alias follows it when MLflow answers. A line that a kill has torn is passed over.

    {"kind": "night", "started", "ended", "seen": [key], "results": [{"key", "run", "training", "step", "written", "scores", "perplexity"}],
     "candidate": key, "why", "champion": {…} who was promoted, or null, "failed": {key: sentence}, "gone": [key],
     "errors": number of nodes that failed}
    {"kind": "champion", "time", "champion": {…}, "version"}    MLflow's alias was moved by somebody else, and that counts
    {"kind": "rollback", "time", "why", "by"}        the champion's predecessor is champion again
    {"kind": "registered", "time", "key", "version"} MLflow knows of the champion

Times are Unix seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import UsageError
from pipeline.core.lock import LOCK, locked

DIRECTORY = ".night"  # below the runs
FILE = "nights.jsonl"
NIGHT, CHAMPION, ROLLBACK, REGISTERED = "night", "champion", "rollback", "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A champion, as it was promoted.

    Attributes:
        key: the checkpoint's; see `flows.night.looking`.
        checkpoint: where it lay.
        build: the id of its training's making; empty: not known.
        scores: by task, in hundredths.
        since: Unix seconds.
        why: in one sentence.
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
    def told(self) -> str:
        """`demo step 200`."""
        return f"{self.run} step {self.step:,}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Who became champion, instead of whom, when and why."""

    time: float
    kind: str
    champion: Champion
    replaced: Champion | None
    why: str


class Journal:
    """The journal of a runs directory. Whoever appends holds its lease."""

    def __init__(self, runs: Path) -> None:
        self.directory = runs / DIRECTORY
        self.path = self.directory / FILE

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Be the only one who holds a night, or changes the champion.

        Raises:
            UsageError: somebody else does; who it is.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(str(self.directory)))
            except UsageError as error:
                with suppress(OSError):
                    holder = (self.directory / LOCK).read_text(encoding="utf-8").strip()
                    raise UsageError(f"a night is going on ({holder}); wait for its end, or stop it") from error
                raise
            yield

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines, oldest first."""
        return list(self._lines())

    def _lines(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().split(b"\n"):
                with suppress(ValueError):
                    content = json.loads(line)
                    if isinstance(content, dict) and "kind" in content:
                        yield content

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line, and wait until it is on the disk."""
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
        """The lines of all nights, those without work among them."""
        return [line for line in self._lines() if line["kind"] == NIGHT]

    def seen(self) -> set[str]:
        """The keys of all checkpoints that need no second look."""
        return {key for night in self.nights() for key in night["seen"]}

    def failures(self, key: str) -> int:
        """On how many nights the checkpoint's evaluation failed."""
        return sum(key in night["failed"] for night in self.nights())

    def changes(self) -> list[Change]:
        """All changes of champion, oldest first."""
        return [change for change, _ in self._reigns()]

    def champion(self) -> Champion | None:
        """The present one."""
        reigns = self._reigns()
        return reigns[-1][1][-1] if reigns else None

    def predecessor(self) -> Champion | None:
        """To whom a rollback leads."""
        reigns = self._reigns()
        return reigns[-1][1][-2] if reigns and len(reigns[-1][1]) > 1 else None

    def _reigns(self) -> list[tuple[Change, list[Champion]]]:
        """Each change with the champions below and with the present one after it; a rollback takes the top off."""
        found: list[tuple[Change, list[Champion]]] = []
        stack: list[Champion] = []
        for line in self._lines():
            before = stack[-1] if stack else None
            if line["kind"] in (NIGHT, CHAMPION) and line.get("champion"):
                now = Champion(**line["champion"])
                stack = [*stack, now]
                time, why = now.since, now.why
            elif line["kind"] == ROLLBACK and len(stack) > 1:
                stack = stack[:-1]
                time, why = float(line["time"]), str(line["why"])
            else:
                continue
            found.append((Change(time=time, kind=str(line["kind"]), champion=stack[-1], replaced=before, why=why), stack))
        return found

    def rollback(self, why: str, by: str, time: float) -> Champion:
        """Make the champion's predecessor champion again.

        Raises:
            UsageError: there is none.
        """
        before = self.predecessor()
        if before is None:
            raise UsageError(f"there was no champion before this one in {self.path}; a night must have replaced one first")
        self.append({"kind": ROLLBACK, "time": time, "why": why, "by": by})
        return before

    def version(self) -> int | None:
        """The champion's in MLflow; None: MLflow was not told of it yet."""
        version: int | None = None
        for line in self._lines():
            if line["kind"] == REGISTERED:
                version = int(line["version"])
            elif line["kind"] == ROLLBACK or line.get("champion"):
                version = line.get("version")
        return version
