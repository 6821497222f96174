"""The journal of nightly runs: `RUNS/.night/nights.jsonl`, one JSON object a line, append-only.

It alone names the champion; MLflow's alias follows when MLflow answers. A line torn by a kill is
skipped.

    {"kind": "night", "started", "ended", "seen": [key], "results": [{"key", "run", "training",
    "step", "written", "scores", "perplexity"}],
     "candidate": key, "why", "champion": the promoted {…} or null, "failed": {key: message},
     "gone": [key], "errors": number of nodes that failed, "by": who ran the night,
     "scheduled": when it was due, if made up}
    {"kind": "champion", "time", "champion": {…}, "by"}  a user promoted a checkpoint by hand
    {"kind": "rollback", "time", "why", "by"}        the champion's predecessor is champion again
    {"kind": "registered", "time", "key", "version"} MLflow has registered the champion

Times are Unix seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from cloze.core import storage
from cloze.core.accounts import open_unlinked, user_name
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.checkpoints import STEPS, is_checkpoint
from cloze.core.artifacts.claim import BUILDING, Claim
from cloze.core.artifacts.lock import holder, locked
from cloze.core.errors import DataError, UsageError
from cloze.core.links import linked
from cloze.core.records import NUMBER, Fields, is_record, read_record
from cloze.flows.nightly.discovery import STAGE, CheckpointInfo, find_checkpoints

DIRECTORY = ".night"  # below the runs directory
FILE = "nights.jsonl"
NIGHT, CHAMPION, ROLLBACK, REGISTERED = "night", "champion", "rollback", "registered"
# A line's fields, which another kind, or an earlier version, may lack.
EMPTY: Mapping[str, Any] = {
    "started": 0.0, "ended": 0.0, "scheduled": 0.0, "time": 0.0, "seen": [], "results": [],
    "failed": {}, "errors": 0, "candidate": None, "why": "", CHAMPION: None, "version": None,
}  # fmt: skip
FIELDS: Fields = {
    **dict.fromkeys(("started", "ended", "scheduled", "time"), NUMBER), "seen": list,
    "results": list, "failed": dict, "why": str, CHAMPION: (dict, NoneType),
    "version": (int, NoneType),
}  # fmt: skip
CHAMPION_FIELDS: Fields = {"key": str, "checkpoint": str, "run": str, "step": int}


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
    by: str = ""

    @property
    def reason(self) -> str:
        """Why, and who asked for it."""
        return f"{self.why} ({self.by})" if self.by else self.why


class Journal:
    """The journal of a runs directory; a writer must hold its lease."""

    def __init__(self, runs: Path) -> None:
        self.directory = runs / DIRECTORY
        self.path, self.trend = self.directory / FILE, self.directory / "trend.html"

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
                if own := holder(str(self.directory)):
                    raise UsageError(
                        f"a nightly run is in progress ({own}); wait until it ends, or stop it"
                    ) from error
                raise
            yield

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield all complete lines, oldest first.

        Raises:
            DataError: a line is damaged; skipped, it could be the champion's.
        """
        with suppress(FileNotFoundError):
            for number, line in enumerate(self.path.read_bytes().split(b"\n"), 1):
                if content := read_record(line, {"kind": str}):
                    content = {**EMPTY, **content}
                    own = content[CHAMPION]
                    is_whole = is_record(content, FIELDS)
                    if not is_whole or (own and not is_record(own, CHAMPION_FIELDS)):
                        raise DataError(
                            f"{self.path}, line {number}: a field of this {content['kind']} is "
                            f"missing or damaged; restore the line from a backup, or remove it"
                        )
                    yield content

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line and sync it to disk."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+", opener=open_unlinked) as stream:
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

    def evaluated(self) -> set[str]:
        """Return the keys of all checkpoints that have results, and the champion's."""
        champion = self.champion()
        keys = {result["key"] for night in self.nights() for result in night["results"]}
        return keys | ({champion.key} if champion else set())

    def failures(self) -> Counter[str]:
        """Return the number of failed evaluations by checkpoint key."""
        return Counter(key for night in self.nights() for key in night["failed"])

    def changes(self) -> list[Change]:
        """Return all changes of champion, oldest first."""
        return [change for change, _ in self._reigns()]

    def champions(self) -> list[Champion]:
        """Return the champions that rollbacks lead back to, the current one last."""
        reigns = self._reigns()
        return reigns[-1][1] if reigns else []

    def champion(self) -> Champion | None:
        """Return the current champion."""
        return next(reversed(self.champions()), None)

    def _reigns(self) -> list[tuple[Change, list[Champion]]]:
        """Return each change with the stack of champions after it; a rollback pops the top."""
        reigns: list[tuple[Change, list[Champion]]] = []
        stack: list[Champion] = []
        for line in self.lines():
            previous, kind = stack[-1] if stack else None, str(line["kind"])
            if kind in (NIGHT, CHAMPION) and line[CHAMPION]:
                known = Champion.__dataclass_fields__.keys() & line[CHAMPION].keys()
                stack = [*stack, Champion(**{name: line[CHAMPION][name] for name in known})]
                since, why = stack[-1].since, stack[-1].why
            elif kind == ROLLBACK and len(stack) > 1:
                stack = stack[:-1]
                since, why = float(line["time"]), str(line["why"])
            else:
                continue
            by = str(line.get("by", "")) if kind == ROLLBACK else ""  # else `why` has it
            change = Change(
                time=since, kind=kind, champion=stack[-1], replaced=previous, why=why, by=by
            )
            reigns.append((change, stack))
        return reigns

    def version(self) -> int | None:
        """Return the champion's version in MLflow; None: not registered yet."""
        version: int | None = None
        for line in self.lines():
            if line["kind"] == REGISTERED:
                version = line["version"]
            elif line["kind"] == ROLLBACK or line[CHAMPION]:
                # A new champion has no version until MLflow has registered it.
                version = line["version"]
        return version


# The champion's files, kept next to the journal.

COPIES = "champions"  # subdirectory of the journal's directory
RETAINED_CHAMPIONS = 3  # champions whose files are kept for rollbacks
TRAINING = "training"  # folder of a checkpoint that only resuming needs


def champion_path(journal: Journal, champion: Champion) -> str | None:
    """Return the champion's checkpoint or else the kept copy; None: both are gone."""
    for path in (champion.checkpoint, str(_copy(journal, champion))):
        if path and is_checkpoint(path):
            return path
    return None


def keep_champion_files(journal: Journal, champion: Champion) -> None:
    """Link the champion's files next to the journal, and remove those of older champions.

    The training may prune its checkpoint; hard links use no extra space until then. Files on an
    object store or another file system are copied. The copy's claim names the training, so the copy
    has the checkpoint's fingerprint and cached results stay valid. The claim is written first:
    after a kill, a copy without a claim would never get one.
    """
    target = _copy(journal, champion)
    if is_checkpoint(champion.checkpoint) or target.exists():
        fingerprint = fingerprints.artifact_fingerprint_of(champion.key)
        claim = Claim(stage=STAGE, fingerprint=fingerprint, build=champion.build)
        storage.write_bytes(
            str(target.parent.parent / BUILDING), json.dumps(asdict(claim)).encode()
        )
    if is_checkpoint(champion.checkpoint) and not target.exists():
        temporary = target.with_name(f"_{target.name}.{os.getpid()}")
        for name in storage.list_files(champion.checkpoint):
            if not name.startswith(f"{TRAINING}/"):
                source = storage.join(champion.checkpoint, name)
                artifact.link_file(source, str(temporary / name))
        # One rename: a kill leaves no half copy that looks like a checkpoint.
        temporary.rename(target)
    current = {
        _copy(journal, change.champion) for change in journal.changes()[-RETAINED_CHAMPIONS:]
    } | {target}
    copies = (journal.directory / COPIES).resolve()
    for path in [*copies.glob(f"*/{STEPS}/*"), *copies.glob("*")]:
        if not any(path == copy or path in copy.parents for copy in current):
            shutil.rmtree(path, ignore_errors=True)


def _copy(journal: Journal, champion: Champion) -> Path:
    """Return the directory for the copy of the champion's files; it may not exist."""
    name = fingerprints.subpath_of(champion.key).rpartition("/")[2] or "checkpoint"
    return (journal.directory / COPIES / champion.key[:12]).resolve() / STEPS / name


def as_champion(checkpoint: CheckpointInfo, scores: Mapping[str, float], why: str) -> Champion:
    """Return a checkpoint as the new champion; `scores` are hundredths by task."""
    return Champion(
        key=checkpoint.key,
        checkpoint=checkpoint.path,
        run=checkpoint.run,
        step=checkpoint.step,
        build=checkpoint.build,
        made_from=dict(checkpoint.made_from),
        scores=scores,
        since=time.time(),
        why=why,
    )


def champion_checkpoints(journal: Journal) -> list[str]:
    """Return the checkpoints of the last champions, where they are now."""
    changes = journal.changes()[-RETAINED_CHAMPIONS:]
    return [path for change in changes if (path := champion_path(journal, change.champion))]


def promote(journal: Journal, checkpoint: str, why: str) -> Champion:
    """Make a checkpoint champion by hand, without the promotion gate.

    Args:
        checkpoint: directory of a checkpoint below the runs directory, or of a training, for its
            newest checkpoint.

    Raises:
        UsageError: the checkpoint does not exist or is the champion, or a nightly run is in
            progress.
    """
    path, runs = linked(checkpoint), journal.directory.parent
    path = path if storage.has_scheme(path) else str(Path(path).resolve())
    candidates = [
        item
        for item in find_checkpoints(runs)
        if item.path == path or (item.training == path and item.newest)
    ]
    if not candidates:
        raise UsageError(
            f"{checkpoint} is not a complete checkpoint of a pretraining in {runs}; give one, such "
            f"as RUN/pretrain"
        )
    with journal.lease():
        candidate, reigning = candidates[0], journal.champion()
        if reigning is not None and reigning.key == candidate.key:
            raise UsageError(
                f"{reigning.describe} is the champion already; give another checkpoint"
            )
        results = (result for night in journal.nights() for result in night["results"])
        measured = [result["scores"] for result in results if result["key"] == candidate.key]
        last = measured[-1] if measured else {}
        scores = {task: round(100 * score["mean"], 2) for task, score in last.items()}
        promoted = as_champion(candidate, scores, f"{why} ({user_on_host()})")
        keep_champion_files(journal, promoted)
        line = {"time": promoted.since, "champion": asdict(promoted), "by": user_on_host()}
        journal.append({"kind": CHAMPION, **line})
    return promoted


def roll_back(journal: Journal, why: str) -> Champion:
    """Make the champion's predecessor champion again.

    Raises:
        UsageError: there is no predecessor, or a nightly run is in progress.
    """
    with journal.lease():
        champions = journal.champions()
        if len(champions) < 2:
            raise UsageError(
                f"{journal.path} has no champion before the current one, so there is nothing to "
                f"roll back to; promote a checkpoint instead"
            )
        journal.append({"kind": ROLLBACK, "time": time.time(), "why": why, "by": user_on_host()})
    return champions[-2]


def user_on_host() -> str:
    """Return who asks for a change, for the journal: `user@host`."""
    return f"{user_name()}@{socket.gethostname()}"
