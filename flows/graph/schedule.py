"""Scheduling of nodes: the slots that a node requests, and execution in dependency order."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from cloze.core.errors import ClozeError, StoppedError, UsageError, describe_os_error
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Stage
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.graph.stages import stage as stage_of
from cloze.flows.machine.slots import MachineResources, ResourceRequest


def resource_request(
    stage: Stage, execution: Execution, machine: MachineResources
) -> ResourceRequest:
    """Return the slots that a node of that stage requests, at most those of the machine.

    A training takes one GPU and one core per process. A torch stage on the CPU takes its cores, its
    threads, or all cores; a data stage takes one core per worker. With a launcher other than local
    it takes no slots here: the agents take those of their hosts.
    """
    if execution.oversubscribe or execution.launcher != "local":
        return ResourceRequest()
    processes = execution.processes if stage.parallel else 1
    if stage.on_gpu and machine.gpus and execution.device != "cpu":
        gpus = len(execution.gpu_ids) or min(processes, len(machine.gpus))
        return ResourceRequest(
            gpus=gpus,
            cpus=min(execution.resources.cpus or processes, machine.cpus),
            gpu_ids=execution.gpu_ids,
        )
    if stage.worker == "cloze.model":
        default_cpus = processes * execution.threads if execution.threads else machine.cpus
    else:
        default_cpus = execution.workers if stage.worker else 1
    return ResourceRequest(cpus=min(execution.resources.cpus or default_cpus, machine.cpus))


MOST_AT_ONCE = 32  # threads, for nodes that run or wait for slots; slots limit computation


# package of a stage's worker -> extra that installs what it needs, and modules of it
_NEEDS = {
    "cloze.model": ("train", "torch", "tokenizers"),
    "cloze.pipeline": ("data", "apache_beam", "tokenizers"),
}


def require_workers(steps: Iterable[PlannedNode]) -> None:
    """Raise UsageError if nodes that this machine builds need a package that it lacks."""
    for step in steps:
        is_here = not step.cached and step.node.execution.launcher == "local"
        extra, *modules = _NEEDS.get(stage_of(step.node.stage).worker_package, ("",))
        missing = [name for name in modules if is_here and importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"{step.name} needs {' and '.join(missing)}, not installed here; "
                f"run `pip install 'cloze-pretraining-base[{extra}]'`"
            )


class NodeFailures(ClozeError):
    """Several nodes failed."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        messages = "; ".join(f"{name}: {describe_error(error)}" for name, error in errors.items())
        super().__init__(f"{len(errors)} nodes failed: {messages}")
        self.errors = dict(errors)
        codes = {getattr(error, "exit_code", 1) for error in errors.values()}
        # exit code that all exceptions share, else 1
        self.exit_code = codes.pop() if len(codes) == 1 else 1


def describe_error(error: BaseException) -> str:
    """Return an error's message; the system's has a remedy, others outside Cloze their type."""
    if isinstance(error, ClozeError):
        return str(error)
    if isinstance(error, OSError) and error.errno:
        return describe_os_error(error, "input or output")
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def combine_errors(errors: Mapping[str, BaseException]) -> BaseException:
    """Return the exception to raise for failed nodes: the single error, or `NodeFailures`."""
    return next(iter(errors.values())) if len(errors) == 1 else NodeFailures(errors)


class Frontier:
    """The unfinished nodes of a graph, in topological order; whoever starts one pops `waiting`."""

    def __init__(self, steps: Iterable[PlannedNode]) -> None:
        self.waiting = {step.name: step for step in steps}
        self._unfinished = set(self.waiting)  # also those that run, failed or are skipped

    def ready(self) -> Iterator[PlannedNode]:
        """Yield waiting nodes whose inputs exist, also those that get ready meanwhile."""
        for step in list(self.waiting.values()):
            if self._unfinished.isdisjoint(step.depends_on):
                yield step

    def done(self, name: str) -> None:
        self._unfinished.remove(name)

    def failed(self, name: str) -> Iterator[PlannedNode]:
        """Remove and yield the waiting nodes that depend on a failed node."""
        failed = {name}
        for step in list(self.waiting.values()):  # one pass suffices in topological order
            if not failed.isdisjoint(step.depends_on):
                failed.add(step.name)
                yield self.waiting.pop(step.name)


def run_graph(
    steps: Sequence[PlannedNode],
    make: Callable[[PlannedNode], object],
    *,
    skipped: Callable[[PlannedNode, str], None],
    stop: Callable[[], None],
) -> None:
    """Call `make` for every node, in threads, as soon as the nodes that it depends on are done.

    Args:
        skipped: called with a node that cannot be built and the failed node that it depends on.
        stop: asks running nodes to stop; called when this thread is interrupted.

    Raises:
        NodeFailures: several nodes failed. A single failed node raises its own error.
        StoppedError: this thread was interrupted, and a training saved a checkpoint.
        BaseException: the interruption, if no training saved a checkpoint.
    """
    frontier = Frontier(steps)
    errors: dict[str, BaseException] = {}
    running: dict[Future[object], PlannedNode] = {}
    with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="node") as pool:
        try:
            while running or frontier.waiting:
                for step in frontier.ready():
                    running[pool.submit(make, frontier.waiting.pop(step.name))] = step
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    step = running.pop(future)
                    error = future.exception()
                    if error is None:
                        frontier.done(step.name)
                        continue
                    errors[step.name] = error
                    for other in frontier.failed(step.name):
                        skipped(other, step.name)
        except BaseException:
            stop()
            for future in running:
                future.cancel()
            wait(running)
            outcomes = [future.exception() for future in running if not future.cancelled()]
            stop_error = next(
                (error for error in outcomes if isinstance(error, StoppedError)), None
            )
            if stop_error is not None:
                raise stop_error from None
            raise
    if errors:
        raise combine_errors(errors)
