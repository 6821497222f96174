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
from flows.tracking.node import status_of
from flows.tracking.records import NodeFacts, RunRecords
from flows.views import terminal
from flows.views.live import StageDisplay
from pipeline.core.errors import UsageError, did_you_mean
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
        self.records: RunRecords | None = None
        self._run_id = run_id

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
        self.records = RunRecords(plan.runs_directory())
        sections = {name: section.identity() for name, section in self.config.sections.items()}
        self.records.begin(self.config.name, self.config.dump(), sections, run_id=self._run_id)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        assert self.records is not None
        self.records.end(status_of(error))
        for sentence in self.records.close():
            self.screen.print(f"[yellow]{escape(sentence)}[/]")

    def attempt(self, step: plan.Step) -> Result:
        """Run one step, and keep the error that it ends with, if any."""
        try:
            return self.run_one(step)
        except BaseException as error:
            self.failure = error
            raise

    def run_one(self, step: plan.Step) -> Result:
        """Run one step, with its live line, its child run in MLflow if it is made, and its line in the results."""
        assert self.records is not None
        facts = self._facts(step)
        with (
            StageDisplay(step.name, self.screen) as display,
            self.records.node(facts, _Begun(display, self.begun, step.fingerprint)) as record,
        ):
            result = plan.run_step(step, self.config, record)
            self.records.finished(facts, result, record)
        self.results.append(result)
        self.screen.print(terminal.done_line(result))
        return result

    def _facts(self, step: plan.Step) -> NodeFacts:
        execution = self.config.execution
        return NodeFacts(
            name=step.name,
            stage=step.name,
            section=step.name,
            config=step.config,
            fingerprint=step.fingerprint,
            artifact=step.artifact,
            inputs=step.inputs,
            world_size=execution.processes * execution.nodes if stages.stage(step.name).parallel else 1,
        )


class _Begun(Reporter):
    """Remembers that a step was begun, and passes progress on."""

    def __init__(self, display: Reporter, steps: begun.BegunSteps, fingerprint: str) -> None:
        self._steps, self._fingerprint = steps, fingerprint
        self.progress = display.progress  # type: ignore[method-assign]

    def begin(self, build_id: str) -> None:
        self._steps.add(self._fingerprint)


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
