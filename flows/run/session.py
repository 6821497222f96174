"""A run from its parameters to its results: plan, then each node with display, slots and records.

The Prefect flows and the plain run share this module; only the caller of `run_node` differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator
from rich.console import Console
from rich.markup import escape

from cloze.core import places, storage
from cloze.core.accounts import share
from cloze.core.artifacts.lock import holder, locked
from cloze.core.errors import UsageError, describe_os_error, is_stop, shell_command
from cloze.core.stages.execute import BuildResult
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.flows.graph import config as configs
from cloze.flows.graph import estimate, overrides, plan, schedule, stages
from cloze.flows.graph.command import CommandConfig
from cloze.flows.graph.schedule import resource_request
from cloze.flows.launch import host_setup
from cloze.flows.machine import retry_policy, slots
from cloze.flows.run import node_reporter, retention, source, status_file, status_writer, targets
from cloze.flows.run.node_reporter import NodeReporter
from cloze.flows.tracking.spool import URI, tracking_uri
from cloze.flows.views import terminal
from cloze.flows.views.live import StageDisplay, live_lines
from cloze.flows.views.terminal import MAX_LINES

if TYPE_CHECKING:  # commands without MLflow start faster
    from cloze.flows.tracking.run_logger import MlflowRunLogger


class RunParameters(BaseModel):
    """Parameters of a run, as its record keeps them.

    Attributes:
        config: name of a preset, or path of a YAML file.
        overrides: config values by dotted key, such as `pretrain.steps`, or nested.
        start_from, only, until, force: selected nodes; see `plan.plan`.
    """

    model_config = ConfigDict(extra="forbid")

    config: str = "demo"
    overrides: dict[str, Any] = {}
    start_from: list[str] = []
    only: list[str] = []
    until: list[str] = []
    force: list[str] = []

    @field_validator("overrides", mode="before")
    @classmethod
    def _nested(cls, value: Any) -> Any:
        return overrides.nest(value) if isinstance(value, Mapping) else value

    @field_validator("start_from", "only", "until", "force", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value


class RunSession:
    """One start of a run, or of a command, which is a run of one node.

    As a context manager it holds the lock of the run's directory. `run_node` builds a node.
    """

    def __init__(
        self,
        parameters: RunParameters,
        screen: Console | None = None,
        *,
        run_id: str | None = None,
        title: str | None = None,
        started_nodes: node_reporter.StartedNodes | None = None,
        config: configs.RunConfig | CommandConfig | None = None,
    ) -> None:
        """Plan the run.

        Args:
            screen: console for output; None: stderr's.
            run_id: id shared by retries in other processes; nodes are forced once per id.
            title: name in MLflow; None: the run's name and the time.
            started_nodes: nodes that earlier attempts in this process have started.
            config: config to use instead of the one that `parameters` names.
        """
        self.parameters = parameters
        self.config = config or configs.load(parameters.config, parameters.overrides)
        self.command = self.config if isinstance(self.config, CommandConfig) else None
        path = (
            self.config.directory / node_reporter.DIRECTORY / f"{run_id}.json" if run_id else None
        )
        self.started_nodes = started_nodes or node_reporter.StartedNodes(path)
        self.steps = self._plan()
        self.screen = screen or terminal.console()
        # results by node name, as far as nodes are complete
        self.results: dict[str, BuildResult] = {}
        self.failures: dict[str, BaseException] = {}  # exceptions by node name
        # exception that ended the session, for callers on the other side of Prefect
        self.error: Exception | None = None
        # final state and message of the record; None: taken from the exception
        self.ending: tuple[str, str] | None = None
        self.records: MlflowRunLogger | None = None
        self.record: status_writer.RunStatusFile | None = None
        self.machine = slots.machine()
        self._lines = None if self.command else live_lines(self.screen)
        self._is_verbose = terminal.has_flag("verbose")
        self._stop = threading.Event()
        self._resources = contextlib.ExitStack()  # lock and display, while the session is open
        self._run_id, self._title = run_id, title
        self._retry_policies: dict[str, retry_policy.RetryPolicy] = {}

    def _plan(self) -> list[plan.PlannedNode]:
        named = self.parameters.model_dump(include={"only", "until", "force"})
        named |= {"start": self.parameters.start_from, "started": self.started_nodes.fingerprints}
        return plan.plan(self.config, **named)

    @functools.cached_property
    def estimates(self) -> Mapping[str, estimate.Estimate]:
        """Cost estimates by node, for a plan that is shown."""
        return estimate.estimates(self.steps, places.runs_directory())

    @property
    def nothing_to_do(self) -> bool:
        return all(step.cached for step in self.steps)

    def explain(self, text: str) -> None:
        """Print the reason of a decision, with --verbose."""
        if self._is_verbose:
            self.screen.print(text, style="dim", markup=False, soft_wrap=True)

    def step(self, name: str) -> plan.PlannedNode:
        return next(step for step in self.steps if step.name == name)

    def remaining(self) -> RunSession:
        """Return a session that builds the rest of this run and forces no node twice."""
        started = self.started_nodes
        return RunSession(self.parameters, self.screen, started_nodes=started, config=self.config)

    def __enter__(self) -> RunSession:
        schedule.require_workers(self.steps)
        share(runs := places.runs_directory())
        is_transient = self.command is not None and self.command.is_transient
        is_unmade = is_transient or self.nothing_to_do
        if not is_transient:
            tracking_uri(runs)  # refuses an address before anything is made
        with contextlib.ExitStack() as resources:
            self._lock(resources)
            with retention.starts(runs):  # `cloze clean` waits, then keeps these
                if any(step.cached and not storage.exists(step.artifact) for step in self.steps):
                    self.steps = self._plan()
                self.record = status_writer.RunStatusFile(
                    self.config.directory,
                    self.config.name,
                    self.steps,
                    self.parameters.model_dump(mode="json"),
                    self.config.values,
                    self.started_nodes.fingerprints,
                    None if is_unmade else source.begin(self.config.directory, runs, self.screen),
                )
            self.records = self._open_logger()
            if self._lines is not None:
                resources.enter_context(self._lines)
            self._resources = resources.pop_all()
        return self

    def _lock(self, resources: contextlib.ExitStack) -> None:
        """Lock the run's directory; UsageError: it is held, or the name is not a run's."""
        name, runs, directory = self.config.name, places.runs_directory(), self.config.directory
        try:
            if self.command is None:
                runs.mkdir(parents=True, exist_ok=True)
                # of `a` and `a/b` at once, one is first
                with retention.starts(runs, retention.NAMES, shared=False):
                    targets.check_name(runs, name)
                    resources.enter_context(locked(str(directory)))
            else:
                resources.enter_context(locked(str(directory)))
        except UsageError as error:
            if self.command is None:
                raise UsageError(f"{error}{status_file.whose(directory, name)}") from error
            raise UsageError(
                f"{name} is being built by {holder(str(directory)) or 'another process'}; wait "
                f"until it ends, or stop it with {shell_command('cancel', name)}"
            ) from error

    def _open_logger(self) -> MlflowRunLogger | None:
        """Open the MLflow spool; for a command only if the environment names a server."""
        is_unlogged = self.command and (self.command.is_transient or not os.environ.get(URI))
        if self.nothing_to_do or is_unlogged:
            return None
        from cloze.flows.tracking.run_logger import MlflowRunLogger

        assert self.record is not None
        config, owner = self.config, self.record.content["owner"]
        try:
            logger = MlflowRunLogger(places.runs_directory(), config.project, owner)
        except OSError as error:  # records never stop a run
            reason = escape(describe_os_error(error, "records"))
            self.screen.print(f"[yellow]nothing of this run is recorded in MLflow: {reason}[/]")
            return None
        if isinstance(config, CommandConfig):
            logger.begin_single(f"{config.node.stage} {Path(config.name).name}")
        else:
            logger.begin(config.name, config.values, config.dump(), self._run_id, self._title)
        return logger

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self.record is not None
        self.stop()
        with self._resources:
            if self._lines is not None:
                self._lines.stop()
            if by := self.record.cancelled_by:
                self.screen.print(f"[yellow]cancelled by {escape(by)}[/]")
            ending = status_writer.final_state(error), status_writer.message(error)
            self.record.end(*(self.ending or ending))
            if self.records is not None:
                for warning in self.records.close(error):
                    self.screen.print(f"[yellow]{escape(warning)}[/]")

    def seconds_left(self, name: str) -> float | None:
        """Return the expected remaining seconds of a running node; None if unknown."""
        node: dict[str, float] = self.record.content["nodes"][name] if self.record else {}
        return node.get("seconds_left")

    @property
    def stopping(self) -> bool:
        """Report whether the running nodes were asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask every running node to stop; trainings save a checkpoint first."""
        self._stop.set()

    def skip(self, step: plan.PlannedNode, cause: str) -> None:
        """Record that a node is skipped because the node `cause` failed."""
        assert self.record is not None
        self.record.node(step.name, status_file.SKIPPED, error=f"{cause} failed")
        self.screen.print(f"[yellow]–[/] [bold]{step.name:<9}[/] {'skipped':>12}  needs {cause}")

    def run_node(
        self, step: plan.PlannedNode, attempt: int = 1, also: Reporter = NULL_REPORTER
    ) -> BuildResult:
        """Build one node: acquire slots, run the stage, show and record the result.

        Args:
            attempt: number of the attempt, from 1.
            also: additional reporter for the node's progress.

        Raises BaseException: the exception of the stage, which `failures` also keeps.
        """
        assert self.record is not None
        try:
            result = self._build(step, attempt, also)
        except BaseException as error:
            self.failures[step.name] = error
            state = status_file.STOPPED if is_stop(error) else status_file.FAILED
            before = self.record.content["nodes"][step.name]["state"]
            self.record.node(step.name, state, error=status_writer.message(error, step, before))
            raise
        self.failures.pop(step.name, None)
        self.results[step.name] = result
        metrics = dict(result.manifest.summary.get("metrics") or {})
        state = status_file.CACHED if result.cached else status_file.FINISHED
        self.record.node(step.name, state, metrics=metrics, error=None)
        if not result.cached or len(self.steps) <= MAX_LINES:
            shows_path = self._is_verbose if self.command is None else not self.command.is_transient
            path = f"  [dim]{escape(result.artifact)}[/]" if shows_path else ""
            self.screen.print(terminal.done_line(result, step.name) + path)
        return result

    def _build(self, step: plan.PlannedNode, attempt: int, also: Reporter) -> BuildResult:
        assert self.record is not None
        step = plan.forced_by_inputs(step, self.results)
        if step.cached:
            result = plan.build_node(step)
            if self.records is not None:
                self.records.finished(step, result)
            return result
        execution = self.retry_policy(step).execution
        request = resource_request(stages.stage(step.node.stage), execution, self.machine)
        if self.command:  # a typed command starts now: cores are shared, GPUs are not
            foreign = host_setup.foreign_rank()  # torchrun assigns the GPUs itself
            request = slots.ResourceRequest() if foreign else dataclasses.replace(request, cpus=0)
        self.record.node(step.name, status_file.WAITING, attempt=attempt)
        run, is_stopping = self.config.name, self._stop.is_set
        with slots.acquire(
            request,
            self.machine,
            run,
            step.name,
            is_stopping,
            lambda: self._show_queued(step, also),
        ) as gpu_ids:
            saved = plan.saved_step(step.artifact, step.fingerprint) if attempt > 1 else 0
            why = f"continues from step {saved:,}" if saved else step.reason
            self.record.node(step.name, status_file.RUNNING, why=why)
            gpus = f"GPU {', '.join(gpu_ids)}" if gpu_ids else "no GPU"
            self.explain(f"{step.name}: {step.reason}; {request.cpus} cores, {gpus} reserved")
            granted: dict[str, Any] = {"gpu_ids": gpu_ids} if gpu_ids else {}
            if (cpus := execution.resources.cpus) and not execution.threads:
                granted["threads"] = max(1, cpus // execution.processes)
            if execution.launcher != "local":
                granted["resources"] = estimate.resources(step, self.estimates[step.name])
            execution = execution.model_copy(update=granted)
            with contextlib.ExitStack() as stack:
                display = StageDisplay(step.name, self.screen, self._lines)
                listeners = [stack.enter_context(display), also]
                mlflow_reporter = None
                if self.records is not None:
                    mlflow_reporter = stack.enter_context(self.records.node(step))
                    listeners.append(mlflow_reporter)
                reporter = NodeReporter(
                    self.record, step, listeners, self.started_nodes, self._stop
                )
                result = plan.build_node(step, execution, reporter)
                if self.records is not None:
                    self.records.finished(step, result, mlflow_reporter)
        return result

    def _show_queued(self, step: plan.PlannedNode, also: Reporter) -> None:
        """Show that a node waits for slots, and which processes hold them."""
        assert self.record is not None
        kinds = (slots.GPU,) if self.command else (slots.GPU, slots.CPU)
        reason = f"waits for a slot: {slots.describe_holders(*kinds)}"
        self.record.node(step.name, status_file.QUEUED, why=reason)
        also.progress(0, None, "", {"note": reason})
        way_out = "" if self.command else "; --set run.oversubscribe=true starts beside it"
        self.screen.print(f"{time.strftime('%H:%M:%S')} {step.name} {escape(reason)}{way_out}")

    def retry_policy(self, step: plan.PlannedNode) -> retry_policy.RetryPolicy:
        """Return the retry policy of a node, which remembers the failed attempts."""
        policy = retry_policy.RetryPolicy(step.node.execution)
        return self._retry_policies.setdefault(step.name, policy)

    def should_retry(self, step: plan.PlannedNode, error: BaseException, retries: int) -> bool:
        """Check whether a retry of the node may succeed, and record it. Call once per failure.

        `retries`: retries that the node may have in all.
        """
        gpus: tuple[str, ...] | None = None
        if self.machine.gpus and step.node.execution.device != "cpu":
            self.machine = slots.machine()  # one may be lost
            gpus = self.machine.gpus
        can_retry = not self._stop.is_set() and self.retry_policy(step).should_retry(error, gpus)
        if can_retry and self.record is not None:
            attempt = self.record.content["nodes"][step.name].get("attempt", 1)
            wait = retry_policy.backoff_seconds(attempt, step.node.execution.retry_seconds)
            why = f"retry {attempt} of {retries} in {wait:.0f} s: {status_writer.message(error)}"
            self.record.node(step.name, status_file.RETRYING, why=why)
        return can_retry

    def make(self, step: plan.PlannedNode) -> BuildResult:
        """Call `run_node` until it succeeds or the configured retries are used up."""
        attempt, execution = 1, step.node.execution
        retries = execution.retries
        while True:
            try:
                return self.run_node(step, attempt)
            except Exception as error:
                if attempt > retries or not self.should_retry(step, error, retries):
                    raise
                seconds = retry_policy.backoff_seconds(attempt, execution.retry_seconds)
                cause = escape(str(status_writer.message(error)))
                again = f"attempt {attempt + 1} in {seconds:.0f} s"
                self.screen.print(f"[yellow]{step.name} failed[/] ({cause}); {again}")
                attempt += 1
                if self._stop.wait(seconds):
                    raise


def run_plain(session: RunSession) -> Mapping[str, BuildResult]:
    """Run all nodes without Prefect and return their results by name."""
    with session:
        schedule.run_graph(session.steps, session.make, skipped=session.skip, stop=session.stop)
        session.started_nodes.forget()
    return session.results
