"""A night: look, run the suite on what is new, let the best candidate through the gate, write down what came of it.

It holds the lease of `RUNS/.night`, so two nights never overlap, and each checkpoint that it reads, so that no training removes it
meanwhile. What a night that was killed has made is found by its fingerprint on the next one.
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

from flows.graph import plan
from flows.night import answers, champion, looking, recording, room, trend
from flows.night.gate import Decision, decide
from flows.night.journal import NIGHT, Champion, Journal
from flows.night.looking import Choice, Found
from flows.night.outcome import Outcome
from flows.night.suite import AXIS, Subject, Suite
from flows.session import RunParameters, Session, run_plain
from flows.views import terminal
from pipeline.core.checkpoints import held
from pipeline.core.errors import ClozeError, DataError, Stopped

if TYPE_CHECKING:
    from flows.tracking.registry import Registry

LOOKS = 3  # a training may remove what was found before it is held


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
        self.candidates: dict[str, Found] = {}  # by label
        self.reigning: str | None = None  # the champion's label
        self.subjects: dict[str, Subject] = {}
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
        chosen = list[Found]()
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
        self.take(chosen)
        if self.reigning is not None:
            with contextlib.suppress(DataError):  # somebody removes it by hand just now
                stack.enter_context(held(self.subjects[self.reigning].path))
        return []

    def take(self, chosen: Iterable[Found]) -> None:
        """What the suite runs on: the chosen ones, and the champion as far as its weights are there."""
        now = self.journal.champion()
        found = [item for item in chosen if now is None or item.key != now.key]
        self.subjects = {looking.label(item.run, item.step, item.key): _subject(item, item.path) for item in found}
        self.candidates = {looking.label(item.run, item.step, item.key): item for item in found}
        self.reigning = None
        if now is not None and found:
            path = champion.place(self.journal, now)
            if path is None:
                self._note(f"the champion's checkpoint {now.checkpoint} is gone, so nothing can be compared with it")
            else:
                self.reigning = looking.label(now.run, now.step, now.key)
                self.subjects[self.reigning] = _subject(now, path)

    @property
    def nothing(self) -> bool:
        """Whether there is no work."""
        return not self.candidates

    def session(self) -> Session:
        """The suite on every subject, as a run's session."""
        parameters = RunParameters(config=self.suite.reference, overrides=dict(self.suite.overrides))
        return Session(parameters, self.screen, config=self.suite.config(self.subjects))

    def finish(self, session: Session | None) -> Outcome:
        """Scores, decision, journal, registry and page. Args: session: that has run; None: there was nothing to run."""
        outcome, settings = self.outcome, self.settings
        before = self.journal.champion()
        scores, failed = self._scores(session) if session is not None else ({}, {})
        ready = {label: scores[label] for label in self.candidates if label in scores and label not in failed}
        promoted: Champion | None = None
        if ready:
            label = max(ready, key=lambda name: (ready[name].mean, self.candidates[name].written))  # of equal ones the newest
            found = self.candidates[label]
            outcome.candidate = found.key
            if before is None:
                outcome.decision = Decision(
                    promoted=True, why="promoted: the first one, with nobody to compare it with", left_out={}
                )
            else:
                known = scores[self.reigning].answers if self.reigning in scores else {}
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
        outcome.evaluated = [_line(item, scores[label]) for label, item in self.candidates.items() if label in ready]
        outcome.champion, outcome.replaced = promoted or before, before if promoted else None
        outcome.told = outcome.sentence(len(failed))
        self.journal.append(self._journal_line(failed, promoted))
        outcome.trend = str(trend.write(self.journal, settings.timezone))
        if ready or (outcome.champion is not None and self.journal.version() is None):
            self._ask_mlflow(lambda registry: self._tell(registry, ready))
        if session is not None:
            facts = {"new": len(outcome.choice.new), "promoted": outcome.promoted_one, "why": outcome.why}
            recording.record(self.runs, self.started, outcome.evaluated, facts, outcome.trend)
            self._make_room(session.directory)
        return outcome

    def _make_room(self, directory: Path) -> None:
        worked = [night["started"] for night in self.journal.nights() if night["results"] or night["failed"]]
        reigned = [change.champion for change in self.journal.changes()[-champion.KEPT :]]
        labels = {looking.label(one.run, one.step, one.key) for one in reigned}
        if len(worked) > self.settings.keep_nights:
            room.clear(directory, worked[-self.settings.keep_nights], labels)

    def _scores(self, session: Session) -> tuple[dict[str, answers.Scores], dict[str, str]]:
        """By label: the scores, and of what failed the sentence. What failed because its checkpoint went is told, and is no failure."""
        made = [(session.step(name).node, result.artifact) for name, result in session.results.items()]
        gone = [label for label, item in self.candidates.items() if not Path(item.path).exists()]
        self.outcome.gone += [self.candidates.pop(label) for label in gone]
        failed: dict[str, str] = {}
        for name, error in session.failures.items():
            label = str(session.step(name).node.values.get(AXIS, ""))
            if label not in gone:
                self.outcome.errors[name] = error
                failed.setdefault(label, f"{name}: {error}")
        return answers.gather(made), failed

    def _journal_line(self, failed: Mapping[str, str], promoted: Champion | None) -> dict[str, Any]:
        outcome = self.outcome
        broken = {item.key: failed[label] for label, item in self.candidates.items() if label in failed}
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
        """Call with the registry. What it does not answer is told, and done on the next night."""
        from flows.tracking.registry import Registry

        try:
            call(Registry(self.runs))
        except ClozeError as error:
            self._note(f"{champion.in_short(error)}; until it does, the champion is what {self.journal.path} says")

    def _tell(self, registry: Registry, ready: Mapping[str, answers.Scores]) -> None:
        champion.tell(self.journal, registry)
        for label, scores in ready.items():
            champion.log_scores(registry, self.candidates[label], scores.hundredths())

    def _note(self, sentence: str) -> None:
        self.outcome.notes.append(sentence)
        self.screen.print(f"[yellow]{escape(sentence)}[/]")


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
        due: when it was to begin (Unix seconds). If a night that began after that went well, this one does nothing, so that of
            several missed nights one is caught up with, and one that failed can be tried again.
        run: runs the session's steps; a failure may be raised, it is in `Session.failures` too.

    Raises:
        UsageError: another night is going on, or the suite does not fit.
        Stopped: it was interrupted; the next night goes on from what is made.
    """
    night = Night(wanted, since, screen)
    with night:
        if due is not None and any(line["started"] > due and not line.get("errors") for line in night.journal.nights()):
            night.outcome.told = "Nothing to do: a later night has looked already"
            night.outcome.champion = night.journal.champion()
            return night.outcome
        if night.nothing:
            return night.finish(None)
        session = night.session()
        try:
            run(session)
        except Stopped:
            raise
        except Exception:
            if not session.failures:
                raise
        return night.finish(session)


def _subject(item: Found | Champion, path: str) -> Subject:
    return Subject(path=path, made_from=item.made_from)


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
