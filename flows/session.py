"""A run from its parameters to its results: plan, then each node with display, slots and records.

The Prefect flows and the plain run share all of this; they differ in who calls `attempt`, and in which order.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from rich.console import Console
from rich.markup import escape

from flows.graph import begun, estimate, overrides, plan, record, schedule, stages
from flows.graph import config as configs
from flows.graph.demand import demand
from flows.launchers import retries, slots
from flows.tracking.node import NodeFacts, status_of
from flows.tracking.records import RunRecords
from flows.tracking.spool import FLUSH_SECONDS, STOP_SECONDS
from flows.views import terminal
from flows.views.instances import MOST_LINES
from flows.views.live import StageDisplay, live_lines
from pipeline.core.errors import Stopped
from pipeline.core.execute import Result
from pipeline.core.lock import locked
from pipeline.core.reporting import SILENT, Reporter


class RunParameters(BaseModel):
    """What a run is asked to do; the form that the Prefect UI shows."""

    model_config = ConfigDict(extra="forbid")

    config: str = Field(default="demo", description="A preset's name, or the path of a YAML file")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Config values by dotted key, such as pretrain.steps: 200, or nested"
    )
    start_from: list[str] = Field(
        default_factory=list,
        description="Run these nodes and all that need them, whatever is there; patterns such as finetune@*",
    )
    only: list[str] = Field(default_factory=list, description="Run these nodes alone; their inputs must be there")
    until: list[str] = Field(default_factory=list, description="Run these nodes and what they need, and nothing else")
    force: list[str] = Field(default_factory=list, description="Run these nodes again, whatever is there")

    @field_validator("overrides", mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        return overrides.nest(value) if isinstance(value, Mapping) else value

    @field_validator("start_from", "only", "until", "force", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value


class Session:
    """One start of a run. Use as a context manager, which holds the lease of the run's directory; `attempt` makes a node.

    Attributes:
        steps: the plan.
        results: the results so far, by node.
        failures: what nodes raised, by node.
    """

    def __init__(
        self,
        parameters: RunParameters,
        screen: Console | None = None,
        *,
        run_id: str | None = None,
        begun_steps: begun.BegunSteps | None = None,
        config: configs.RunConfig | None = None,
    ) -> None:
        """Args:
        run_id: names a run that other processes may try again; what it forces is forced once.
        begun_steps: what earlier tries in this process have begun.
        config: the config, where it is not to be read from what the parameters name.
        """
        self.parameters = parameters
        self.config = config or configs.load(parameters.config, parameters.overrides)
        place = self.directory / begun.DIRECTORY / f"{run_id}.json" if run_id else None
        self.begun = begun_steps or begun.BegunSteps(place)
        self.steps = plan.plan(
            self.config,
            start=parameters.start_from,
            only=parameters.only,
            until=parameters.until,
            force=parameters.force,
            begun=self.begun.fingerprints,
        )
        self.screen = screen or terminal.console()
        self.results: dict[str, Result] = {}
        self.failures: dict[str, BaseException] = {}
        self.records: RunRecords | None = None
        self.record: record.RunRecord | None = None
        self.machine = slots.machine()
        self._lines = live_lines(self.screen)
        self._stop = threading.Event()
        self._held = contextlib.ExitStack()
        self._run_id = run_id
        self._tries: dict[str, retries.Tries] = {}

    @property
    def directory(self) -> Path:
        return plan.run_directory(self.config)

    @functools.cached_property
    def estimates(self) -> Mapping[str, estimate.Estimate]:
        """What each node will take."""
        return estimate.estimates(self.steps, plan.runs_directory())

    @property
    def nothing_to_do(self) -> bool:
        return all(step.cached for step in self.steps)

    def step(self, name: str) -> plan.Step:
        """The step of that node."""
        return next(step for step in self.steps if step.name == name)

    def rest(self) -> Session:
        """A session of the same run that does what this one has left undone, and forces nothing twice."""
        return Session(self.parameters, self.screen, begun_steps=self.begun, config=self.config)

    def __enter__(self) -> Session:
        runs = plan.runs_directory()
        with contextlib.ExitStack() as held:
            held.enter_context(locked(str(self.directory)))
            self.record = record.RunRecord(
                self.directory,
                self.config.name,
                self.steps,
                self.parameters.model_dump(mode="json"),
                self.config.values,
                {name: found.as_json() for name, found in self.estimates.items()},
            )
            if not self.nothing_to_do:
                self.records = RunRecords(runs)
                self.records.begin(self.config.name, self.config.values, self.config.dump(), run_id=self._run_id)
            held.enter_context(self._lines)
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self.record is not None
        self.stop()
        with self._held:
            self._lines.stop()
            self.record.end(_state(error), _sentence(error))
            self._close_records(error)

    def _close_records(self, error: BaseException | None) -> None:
        if self.records is not None:
            self.records.end(status_of(error))
            for sentence in self.records.close(STOP_SECONDS if error is not None and _is_stop(error) else FLUSH_SECONDS):
                self.screen.print(f"[yellow]{escape(sentence)}[/]")

    def seconds_left(self, name: str) -> float | None:
        """Of a node that runs; None where nobody knows."""
        left: float | None = self.record.content["nodes"][name].get("seconds_left") if self.record else None
        return left

    @property
    def stopping(self) -> bool:
        """Whether the nodes that run were asked to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask every node that runs to end: trainings with a checkpoint."""
        self._stop.set()

    def skip(self, step: plan.Step, cause: str) -> None:
        """A step cannot be made, for the node `cause` before it failed."""
        assert self.record is not None
        self.record.node(step.name, record.SKIPPED, error=f"{cause} failed")
        self.screen.print(f"[yellow]–[/] [bold]{step.name:<9}[/] {'skipped':>12}  needs {cause}")

    def attempt(self, step: plan.Step, attempt: int = 1, also: Reporter = SILENT) -> Result:
        """Make one node: wait for its slots, then run it with its live line, its records and its line in the results.

        Args:
            attempt: the number of this try, from 1.
            also: hears of the node's progress, too.

        Raises what the stage raises, which is also kept in `failures`.
        """
        assert self.record is not None
        try:
            result = self._made(step, attempt, also)
        except BaseException as error:
            self.failures[step.name] = error
            stopped = isinstance(error, (Stopped, KeyboardInterrupt))
            self.record.node(step.name, record.STOPPED if stopped else record.FAILED, error=_sentence(error))
            raise
        self.failures.pop(step.name, None)
        self.results[step.name] = result
        headline = dict(result.manifest.summary.get("metrics") or {})
        self.record.node(step.name, record.CACHED if result.cached else record.FINISHED, metrics=headline, error=None)
        if not result.cached or len(self.steps) <= MOST_LINES:
            self.screen.print(terminal.done_line(result, step.name))
        return result

    def _made(self, step: plan.Step, attempt: int, also: Reporter) -> Result:
        assert self.record is not None
        facts = _facts(step)
        if step.cached:
            result = plan.run_step(step)
            if self.records is not None:
                self.records.finished(facts, result)
            return result
        assert self.records is not None
        execution = self.tries(step).execution
        wanted = demand(step.node.stage, execution, self.machine)
        self.record.node(step.name, record.WAITING, attempt=attempt)
        with slots.taken(
            wanted, self.machine, self.config.name, step.name, self._stop.is_set, lambda: self._told_waiting(step)
        ) as devices:
            self.record.node(step.name, record.RUNNING)
            given: dict[str, Any] = {"devices": devices} if devices else {}
            if execution.cpus and not execution.threads:
                given["threads"] = max(1, execution.cpus // execution.processes)
            with (
                StageDisplay(step.name, self.screen, self._lines) as display,
                self.records.node(facts, _Shown(step, self, display, also)) as told,
            ):
                result = plan.run_step(step, execution.model_copy(update=given), told)
                self.records.finished(facts, result, told)
        return result

    def _told_waiting(self, step: plan.Step) -> None:
        if not self.screen.is_terminal:
            self.screen.print(f"{time.strftime('%H:%M:%S')} {step.name} waits for a slot …")

    def tries(self, step: plan.Step) -> retries.Tries:
        """What came of the node's tries so far."""
        return self._tries.setdefault(step.name, retries.Tries(step.node.execution))

    def may_pass(self, step: plan.Step, error: BaseException) -> bool:
        """Whether another try of the node may end otherwise. Asked once for each failure."""
        gpus: tuple[str, ...] | None = None
        if self.machine.gpus and step.node.execution.device != "cpu":
            self.machine = slots.machine()  # one may be lost
            gpus = self.machine.gpus
        return not self._stop.is_set() and self.tries(step).may_pass(error, gpus)

    def make(self, step: plan.Step) -> Result:
        """`attempt`, again and again as the config says."""
        attempt, execution = 1, step.node.execution
        while True:
            try:
                return self.attempt(step, attempt)
            except Exception as error:
                if attempt > execution.retries or not self.may_pass(step, error):
                    raise
                seconds = retries.delay(attempt, execution.retry_seconds)
                self.screen.print(
                    f"[yellow]{step.name} failed[/] ({escape(str(_sentence(error)))}); try {attempt + 1} in {seconds:.0f} s"
                )
                attempt += 1
                if self._stop.wait(seconds):
                    raise


class _Shown(Reporter):
    """What a node reports, in its live line and in the run's record."""

    def __init__(self, step: plan.Step, session: Session, display: Reporter, also: Reporter) -> None:
        assert session.record is not None
        self.step, self.session, self.display, self.also, self.record = step, session, display, also, session.record

    def begin(self, build_id: str) -> None:
        self.session.begun.add(self.step.fingerprint)
        self.also.begin(build_id)

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self.display.progress(done, total, unit, figures)
        self.record.progress(self.step.name, done, total, unit, figures)
        self.also.progress(done, total, unit, figures)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.display.metrics(values)
        self.also.metrics(values)

    def grace(self, seconds: float) -> None:
        self.record.facts(self.step.name, grace_seconds=seconds)
        self.also.grace(seconds)

    def stop_asked(self) -> bool:
        return self.session._stop.is_set()


def _facts(step: plan.Step) -> NodeFacts:
    """What MLflow is told of a node."""
    node = step.node
    parallel = stages.stage(node.stage).parallel
    return NodeFacts(
        name=node.name,
        stage=node.stage,
        section=node.section,
        config=node.config,
        fingerprint=step.fingerprint,
        artifact=step.artifact,
        inputs=step.inputs,
        place=node.values,
        world_size=node.execution.processes * node.execution.nodes if parallel else 1,
    )


def _state(error: BaseException | None) -> str:
    if error is None:
        return record.FINISHED
    return record.CANCELLED if _is_stop(error) else record.FAILED


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, Stopped) or not isinstance(error, Exception)


def _sentence(error: BaseException | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return "stopped before it had anything to save; run again"
    return schedule.sentence(error)


def run_plain(session: Session) -> Mapping[str, Result]:
    """Run without Prefect."""
    with session:
        schedule.run_in_order(session.steps, session.make, skipped=session.skip, stop=session.stop)
        session.begun.forget()
    return session.results
