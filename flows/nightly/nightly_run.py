"""A nightly run: find new checkpoints, run the suite, apply the promotion gate, write the journal.

It holds the lease of `RUNS/.night`, so runs never overlap, and pins the checkpoints, so no training
prunes them. The next run reuses what a killed one has built, by fingerprint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from cloze.core.artifacts.checkpoints import pinned
from cloze.core.errors import ClozeError, DataError, StoppedError
from cloze.flows.graph import plan
from cloze.flows.nightly import champion, discovery, evaluation_results, promotion_gate, trend
from cloze.flows.nightly.champion import as_champion
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.journal import NIGHT, Champion, Journal
from cloze.flows.nightly.promotion_gate import PromotionDecision
from cloze.flows.nightly.result import NightlyResult, clear, record
from cloze.flows.nightly.suite import AXIS, Candidate, Suite
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.views import terminal

if TYPE_CHECKING:
    from cloze.flows.tracking.model_registry import Registry

PIN_ATTEMPTS = 3  # a training may prune a checkpoint before it is pinned
MAX_ATTEMPTS = 3  # nightly runs in which an evaluation may fail; then the checkpoint is left out


class NightlyRun:
    """A nightly run; a context manager that holds the lease and pins the checkpoints."""

    def __init__(
        self, wanted: Suite, since: str | None = None, screen: Console | None = None
    ) -> None:
        """Find new checkpoints, or all written after `since`, see `discovery.parse_since`."""
        self.suite, self.settings = wanted, wanted.settings
        self.runs = plan.runs_directory()
        self.journal = Journal(self.runs)
        self.started = time.time()
        self.since = (
            None
            if since is None
            else discovery.parse_since(since, self.started, self.settings.timezone)
        )
        self.screen = screen or terminal.console()
        self.outcome = NightlyResult(choice=self.choose())
        self.candidates: dict[str, CheckpointInfo] = {}  # by label
        self.reigning: str | None = None  # the champion's label
        self.subjects: dict[str, Candidate] = {}
        self._held = contextlib.ExitStack()

    def choose(self) -> CheckpointSelection:
        """Return the new checkpoints and the selection to evaluate."""
        found = [
            item
            for item in discovery.find_checkpoints(self.runs)
            if any(fnmatchcase(item.run, run) for run in self.settings.run_patterns)
        ]
        failures = self.journal.failures()
        return discovery.choose(
            [item for item in found if failures[item.key] < MAX_ATTEMPTS],
            self.journal.seen(),
            checkpoints=self.settings.checkpoints,
            limit=self.settings.limit,
            since=self.since,
        )

    def __enter__(self) -> NightlyRun:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.journal.lease())
            for look in range(PIN_ATTEMPTS):
                gone = self._hold(stack, last=look == PIN_ATTEMPTS - 1)
                if not gone:
                    break
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _hold(self, stack: contextlib.ExitStack, last: bool) -> list[CheckpointInfo]:
        """Pin the selected checkpoints and the champion. Return those that were already gone."""
        self.outcome.choice, gone = self.choose(), list[CheckpointInfo]()
        chosen = list[CheckpointInfo]()
        with contextlib.ExitStack() as trying:
            for item in self.outcome.choice.chosen:
                try:
                    trying.enter_context(pinned(item.path))
                    chosen.append(item)
                except DataError:
                    gone.append(item)
            if gone and not last:
                return gone
            stack.push(trying.pop_all())
        self.outcome.gone = gone
        self.take(chosen)
        if self.reigning is not None:
            with contextlib.suppress(DataError):  # a user is removing it
                stack.enter_context(pinned(self.subjects[self.reigning].path))
        return []

    def take(self, chosen: Iterable[CheckpointInfo]) -> None:
        """Set the suite's subjects: the selected checkpoints, and the champion if it exists."""
        now = self.journal.champion()
        found = [item for item in chosen if now is None or item.key != now.key]
        self.subjects = {
            discovery.label(item.run, item.step, item.key): _subject(item, item.path)
            for item in found
        }
        self.candidates = {discovery.label(item.run, item.step, item.key): item for item in found}
        self.reigning = None
        if now is not None and found:
            path = champion.champion_path(self.journal, now)
            if path is None:
                self._note(
                    f"the champion's checkpoint {now.checkpoint} is gone, so nothing can be "
                    f"compared with it"
                )
            else:
                self.reigning = discovery.label(now.run, now.step, now.key)
                self.subjects[self.reigning] = _subject(now, path)

    @property
    def nothing(self) -> bool:
        """True if there is no checkpoint to evaluate."""
        return not self.candidates

    def session(self) -> RunSession:
        """Return the run session of the suite on every subject."""
        parameters = RunParameters(
            config=self.suite.reference, overrides=dict(self.suite.overrides)
        )
        return RunSession(parameters, self.screen, config=self.suite.config(self.subjects))

    def finish(self, session: RunSession | None) -> NightlyResult:
        """Score, decide, write journal, registry and trend page; `session`: None if nothing ran."""
        outcome, settings = self.outcome, self.settings
        before = self.journal.champion()
        scores, failed = self._scores(session) if session is not None else ({}, {})
        ready = {
            label: scores[label]
            for label in self.candidates
            if label in scores and label not in failed
        }
        promoted: Champion | None = None
        if ready:
            if before is None:
                label = max(
                    ready, key=lambda name: (ready[name].mean, self.candidates[name].written)
                )  # ties: the newest
                outcome.decision = PromotionDecision(
                    promoted=True,
                    why="promoted: the first one, with nobody to compare it with",
                    left_out={},
                )
            else:
                label, outcome.decision = promotion_gate.choose(
                    scores[self.reigning].answers if self.reigning in scores else {},
                    {name: own.answers for name, own in ready.items()},
                    confidence=settings.confidence,
                    promote_if=settings.promote_if,
                )
            found = self.candidates[label]
            outcome.candidate = found.key
            if outcome.decision.promoted:
                promoted = as_champion(found, ready[label].hundredths(), outcome.decision.why)
                champion.keep_champion_files(self.journal, promoted)
        outcome.evaluated = [
            _line(item, scores[label]) for label, item in self.candidates.items() if label in ready
        ]
        outcome.champion, outcome.replaced = promoted or before, before if promoted else None
        outcome.told = outcome.sentence(len(failed))
        self.journal.append(self._journal_line(failed, promoted))
        outcome.trend = str(trend.write(self.journal, settings.timezone))
        if ready or (outcome.champion is not None and self.journal.version() is None):
            self._ask_mlflow(lambda registry: self._tell(registry, ready))
        if session is not None:
            record(self.runs, self.started, outcome)
            self._make_room(session.directory)
        return outcome

    def _make_room(self, directory: Path) -> None:
        worked = [
            night["started"]
            for night in self.journal.nights()
            if night["results"] or night["failed"]
        ]
        reigned = [change.champion for change in self.journal.changes()[-champion.KEPT :]]
        labels = {discovery.label(one.run, one.step, one.key) for one in reigned}
        if len(worked) > self.settings.keep_nights:
            clear(directory, worked[-self.settings.keep_nights], labels)

    def _scores(
        self, session: RunSession
    ) -> tuple[dict[str, evaluation_results.Scores], dict[str, str]]:
        """Return scores and error messages by checkpoint label.

        A checkpoint that was pruned meanwhile is added to `outcome.gone` and is no failure.
        """
        made = [
            (session.step(name).node, result.artifact) for name, result in session.results.items()
        ]
        gone = [label for label, item in self.candidates.items() if not Path(item.path).exists()]
        self.outcome.gone += [self.candidates.pop(label) for label in gone]
        failed: dict[str, str] = {}
        for name, error in session.failures.items():
            label = str(session.step(name).node.values.get(AXIS, ""))
            if label not in gone:
                self.outcome.errors[name] = error
                failed.setdefault(label, f"{name}: {error}")
        return evaluation_results.gather(made), failed

    def _journal_line(self, failed: Mapping[str, str], promoted: Champion | None) -> dict[str, Any]:
        outcome = self.outcome
        broken = {
            item.key: failed[label] for label, item in self.candidates.items() if label in failed
        }
        again = {*broken, *(item.key for item in outcome.choice.waiting)}
        return {
            "kind": NIGHT,
            "started": self.started,
            "ended": time.time(),
            "seen": [item.key for item in outcome.choice.new if item.key not in again],
            "results": outcome.evaluated,
            "candidate": outcome.candidate,
            "why": outcome.why,
            "champion": promoted.as_json() if promoted else None,
            "failed": broken,
            "gone": [item.key for item in outcome.gone],
            "errors": len(outcome.errors),
        }

    def _ask_mlflow(self, call: Callable[[Registry], object]) -> None:
        """Call with the registry. Errors become a note; the next run tries again."""
        from cloze.flows.tracking.model_registry import Registry

        try:
            call(Registry(self.runs))
        except ClozeError as error:
            self._note(
                f"{champion.in_short(error)}; until it does, the champion is what "
                f"{self.journal.path} says"
            )

    def _tell(self, registry: Registry, ready: Mapping[str, evaluation_results.Scores]) -> None:
        champion.sync_alias(self.journal, registry)
        for label, scores in ready.items():
            champion.log_scores(registry, self.candidates[label], scores.hundredths())

    def _note(self, sentence: str) -> None:
        self.outcome.notes.append(sentence)
        self.screen.print(f"[yellow]{escape(sentence)}[/]")


def nightly_run(
    wanted: Suite,
    *,
    since: str | None = None,
    due: float | None = None,
    run: Callable[[RunSession], object] = run_plain,
    screen: Console | None = None,
) -> NightlyResult:
    """Do one nightly run, from discovery to the trend page.

    Args:
        due: scheduled start (Unix seconds). If a successful run started later, this one does
            nothing, so only one of several missed runs works, and a failed one can be repeated.
        run: runs the session's nodes; it may raise errors that are also in `RunSession.failures`.

    Raises:
        UsageError: another nightly run is in progress, or the suite is invalid.
        StoppedError: interrupted; the next run reuses what is built.
    """
    night = NightlyRun(wanted, since, screen)
    with night:
        if due is not None and any(
            line["started"] > due and not line.get("errors") for line in night.journal.nights()
        ):
            night.outcome.told = "Nothing to do: a later night has looked already"
            night.outcome.champion = night.journal.champion()
            return night.outcome
        if night.nothing:
            return night.finish(None)
        session = night.session()
        try:
            run(session)
        except StoppedError:
            raise
        except Exception:
            if not session.failures:
                raise
        return night.finish(session)


def preview(wanted: Suite, since: str | None = None) -> dict[str, Any]:
    """Return what a nightly run would do, for `cloze nightly --dry-run`; changes nothing."""
    night = NightlyRun(wanted, since)
    choice, now = night.outcome.choice, night.journal.champion()
    night.take(choice.chosen)
    steps = [] if night.nothing else night.session().steps
    return {
        "new": [
            {
                "key": item.key, "run": item.run, "step": item.step, "path": item.path,
                "written": item.written, "milestone": item.milestone, "newest": item.newest,
            }
            for item in choice.new
        ],
        "chosen": [item.key for item in choice.chosen],
        "waiting": [item.key for item in choice.waiting],
        "passed": [item.key for item in choice.passed],
        "nodes": [
            {
                "name": step.name, "stage": step.node.stage, "why": step.reason,
                "cached": step.cached, "seconds": step.last_seconds,
            }
            for step in steps
        ],
        "champion": now.as_json() if now else None,
    }  # fmt: skip


def _subject(item: CheckpointInfo | Champion, path: str) -> Candidate:
    return Candidate(path=path, made_from=item.made_from)


def _line(found: CheckpointInfo, scores: evaluation_results.Scores) -> dict[str, Any]:
    training = found.key.partition("/")[0][:12]
    return {
        "key": found.key, "run": found.run, "training": training, "step": found.step,
        "written": found.written,
        "scores": scores.as_json(), "perplexity": scores.perplexity,
    }  # fmt: skip
