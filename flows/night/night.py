"""A night: look, run the suite on what is new, let the best candidate through the gate, write down what came of it.

It holds the lease of `RUNS/.night`, so two nights never overlap, and each checkpoint that it reads, so that no training removes it
meanwhile. What a night that was killed has made is found by its fingerprint on the next one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from flows.graph import plan
from flows.night import answers, champion, looking, mlflow, trend
from flows.night.gate import Decision, decide
from flows.night.journal import NIGHT, Champion, Journal
from flows.night.looking import Choice, Found
from flows.night.suite import AXIS, Subject, Suite
from flows.session import RunParameters, Session, run_plain
from flows.views import terminal
from pipeline.core.checkpoints import held
from pipeline.core.errors import ClozeError, DataError

if TYPE_CHECKING:
    from flows.tracking.registry import Registry

LOOKS = 3  # a training may remove what was found before it is held
CHAMPION_LABEL = "champion"


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
    def promoted_one(self) -> bool:
        return self.decision is not None and self.decision.promoted


class Night:
    """One night, as a context manager: inside it the lease and the checkpoints are held."""

    def __init__(self, wanted: Suite, since: str | None = None, screen: Console | None = None) -> None:
        """Args: since: look at everything that was written after that, seen or not; see `looking.parse_since`."""
        self.suite, self.settings = wanted, wanted.settings
        self.runs = plan.runs_directory()
        self.journal = Journal(self.runs)
        self.started = time.time()
        self.since = None if since is None else looking.parse_since(since, self.started, self.settings.timezone)
        self.screen = screen or terminal.console()
        self.outcome = Outcome(choice=self.choose())
        self.subjects: dict[str, Found | Champion] = {}
        self._held = contextlib.ExitStack()

    def choose(self) -> Choice:
        """What is new, and what of it is evaluated."""
        found = [item for item in looking.look(self.runs) if any(fnmatchcase(item.run, run) for run in self.settings.runs)]
        given_up = {item.key for item in found if self.journal.failures(item.key) >= self.settings.tries}
        return looking.choose(
            [item for item in found if item.key not in given_up],
            self.journal.seen(),
            which=self.settings.which,
            limit=self.settings.limit,
            since=self.since,
        )

    def __enter__(self) -> Night:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.journal.lease())
            if self.outcome.choice.chosen:
                self._ask_mlflow(self._adopt)
            for look in range(LOOKS):
                gone = self._hold(stack, last=look == LOOKS - 1)
                if not gone:
                    break
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _adopt(self, registry: Registry) -> None:
        found = champion.adopt(self.journal, registry)
        if found is not None:
            self._note(f"{found.why}; it is the champion now")

    def _hold(self, stack: contextlib.ExitStack, last: bool) -> list[Found]:
        """Hold what is chosen and the champion. Returns what was gone before that."""
        self.outcome.choice, gone = self.choose(), list[Found]()
        now, chosen = self.journal.champion(), list[Found]()
        with contextlib.ExitStack() as trying:
            for item in self.outcome.choice.chosen:
                try:
                    trying.enter_context(held(item.path))
                    chosen.append(item)
                except DataError:
                    gone.append(item)
            if gone and not last:
                return gone
            stack.push(trying.pop_all())
        self.outcome.gone = gone
        self.subjects = dict(looking.labels(item for item in chosen if now is None or item.key != now.key))
        path = champion.place(self.journal, now) if now is not None else None
        if now is not None and chosen:
            if path is None:
                self._note(f"the champion's checkpoint {now.checkpoint} is gone; it cannot be compared with")
            else:
                with contextlib.suppress(DataError):
                    stack.enter_context(held(path))
                self.subjects[CHAMPION_LABEL] = now
        return []

    @property
    def nothing(self) -> bool:
        """Whether there is no work."""
        return not any(label != CHAMPION_LABEL for label in self.subjects)

    def session(self) -> Session:
        """The suite on every subject, as a run's session."""
        subjects = {}
        for label, item in self.subjects.items():
            path = item.path if isinstance(item, Found) else champion.place(self.journal, item)
            subjects[label] = Subject(path=str(path), made_from=item.made_from)
        parameters = RunParameters(config=self.suite.reference, overrides=dict(self.suite.overrides))
        return Session(parameters, self.screen, config=self.suite.config(subjects))

    def finish(self, session: Session | None) -> Outcome:
        """Scores, decision, journal, registry and page. Args: session: that has run; None: there was nothing to run."""
        outcome, settings = self.outcome, self.settings
        before = self.journal.champion()
        scores, failed = self._scores(session) if session is not None else ({}, {})
        ready = {
            label: scores[label]
            for label in self.subjects
            if label in scores and label not in failed and label != CHAMPION_LABEL
        }
        promoted: Champion | None = None
        if ready:
            label = max(ready, key=lambda name: (ready[name].mean, name))
            found = self.subjects[label]
            assert isinstance(found, Found)
            outcome.candidate = found.key
            if before is None:
                outcome.decision = Decision(
                    promoted=True, why="promoted: the first one, with nobody to compare it with", left_out={}
                )
            else:
                known = scores[CHAMPION_LABEL].answers if CHAMPION_LABEL in scores else {}
                outcome.decision = decide(
                    known,
                    ready[label].answers,
                    level=settings.level,
                    resamples=settings.resamples,
                    seed=settings.seed,
                    need_better=settings.need == "better",
                )
            if outcome.decision.promoted:
                promoted = _champion(found, ready[label].hundredths(), outcome.decision.why)
                champion.keep(self.journal, promoted)
        outcome.evaluated = [
            _line(item, scores[label]) for label, item in self.subjects.items() if isinstance(item, Found) and label in ready
        ]
        outcome.champion, outcome.replaced = promoted or before, before if promoted else None
        outcome.told = self._sentence(failed)
        self.journal.append(self._journal_line(failed, promoted))
        outcome.trend = str(trend.write(self.journal, settings.timezone))
        if outcome.champion is not None and self.journal.version() is None:
            self._ask_mlflow(lambda registry: champion.tell(self.journal, registry))
        if session is not None:
            facts = {"new": len(outcome.choice.new), "promoted": outcome.promoted_one, "why": outcome.why}
            mlflow.record(self.runs, self.started, outcome.evaluated, facts, outcome.trend)
        return outcome

    def _scores(self, session: Session) -> tuple[dict[str, answers.Scores], dict[str, str]]:
        """By label: the scores, and of what failed the sentence. What failed since its checkpoint went is told, and is no failure."""
        made = [(session.step(name).node, result.artifact) for name, result in session.results.items()]
        failed: dict[str, str] = {}
        for step in session.steps:
            label = str(step.node.values.get(AXIS, ""))
            if step.name in session.results or not label:
                continue
            error, item = session.failures.get(step.name), self.subjects[label]
            if isinstance(item, Found) and not Path(item.path).exists():
                if item not in self.outcome.gone:
                    self.outcome.gone.append(item)
            elif error is not None:
                self.outcome.errors[step.name] = error
            failed.setdefault(label, f"{step.name}: {error or 'an input failed'}")
        return answers.gather(made), failed

    def _journal_line(self, failed: Mapping[str, str], promoted: Champion | None) -> dict[str, Any]:
        outcome = self.outcome
        keys = {label: item.key for label, item in self.subjects.items() if label != CHAMPION_LABEL}
        again = {keys[label] for label in failed if label in keys} | {item.key for item in outcome.choice.waiting}
        return {
            "kind": NIGHT,
            "started": self.started,
            "ended": time.time(),
            "seen": [item.key for item in outcome.choice.new if item.key not in again],
            "results": outcome.evaluated,
            "candidate": outcome.candidate,
            "why": outcome.why,
            "champion": promoted.as_json() if promoted else None,
            "failed": {keys[label]: sentence for label, sentence in failed.items() if label in keys},
            "gone": [item.key for item in outcome.gone],
        }

    def _ask_mlflow(self, call: Callable[[Registry], object]) -> None:
        """Call with the registry. What it does not answer is told, and done on the next night."""
        from flows.tracking.registry import Registry

        try:
            call(Registry(self.runs))
        except ClozeError as error:
            self._note(f"{error}; until it does, the champion is what {self.journal.path} says")

    def _note(self, sentence: str) -> None:
        self.outcome.notes.append(sentence)
        self.screen.print(f"[yellow]{escape(sentence)}[/]")

    def _sentence(self, failed: Mapping[str, str]) -> str:
        outcome = self.outcome
        parts = (
            [f"{len(outcome.evaluated)} of {len(outcome.choice.new)} new checkpoints evaluated"]
            if outcome.choice.new
            else ["Nothing new"]
        )
        since = f" since {_moment(self.since)}" if self.since is not None else ""
        if not outcome.choice.new:
            parts[0] += f"{since}: no checkpoint has come"
        if outcome.gone:
            parts.append(f"{len(outcome.gone)} removed by their training before they could be read")
        if outcome.choice.waiting:
            parts.append(f"{len(outcome.choice.waiting)} wait for the next night")
        if failed:
            parts.append(f"{len(failed)} failed")
        return "; ".join(parts)


def hold(
    wanted: Suite,
    *,
    since: str | None = None,
    due: float | None = None,
    run: Callable[[Session], object] = run_plain,
    screen: Console | None = None,
) -> Outcome:
    """Hold a night from looking to the trend page.

    Args:
        due: when it was to begin (Unix seconds). A night that began after that has looked already: then this one does nothing,
            so that of several missed nights one is caught up with.
        run: runs the session's steps; a failure may be raised, it is in `Session.failures` too.

    Raises:
        UsageError: another night is going on, or the suite does not fit.
    """
    night = Night(wanted, since, screen)
    with night:
        if due is not None and any(line["started"] > due for line in night.journal.nights()):
            night.outcome.told = "Nothing to do: a later night has looked already"
            night.outcome.champion = night.journal.champion()
            return night.outcome
        if night.nothing:
            return night.finish(None)
        session = night.session()
        try:
            run(session)
        except Exception:
            if not session.failures:
                raise
        return night.finish(session)


def preview(wanted: Suite, since: str | None = None) -> dict[str, Any]:
    """What a night would do; it holds and changes nothing."""
    night = Night(wanted, since)
    choice, now = night.outcome.choice, night.journal.champion()
    night.subjects = dict(looking.labels(item for item in choice.chosen if now is None or item.key != now.key))
    if now is not None and night.subjects and champion.place(night.journal, now):
        night.subjects[CHAMPION_LABEL] = now
    steps = [] if night.nothing else night.session().steps
    return {
        "new": [_found_json(item) for item in choice.new],
        "chosen": [item.key for item in choice.chosen],
        "waiting": [item.key for item in choice.waiting],
        "passed": [item.key for item in choice.passed],
        "nodes": [
            {"name": step.name, "stage": step.node.stage, "why": step.why, "cached": step.cached, "seconds": step.last_seconds}
            for step in steps
        ],
        "champion": now.as_json() if now else None,
    }


def _champion(found: Found, scores: Mapping[str, float], why: str) -> Champion:
    return Champion(
        key=found.key,
        checkpoint=found.path,
        run=found.run,
        step=found.step,
        build=found.build,
        made_from=dict(found.made_from),
        scores=scores,
        since=time.time(),
        why=why,
    )


def _line(found: Found, scores: answers.Scores) -> dict[str, Any]:
    training = found.key.partition("/")[0][:12]
    return {
        "key": found.key, "run": found.run, "training": training, "step": found.step, "written": found.written,
        "scores": scores.as_json(), "perplexity": scores.perplexity,
    }  # fmt: skip


def _found_json(found: Found) -> dict[str, Any]:
    return {
        "key": found.key, "run": found.run, "step": found.step, "path": found.path, "written": found.written,
        "milestone": found.milestone, "newest": found.newest,
    }  # fmt: skip


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
