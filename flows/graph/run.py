"""A run from its parameters to its results: plan, then each stage with display and records.

The Prefect flow and the plain run share all of this; they differ in how one stage's function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from flows.graph import config as configs
from flows.graph import plan
from flows.tracking.spool import MetricsTail, Spool, tracking_uri
from flows.views import terminal
from pipeline.core.errors import Stopped
from pipeline.core.stage import Result

StageName = Literal["corpus", "vocab", "dataset", "pretrain", "finetune", "evaluate", "report"]
EXPERIMENT = "cloze"
METRICS_FILE = "metrics.jsonl"
NOT_METRICS = ("step", "time")


class RunParameters(BaseModel):
    """What a run is asked to do; the form that the Prefect UI shows."""

    model_config = ConfigDict(extra="forbid")

    config: str = Field(default="demo", description="A preset's name, or the path of a YAML file")
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Config values by dotted key, such as pretrain.steps: 200"
    )
    start_from: StageName | None = Field(default=None, description="Run this stage and all after it, whatever is there")
    only: StageName | None = Field(default=None, description="Run this stage alone; its inputs must be there")
    force: list[StageName] = Field(default_factory=list, description="Run these stages again, whatever is there")


class Session:
    """One run. Use as a context manager; `run_one` runs a step.

    Attributes:
        steps: the plan.
        results: the results so far, in order.
    """

    def __init__(self, parameters: RunParameters, screen: Console | None = None) -> None:
        import json

        overrides = [f"{key}={json.dumps(value)}" for key, value in parameters.overrides.items()]
        self.config = configs.load(parameters.config, overrides)
        self.steps = plan.plan(self.config, start=parameters.start_from, only=parameters.only, force=parameters.force)
        self.screen = screen or terminal.console()
        self.results: list[Result] = []
        self.spool: Spool | None = None
        self._parent = ""

    @property
    def directory(self) -> Path:
        return plan.run_directory(self.config)

    @property
    def nothing_to_do(self) -> bool:
        return all(step.cached for step in self.steps)

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

    def run_one(self, step: plan.Step) -> Result:
        """Run one step, with its live line, its child run in MLflow and its line in the results."""
        assert self.spool is not None
        run = self.spool.start_run(step.name, self._parent, {"cloze.kind": "stage", "cloze.fingerprint": step.fingerprint})
        self.spool.params(run, step.config.model_dump(mode="json"))
        tail = MetricsTail(Path(step.artifact) / METRICS_FILE)
        result: Result | None = None
        try:
            with terminal.StageDisplay(step.name, self.screen) as display:

                def report(done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
                    display(done, total, unit, figures)
                    self._pass_on(run, tail)

                result = plan.run_step(step, self.config, report)
        except BaseException as error:
            self._pass_on(run, tail)
            self.spool.end_run(run, _status(error))
            raise
        self._pass_on(run, tail)
        manifest = result.manifest
        self.spool.metrics(run, {"seconds": result.seconds, **manifest.summary})
        self.spool.metrics(run, {"count": {key.replace("/", "."): n for key, n in manifest.counters.items()}})
        report_file = manifest.summary.get("report")
        if report_file:
            self.spool.file(self._parent, str(Path(step.artifact).resolve() / report_file))
        self.spool.end_run(run)
        self.results.append(result)
        self.screen.print(terminal.done_line(result))
        return result

    def _pass_on(self, run: str, tail: MetricsTail) -> None:
        """Trainers append their metrics to a file; what has come since goes to the spool with its own times."""
        assert self.spool is not None
        for line in tail.read():
            values = {key: value for key, value in line.items() if key not in NOT_METRICS}
            stamp = int(line["time"] * 1000) if "time" in line else None
            self.spool.metrics(run, values, step=int(line.get("step", 0)), time_ms=stamp)


def _status(error: BaseException | None) -> str:
    if error is None:
        return "FINISHED"
    return "KILLED" if isinstance(error, (Stopped, KeyboardInterrupt)) else "FAILED"


def run_session(session: Session, call: Callable[[plan.Step, Callable[[plan.Step], Result]], Any]) -> Sequence[Result]:
    """Run all steps of an entered session; `call(step, function)` calls the function, in a task or straight."""
    for step in session.steps:
        call(step, session.run_one)
    return session.results


def run_plain(session: Session) -> Sequence[Result]:
    """Run without Prefect."""
    with session:
        return run_session(session, lambda step, function: function(step))
