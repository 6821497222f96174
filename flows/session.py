"""A run from its parameters to its results: plan, then each stage with display and records.

The Prefect flow and the plain run share all of this; they differ in how one stage's function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from rich.console import Console
from rich.markup import escape

from flows.graph import begun, overrides, plan, stages
from flows.graph import config as configs
from flows.tracking.spool import EXPERIMENT, Spool, tracking_uri
from flows.views import terminal
from flows.views.live import StageDisplay
from pipeline.core.errors import Stopped, UsageError, did_you_mean
from pipeline.core.execute import Result
from pipeline.core.reporting import Reporter


def _known_stage(name: str) -> str:
    if name not in stages.TABLE:
        raise UsageError(f"unknown stage {name!r}; {did_you_mean(name, stages.TABLE)}")
    return name


def _choices(schema: dict[str, Any]) -> None:
    schema["enum"] = list(stages.TABLE)


# A stage of the table; its names are the choices of the form that the Prefect UI shows.
StageName = Annotated[str, AfterValidator(_known_stage), Field(json_schema_extra=_choices)]


class RunParameters(BaseModel):
    """What a run is asked to do; the form that the Prefect UI shows."""

    model_config = ConfigDict(extra="forbid")

    config: str = Field(default="demo", description="A preset's name, or the path of a YAML file")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Config values by dotted key, such as pretrain.steps: 200, or nested"
    )
    start_from: StageName | None = Field(default=None, description="Run this stage and all after it, whatever is there")
    only: StageName | None = Field(default=None, description="Run this stage alone; its inputs must be there")
    force: list[StageName] = Field(default_factory=list, description="Run these stages again, whatever is there")

    @field_validator("overrides", mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        return overrides.nest(value) if isinstance(value, Mapping) else value


class Session:
    """One run. Use as a context manager; `run_one` runs a step.

    Attributes:
        steps: the plan.
        results: the results so far, in order.
        failure: what a stage raised, if one did.
    """

    def __init__(
        self,
        parameters: RunParameters,
        screen: Console | None = None,
        *,
        run_id: str | None = None,
        begun_steps: begun.BegunSteps | None = None,
    ) -> None:
        """Args:
        run_id: names a run that other processes may try again; what it forces is forced once.
        begun_steps: what earlier tries in this process have begun.
        """
        self.parameters = parameters
        self.config = configs.load(parameters.config, parameters.overrides)
        place = self.directory / begun.DIRECTORY / f"{run_id}.json" if run_id else None
        self.begun = begun_steps or begun.BegunSteps(place)
        self.steps = plan.plan(
            self.config,
            start=parameters.start_from,
            only=parameters.only,
            force=parameters.force,
            begun=self.begun.fingerprints,
        )
        self.screen = screen or terminal.console()
        self.results: list[Result] = []
        self.failure: BaseException | None = None
        self.spool: Spool | None = None
        self._parent = ""

    @property
    def directory(self) -> Path:
        return plan.run_directory(self.config)

    @property
    def nothing_to_do(self) -> bool:
        return all(step.cached for step in self.steps)

    def rest(self) -> Session:
        """A session of the same run that does what this one has left undone, and forces nothing twice."""
        return Session(self.parameters, self.screen, begun_steps=self.begun)

    def __enter__(self) -> Session:
        runs = plan.runs_directory()
        self.spool = Spool(runs / ".tracking", tracking_uri(runs), EXPERIMENT)
        self.spool.start_sender()
        self._parent = self.spool.start_run(self.config.name, tags={"cloze.kind": "pipeline"})
        self.spool.params(self._parent, self.config.dump())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        assert self.spool is not None
        self.spool.end_run(self._parent, _status(error))
        if not self.spool.close():
            where = self.spool.directory
            self.screen.print(
                f"[yellow]MLflow at {self.spool.uri} did not take all records;[/] they wait in {where} for the next run"
            )
        refused = self.spool.refused()
        if refused:
            reason = next(iter(refused))
            self.screen.print(
                f"[yellow]MLflow refused {refused.total()} records[/] (the first: {escape(reason)}); they are set aside, `cloze doctor` lists them"
            )

    def attempt(self, step: plan.Step) -> Result:
        """Run one step, and keep the error that it ends with, if any."""
        try:
            return self.run_one(step)
        except BaseException as error:
            self.failure = error
            raise

    def run_one(self, step: plan.Step) -> Result:
        """Run one step, with its live line, its child run in MLflow if it is made, and its line in the results."""
        assert self.spool is not None
        with (
            StageDisplay(step.name, self.screen) as display,
            _Record(step, self.spool, self._parent, display, self.begun) as record,
        ):
            result = plan.run_step(step, self.config, record)
            record.result(result)
        report_file = result.manifest.summary.get("report")
        if report_file:
            self.spool.file(self._parent, str(Path(step.artifact).resolve() / report_file))
        self.results.append(result)
        self.screen.print(terminal.done_line(result))
        return result


class _Record(Reporter):
    """A stage's run in MLflow, from the moment that its directory is claimed; a cached stage has none. Shows progress on the way.

    The build id names the run, so a stage that was killed goes on in the run that it began.
    """

    def __init__(self, step: plan.Step, spool: Spool, parent: str, display: Reporter, steps: begun.BegunSteps) -> None:
        self.step, self.spool, self.parent, self.display, self.steps = step, spool, parent, display, steps
        self.run: str | None = None

    def begin(self, build_id: str) -> None:
        self.steps.add(self.step.fingerprint)
        tags = {"cloze.kind": "stage", "cloze.fingerprint": self.step.fingerprint}
        self.run = self.spool.start_run(self.step.name, self.parent, tags, run=build_id)
        self.spool.params(self.run, self.step.config.model_dump(mode="json"))

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self.display.progress(done, total, unit, figures)

    def metrics(self, values: Mapping[str, Any]) -> None:
        if self.run is not None:
            self.spool.line(self.run, values)

    def result(self, result: Result) -> None:
        """The figures of the finished artifact."""
        if self.run is not None:
            manifest = result.manifest
            self.spool.metrics(self.run, {"seconds": result.seconds, **manifest.summary})
            self.spool.metrics(self.run, {"count": {key.replace("/", "."): n for key, n in manifest.counters.items()}})

    def __enter__(self) -> _Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self.run is not None:
            self.spool.end_run(self.run, _status(error))


def _status(error: BaseException | None) -> str:
    if error is None:
        return "FINISHED"
    return "KILLED" if isinstance(error, (Stopped, KeyboardInterrupt)) else "FAILED"


def run_session(session: Session, call: Callable[[plan.Step, Callable[[plan.Step], Result]], Any]) -> Sequence[Result]:
    """Run all steps of an entered session; `call(step, function)` calls the function, in a task or straight."""
    for step in session.steps:
        call(step, session.attempt)
    session.begun.forget()
    return session.results


def run_plain(session: Session) -> Sequence[Result]:
    """Run without Prefect."""
    with session:
        return run_session(session, lambda step, function: function(step))
