"""Cost estimates: seconds, disk and memory of each planned node.

Work comes from the stages' cost models (`cloze.core.stages.cost`). Throughput comes from the
node's own last artifact, else from the artifact of the same stage that is nearest in size, in any
run; else it is the stage's rough constant. `Estimate.basis` says which.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from cloze.core.artifacts import artifact
from cloze.core.errors import ClozeError
from cloze.core.humanize import agree
from cloze.core.stages.cost import (
    CostEstimate,
    CostModel,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
    artifact_metadata,
)
from cloze.core.stages.execution import Resources
from cloze.flows.graph import stages
from cloze.flows.graph.command import run_folders
from cloze.flows.graph.plan import PIPELINE, PlannedNode
from cloze.flows.graph.schedule import Frontier, resource_request
from cloze.flows.machine import slots

Basis = Literal["measured", "scaled", "rough"]
MAX_ARTIFACTS = 16  # newest artifacts of a stage that are read
SAME = 0.02  # relative difference below which work counts as equal
NEAR = 4.0  # maximum ratio of model sizes for a transfer of throughput
# a failed estimate must not end a run
FAULTS = (ClozeError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
FAR = 10.0  # ratio of work beyond which a short run's throughput is unreliable


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected cost of a node."""

    seconds: float | None = None  # wall-clock time; None: unknown
    disk_bytes: int | None = None  # peak disk use during the build
    memory_bytes: int | None = None  # memory of all processes together
    gpu_memory_bytes: int | None = None  # memory of each GPU
    # `measured`: the same work was measured; `scaled`: scaled from measured work; `rough`: not
    # measured
    basis: Basis | None = None
    note: str = ""  # how the node will be computed, if that depends on its size


# estimate of a cached node
NOTHING = Estimate(seconds=0.0, disk_bytes=0, memory_bytes=0, gpu_memory_bytes=0, basis="measured")


def estimates(steps: Sequence[PlannedNode], runs: Path) -> dict[str, Estimate]:
    """Return the cost estimate of each node, in the plan's order.

    `runs`: directory of all runs, whose artifacts contain measured throughputs.
    """
    if all(step.cached for step in steps):
        return {step.name: NOTHING for step in steps}
    machine, measured = slots.machine(), MeasuredThroughputs(runs)
    memory, name = _gpu() if machine.gpus else (0, "")
    gpus = len(machine.gpus)
    computer = MachineSpec(cpus=machine.cpus, gpus=gpus, gpu_bytes=memory, gpu=name)
    facts: dict[str, Metadata] = {}  # of artifacts, by path
    node_estimates: dict[str, Estimate] = {}
    for step in steps:
        inputs = {role: facts.get(path) or _facts_at(path) for role, path in step.inputs.items()}
        try:
            node_estimates[step.name], expected = _estimate(step, inputs, computer, measured)
        except FAULTS:  # a broken input: the stage itself reports it
            node_estimates[step.name], expected = _last(step), {}
        if step.cached:  # expected metadata fill the gaps of the summary
            node_estimates[step.name], expected = NOTHING, {**expected, **_facts_at(step.artifact)}
        facts[step.artifact] = expected
    return node_estimates


def _estimate(
    step: PlannedNode,
    inputs: Mapping[str, Metadata],
    computer: MachineSpec,
    measured: MeasuredThroughputs,
) -> tuple[Estimate, Metadata]:
    """Return the cost estimate of a node and the expected metadata of its artifact."""
    cost_model = stages.stage(step.node.stage).cost_model
    if cost_model is None:  # what it makes of a checkpoint is of the same size
        return _last(step), inputs.get("checkpoint") or {}
    previous = None if step.previous is None else artifact_metadata(step.previous)
    node = step.node
    cost = cost_model.estimate(
        PlannedBuild(node.config, inputs, node.execution, computer, previous)
    )
    seconds, basis = _seconds(step, cost, cost_model, previous, measured)
    total = int(cost.expected_metadata.get("steps") or 0)
    if step.resumes_at and total and cost.seconds is None:  # only the remaining steps are trained
        start = min(cost.startup_seconds, seconds)
        seconds = start + (seconds - start) * max(0.0, 1 - step.resumes_at / total)
    cost_estimate = Estimate(
        seconds=round(seconds, 1),
        disk_bytes=cost.disk_bytes,
        memory_bytes=cost.memory_bytes,
        gpu_memory_bytes=cost.gpu_memory_bytes,
        basis=basis,
        note=cost.note,
    )
    return cost_estimate, cost.expected_metadata


def _last(step: PlannedNode) -> Estimate:
    """Return the seconds of the node's last build as the estimate, regardless of changes since."""
    basis: Basis | None = None if step.last_seconds is None else "scaled"
    return Estimate(seconds=step.last_seconds, basis=basis)


def _seconds(
    step: PlannedNode,
    cost: CostEstimate,
    cost_model: CostModel,
    previous: Metadata | None,
    measured: MeasuredThroughputs,
) -> tuple[float, Basis]:
    if cost.seconds is not None:
        return cost.seconds, "measured"
    reference: tuple[MeasuredThroughput, float] | None
    last = None if previous is None else cost_model.measure(previous)
    if previous is not None and last is None:  # the stage measures no throughput
        return float(previous["seconds"]), "measured" if step.forced else "scaled"
    if previous is not None and last is not None and last.kind == cost.kind:
        # the manifest only has the seconds of the last attempt
        total = max(float(previous["seconds"]), last.seconds)
        if abs(last.amount - cost.work) <= SAME * last.amount:
            return total, "measured"
        reference = last, total - last.seconds
    else:
        reference = measured.nearest(step.node.stage, cost_model, cost)
    if reference is None:
        return cost.startup_seconds + cost.work / (cost.speed * cost.parallelism), "rough"
    throughput, start = reference
    is_near = max(throughput.size, cost.size) <= NEAR * min(throughput.size, cost.size)
    is_far = cost.work > FAR * throughput.amount
    speed = max(throughput.speed, cost.speed) if is_far else throughput.speed
    seconds = start + cost.work / (speed * cost.parallelism)
    return seconds, "scaled" if is_near and not is_far else "rough"


THIS_HOST = "this host"
MEMORY_FACTOR, MEMORY_BASE = 2, 1 << 30  # of a job: its coordinator and agent use memory, too
TIME_FACTOR, BASE_MINUTES = {"measured": 2, "scaled": 3, "rough": 5}, 15


def resources(step: PlannedNode, expected: Estimate) -> Resources:
    """Return what a node's job gets: what the config sets, else what the plan estimates.

    A parallel stage gets what the config sets alone. What is None is left to the cluster. The
    estimates have a margin: a job with too little is killed, one with more waits little longer.
    """
    execution, stage = step.node.execution, stages.stage(step.node.stage)
    given = {key: value for key, value in execution.resources if value is not None}
    if stage.parallel:
        return execution.resources
    is_data = stage.worker == PIPELINE
    known: dict[str, Any] = {"cpus": execution.workers if is_data else execution.threads}
    if not stage.on_gpu or execution.device == "cpu":
        known["gpus"] = 0
    elif execution.device == "cuda" or execution.gpu_ids:
        known["gpus"] = len(execution.gpu_ids) or 1
    if expected.memory_bytes:
        amount = MEMORY_FACTOR * expected.memory_bytes + MEMORY_BASE
        known["memory"] = f"{math.ceil(amount / (1 << 20) / 100) * 100}M"
    if expected.seconds is not None:
        factor = TIME_FACTOR[expected.basis or "rough"]
        known["time"] = f"{BASE_MINUTES + math.ceil(factor * expected.seconds / 60)}m"
    return Resources.model_validate({**known, **given})


def place(step: PlannedNode, expected: Estimate) -> str:
    """Return in words where a node runs, and what it gets there."""
    execution = step.node.execution
    if execution.launcher == "local":
        return THIS_HOST
    given = resources(step, expected)
    amounts = {"GPU": given.gpus, "core": given.cpus}
    words = [agree(f"{count} {name}s") for name, count in amounts.items() if count]
    words += filter(None, (given.memory, given.time))
    if stages.stage(step.node.stage).parallel:
        words = [f"nodes {execution.nodes}, processes {execution.processes} each", *words]
    return f"{execution.launcher} ({', '.join(words)})" if words else execution.launcher


class MeasuredThroughputs:
    """Throughputs of the artifacts of all runs by stage, read on first use."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._directories: dict[str, list[Path]] | None = None
        self._throughputs: dict[str, list[tuple[MeasuredThroughput, float]]] = {}

    def nearest(
        self, stage: str, costs: CostModel, cost: CostEstimate
    ) -> tuple[MeasuredThroughput, float] | None:
        """Return throughput and startup seconds of the artifact nearest in size, or None."""
        if stage not in self._throughputs:
            self._throughputs[stage] = list(self._read(stage, costs))
        same_kind = [known for known in self._throughputs[stage] if known[0].kind == cost.kind]
        return min(same_kind, key=lambda known: _distance(known[0], cost), default=None)

    def _read(self, stage: str, costs: CostModel) -> Iterable[tuple[MeasuredThroughput, float]]:
        for path in self._newest(stage):
            with suppress(*FAULTS):
                facts = artifact_metadata(artifact.read_manifest(str(path)))
                throughput = costs.measure(facts)
                if throughput is not None and throughput.amount > 0:
                    yield throughput, max(0.0, float(facts["seconds"]) - throughput.seconds)

    def _newest(self, stage: str) -> list[Path]:
        if self._directories is None:
            self._directories = {}
            for run in chain.from_iterable(each.glob("*/") for each in run_folders(self.runs)):
                with suppress(OSError), os.scandir(run) as entries:
                    for entry in entries:
                        name = entry.name.partition("@")[0].partition("-")[0]
                        if name in stages.TABLE and not entry.is_symlink():
                            self._directories.setdefault(name, []).append(Path(entry.path))
        return sorted(self._directories.get(stage, []), key=_changed, reverse=True)[:MAX_ARTIFACTS]


def _distance(throughput: MeasuredThroughput, cost: CostEstimate) -> float:
    """Return the log distance in size, weighted twice, plus that in the amount of work."""
    size = math.log(max(throughput.size, 1.0) / max(cost.size, 1.0))
    work = math.log(max(throughput.amount, 1.0) / max(cost.work, 1.0))
    return 2 * abs(size) + abs(work)


def _changed(directory: Path) -> float:
    with suppress(OSError):
        return (directory / artifact.MANIFEST).stat().st_mtime
    return 0.0


@cache
def _facts_of_artifact(path: str, changed: float) -> Metadata:
    del changed
    return artifact_metadata(artifact.read_manifest(path))


def _facts_at(path: str) -> Metadata:
    """Return the metadata of the artifact that contains `path`; empty if there is none."""
    location = Path(path)
    for candidate in (location, *list(location.parents)[:3]):
        with suppress(ClozeError, OSError):
            changed = (candidate / artifact.MANIFEST).stat().st_mtime
            return _facts_of_artifact(str(candidate), changed)
    return {}


@cache
def _gpu() -> tuple[int, str]:
    """Return the memory of the smallest GPU in bytes, and its name."""
    lines = slots.nvidia_smi("--query-gpu=memory.total,name", "--format=csv,noheader,nounits")
    with suppress(ValueError, IndexError):
        rows = [line.split(",", 1) for line in lines]
        memory, name = min((int(memory), name.strip()) for memory, name in rows)
        return memory << 20, name
    return 0, ""


def parallel_seconds(
    steps: Sequence[PlannedNode], estimates: Mapping[str, Estimate]
) -> float | None:
    """Simulate the schedule: return the seconds until all nodes are built; None if one is unknown.

    Nodes start in the plan's order, as soon as their inputs exist and enough slots are free.
    """
    machine = slots.machine()
    gpus, cpus = len(machine.gpus), machine.cpus  # free ones
    frontier = Frontier(step for step in steps if not step.cached)
    running: list[tuple[float, str, slots.ResourceRequest]] = []
    now = 0.0
    while running or frontier.waiting:
        for step in frontier.ready():
            seconds = estimates[step.name].seconds
            if seconds is None:
                return None
            request = resource_request(stages.stage(step.node.stage), step.node.execution, machine)
            if request.gpus <= gpus and request.cpus <= cpus:
                gpus, cpus = gpus - request.gpus, cpus - request.cpus
                running.append((now + seconds, step.name, request))
                del frontier.waiting[step.name]
        if not running:  # a request that this machine never fits; the run says so itself
            return None
        running.sort(key=lambda entry: entry[0])
        now, name, request = running.pop(0)
        frontier.done(name)
        gpus, cpus = gpus + request.gpus, cpus + request.cpus
    return now
