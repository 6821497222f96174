"""A nightly run: find new checkpoints, run the suite, apply the promotion gate, write the journal.

It holds the lease of `RUNS/.night`, so runs never overlap, and pins the checkpoints, so no training
prunes them. The next run reuses what a killed one has built, by fingerprint. Nights that were
missed are made up in one run: the suite and the gate see the checkpoints of all of them, and the
journal gets a line for each night.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cloze.core import places, storage
from cloze.core.accounts import share
from cloze.core.artifacts.checkpoints import pinned
from cloze.core.errors import ClozeError, DataError, NotFiniteError, StoppedError, UsageError
from cloze.core.figures import goodness, is_finite
from cloze.flows.nightly import discovery, journal, missed, promotion_gate, registration, result
from cloze.flows.nightly.discovery import CheckpointInfo, CheckpointSelection
from cloze.flows.nightly.evaluation_results import Scores, gather
from cloze.flows.nightly.journal import NIGHT, Champion, Journal
from cloze.flows.nightly.missed import NO_SCHEDULE, Schedule
from cloze.flows.nightly.promotion_gate import PromotionDecision
from cloze.flows.nightly.result import NightlyResult, log_to_mlflow, remove_old_artifacts
from cloze.flows.nightly.suite import AXIS, CHAMPION, PRETRAIN, SCORE, Suite
from cloze.flows.run import retention
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.views import terminal

PREVIEWED = "key", "run", "step", "path", "written", "milestone", "newest"
PIN_ATTEMPTS = 3  # a training may prune a checkpoint before it is pinned


class NightlyRun:
    """A nightly run; a context manager that holds the lease and pins the checkpoints."""

    def __init__(
        self,
        suite: Suite,
        since: str | None = None,
        screen: Console | None = None,
        schedule: Schedule = NO_SCHEDULE,
    ) -> None:
        """Find new checkpoints, or those of the nights missed since then (`parse_since`)."""
        self.suite, self.settings = suite, suite.settings
        share(runs := places.runs_directory())
        self.runs = runs
        self.journal = Journal(self.runs)
        self.started = time.time()
        self.since: float | None = None
        if since is not None:
            self.since = discovery.parse_since(since, self.started, self.settings.timezone)
            if self.since > self.started:
                raise UsageError(f"since ({since!r}) is in the future; give a date that has been")
        self.schedule = schedule
        self.screen = screen or terminal.console()
        self.outcome = NightlyResult(choice=self.choose())
        self.candidates: dict[str, CheckpointInfo] = {}  # by label
        self.champion_label: str | None = None
        self.broken_champion = ""  # why it is replaced without a comparison
        self.subjects: dict[str, Mapping[str, str]] = {}  # artifacts by stage, by label
        self._pins = contextlib.ExitStack()

    def choose(self) -> CheckpointSelection:
        """Return the new checkpoints and the selection to evaluate."""
        existing = [
            item
            for item in discovery.find_checkpoints(self.runs)
            if any(fnmatchcase(item.run, pattern) for pattern in self.settings.run_patterns)
        ]
        if self.since is not None:
            return missed.choose(
                existing, self.journal, self.settings, self.schedule, self.since, self.started
            )
        return discovery.choose(
            existing,
            self.journal.seen(),
            checkpoints=self.settings.checkpoints,
            limit=self.settings.limit,
            failures=self.journal.failures(),
        )

    def __enter__(self) -> NightlyRun:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.journal.lease())
            # A training may prune between the listing and the pin; then it is listed again.
            for attempt in range(1, PIN_ATTEMPTS + 1):
                with contextlib.ExitStack() as pins:
                    selected = self._pin_selection(pins)
                    if not self.outcome.pruned or attempt == PIN_ATTEMPTS:
                        stack.push(pins.pop_all())
                        break
            self.set_subjects(selected)
            if self.champion_label is not None:
                with contextlib.suppress(DataError):  # a user is removing the champion's files
                    stack.enter_context(pinned(self.subjects[self.champion_label][PRETRAIN]))
            self._pins = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._pins.close()

    def _pin_selection(self, pins: contextlib.ExitStack) -> list[CheckpointInfo]:
        """Select checkpoints again and pin them; return those that still exist."""
        self.outcome.choice, self.outcome.pruned = self.choose(), []
        selected = []
        for item in self.outcome.choice.selected:
            try:
                pins.enter_context(pinned(item.path))
                selected.append(item)
            except DataError:
                self.outcome.pruned.append(item)
        return selected

    def set_subjects(self, selected: Iterable[CheckpointInfo]) -> None:
        """Set the suite's subjects: the selected checkpoints, and the champion if it exists."""
        reigning = self.journal.champion()
        self.candidates = {
            discovery.label(item.run, item.step, item.key): item
            for item in selected
            if reigning is None or item.key != reigning.key
        }
        self.subjects = {
            label: {PRETRAIN: item.path, **item.made_from}
            for label, item in self.candidates.items()
        }
        self.champion_label = None
        if reigning is not None and self.candidates:
            path = journal.champion_path(self.journal, reigning)
            if path is None:
                self._warn(
                    f"the files of the champion {reigning.checkpoint} are gone, so no candidate "
                    f"is compared with it; `cloze champion --rollback` restores the previous one"
                )
            else:
                self.champion_label = discovery.label(reigning.run, reigning.step, reigning.key)
                self.subjects = {of: {**own, CHAMPION: path} for of, own in self.subjects.items()}
                self.subjects[self.champion_label] = {PRETRAIN: path, **reigning.made_from}

    def session(self) -> RunSession:
        """Return the run session of the suite on every subject."""
        suite = self.suite
        parameters = RunParameters(config=suite.reference, overrides=dict(suite.overrides))
        return RunSession(parameters, self.screen, config=suite.config(self.subjects))

    def finish(self, session: RunSession | None) -> NightlyResult:
        """Score, decide, write journal, registry and trend page; `session`: None if nothing ran."""
        outcome = self.outcome
        previous = self.journal.champion()
        scores, failed = self._scores(session) if session is not None else ({}, {})
        if self.broken_champion and self.champion_label:
            del failed[self.champion_label]
        ready = {
            label: scores[label] for label in self.candidates if label in {*scores} - {*failed}
        }
        if self.champion_label in failed and not self.broken_champion:
            waiting = (*outcome.choice.waiting, *(self.candidates[label] for label in ready))
            outcome.choice, ready = replace(outcome.choice, waiting=waiting), {}
            self._warn(
                f"the champion was not evaluated ({failed.pop(self.champion_label)}), so no "
                f"candidate is compared with it; the next nightly run does that again"
            )
        promoted = self._promote(previous, scores, ready) if ready else None
        outcome.evaluated = [
            _journal_entry(self.candidates[label], label_scores)
            for label, label_scores in ready.items()
        ]
        outcome.champion = promoted or previous
        outcome.message = outcome.describe_checkpoints(len(failed))
        # Before the registry: the journal decides, and MLflow's alias follows it.
        line = self._journal_line(failed, promoted)
        for part in [line] if self.since is None else missed.split(line, outcome.choice):
            self.journal.append(part)
        outcome.trend = str(result.write_trend(self.journal, self.settings.timezone))
        if ready or (outcome.champion is not None and self.journal.version() is None):
            self._update_registry(ready)
        if session is not None:
            log_to_mlflow(self.runs, self.started, outcome, self.suite.project)
            self._remove_old_artifacts(session.config.directory)
        if self.settings.clean_after_days is not None:
            self._remove_unneeded(self.settings.clean_after_days)
        return outcome

    def _promote(
        self, before: Champion | None, scores: Mapping[str, Scores], ready: Mapping[str, Scores]
    ) -> Champion | None:
        """Apply the gate to the evaluated candidates; return the new champion, if any."""
        outcome = self.outcome
        written = {name: self.candidates[name].written for name in ready}
        check = partial(self.settings.check_limits, candidates=len(ready))
        limits = {name: check(own.paths) for name, own in ready.items()}
        ready = {name: own for name, own in ready.items() if limits[name][0]} or ready
        if before is None or self.broken_champion:

            def rank(name: str) -> tuple[bool, int, float, float, str]:
                """With equal scores, the newest."""
                own, is_measured = ready[name], is_finite(ready[name].mean)
                return is_measured, len(own.values), goodness(own.mean), written[name], name

            label, reason = max(ready, key=rank), self.broken_champion or "the first champion"
            reason = f"{reason}, so there is no comparison"
            if not (wins := is_finite(ready[label].mean)):
                reason = "no candidate has a score"
            outcome.decision = PromotionDecision(wins=wins, reason=reason, limits=limits[label])
        else:
            champion_scores = scores.get(self.champion_label or "")
            label, outcome.decision = promotion_gate.choose(
                champion_scores.answers if champion_scores else {},
                {name: label_scores.answers for name, label_scores in ready.items()},
                written,
                {name: limits[name] for name in ready},
                confidence=self.settings.confidence,
                promote_if=self.settings.promote_if[SCORE],
            )
        outcome.candidate = self.candidates[label].key
        if not outcome.decision.promoted:
            return None
        promoted = journal.as_champion(
            self.candidates[label], ready[label].hundredths(), outcome.decision.why
        )
        # Before the journal names it: its training may prune the checkpoint at any time.
        journal.keep_champion_files(self.journal, promoted)
        return promoted

    def _remove_old_artifacts(self, directory: Path) -> None:
        nights = self.journal.nights()
        starts = sorted({each["started"] for each in nights if each["results"] or each["failed"]})
        if len(starts) > self.settings.keep_nights:
            champions = [
                change.champion for change in self.journal.changes()[-journal.RETAINED_CHAMPIONS :]
            ]
            labels = {discovery.label(item.run, item.step, item.key) for item in champions}
            remove_old_artifacts(directory, starts[-self.settings.keep_nights], labels)

    def _remove_unneeded(self, days: float) -> None:
        """Remove what no run needs, as `cloze clean --delete --unused-days DAYS` does."""
        champions = journal.champion_checkpoints(self.journal)
        found = retention.survey(self.runs, champions, unused_days=days)
        unneeded = [stored for stored in found if not stored.needed_for]
        retention.remove(self.runs, unneeded, champions, unused_days=days)

    def _scores(self, session: RunSession) -> tuple[dict[str, Scores], dict[str, str]]:
        """Return scores and error messages by checkpoint label.

        A checkpoint that was pruned meanwhile is added to `outcome.pruned` and is no failure.
        """
        candidates = self.candidates.items()
        removed = [label for label, item in candidates if not storage.exists(item.path)]
        self.outcome.pruned += [self.candidates.pop(label) for label in removed]
        failed: dict[str, str] = {}
        for name, error in session.failures.items():
            label = str(session.step(name).node.values.get(AXIS, ""))
            if label not in removed:
                self.outcome.errors[name] = error
                failed.setdefault(label, f"{name}: {error}")
                if label == self.champion_label and isinstance(error, NotFiniteError):
                    self.broken_champion = f"the champion's figures are not finite ({name})"
        return gather(
            (session.step(name).node, result.artifact) for name, result in session.results.items()
        ), failed

    def _journal_line(self, failed: Mapping[str, str], promoted: Champion | None) -> dict[str, Any]:
        outcome = self.outcome
        failed_keys = {
            item.key: failed[label] for label, item in self.candidates.items() if label in failed
        }
        # These do not count as seen, so the next night takes them again.
        again = {*failed_keys, *(item.key for item in outcome.choice.waiting)}
        return {
            "kind": NIGHT,
            "started": self.started,
            "ended": time.time(),
            "seen": [item.key for item in outcome.choice.new if item.key not in again],
            "results": outcome.evaluated,
            "candidate": outcome.candidate,
            "why": outcome.why,
            "champion": asdict(promoted) if promoted else None,
            "failed": failed_keys,
            "gone": [item.key for item in outcome.pruned],
            "errors": len(outcome.errors),
            "by": journal.user_on_host(),
        }

    def _update_registry(self, ready: Mapping[str, Scores]) -> None:
        """Set the alias and log the scores. An error becomes a warning; the next run retries."""
        from cloze.flows.tracking.mlflow_writer import Registry

        try:
            registry = Registry(self.runs, project=self.suite.project)
            registration.sync_alias(self.journal, registry)
            for label, scores in ready.items():
                registration.log_scores(registry, self.candidates[label], scores.hundredths())
        except ClozeError as error:
            self._warn(registration.alias_warning(error, self.journal))

    def _warn(self, message: str) -> None:
        self.outcome.warnings.append(message)
        self.screen.print(f"[yellow]{escape(message)}[/]")


def nightly_run(
    suite: Suite,
    *,
    since: str | None = None,
    schedule: Schedule = NO_SCHEDULE,
    scheduled_start: float | None = None,
    run: Callable[[RunSession], object] = run_plain,
    screen: Console | None = None,
) -> NightlyResult:
    """Do one nightly run, from discovery to the trend page.

    Args:
        since: make up the nights that were missed since then, by `schedule`. Without a schedule,
            the time since then is one night.
        scheduled_start: Unix seconds. If a successful run started later, this one does
            nothing, so only one of several missed runs works, and a failed one can be repeated.
        run: runs the session's nodes; it may raise errors that are also in `RunSession.failures`.

    Raises:
        UsageError: another nightly run is in progress, or the suite or `since` is invalid.
        StoppedError: interrupted; the next run reuses what is built.
    """
    with NightlyRun(suite, since, screen, schedule) as night:
        if scheduled_start is not None and any(
            # not of a clock that was ahead, and not a night before that was made up since
            scheduled_start <= missed.time_of(entry) <= night.started and not entry.get("errors")
            for entry in night.journal.nights()
        ):
            night.outcome.message = "Nothing to do: a later nightly run has succeeded already"
            night.outcome.champion = night.journal.champion()
            return night.outcome
        if not night.candidates:
            return night.finish(None)
        session = night.session()
        try:
            run(session)
        except StoppedError:
            raise
        except Exception:
            # Failures of nodes are in the session, and the results of the other nodes count.
            if not session.failures:
                raise
        return night.finish(session)


def preview(
    suite: Suite, since: str | None = None, schedule: Schedule = NO_SCHEDULE
) -> dict[str, Any]:
    """Return what a nightly run would do, for `cloze nightly --dry-run`; changes nothing."""
    night = NightlyRun(suite, since, schedule=schedule)
    choice, reigning = night.outcome.choice, night.journal.champion()
    night.set_subjects(choice.selected)
    steps = night.session().steps if night.candidates else []
    return {
        "new": [{name: getattr(item, name) for name in PREVIEWED} for item in choice.new],
        "chosen": [item.key for item in choice.selected],
        "waiting": [item.key for item in choice.waiting],
        "passed": [item.key for item in choice.skipped],
        "why_passed": choice.why_skipped,
        "given_up": [item.key for item in choice.given_up],
        "why_given_up": choice.why_given_up,
        "nights": {key: missed.format_time(due, suite.settings.timezone)
                   for key, due in choice.nights.items()},
        "about": choice.about,
        "limit": suite.settings.limit,
        "nodes": [
            {
                "name": step.name, "stage": step.node.stage, "why": step.reason,
                "cached": step.cached, "seconds": step.last_seconds,
            }
            for step in steps
        ],
        "champion": asdict(reigning) if reigning else None,
    }  # fmt: skip


def _journal_entry(checkpoint: CheckpointInfo, scores: Scores) -> dict[str, Any]:
    return {
        "key": checkpoint.key, "run": checkpoint.run, "step": checkpoint.step,
        "training": checkpoint.key.partition("/")[0][:12], "written": checkpoint.written,
        "scores": scores.as_json(), "perplexity": scores.perplexity,
    }  # fmt: skip
