"""What a planned run will take: seconds, disk and memory of each node, and how far the last estimate was off.

Work comes from the stages' own arithmetic (`pipeline.core.cost`), speed from what was measured: the node's own last artifact, else
artifacts of its stage in any run, those nearest in size; where there is none, a rough figure of the stage's. Each estimate says which.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from flows.graph import record, stages
from flows.graph.demand import demand
from flows.graph.plan import Step
from flows.launchers import slots
from pipeline.core import artifact
from pipeline.core.cost import Computer, Cost, Costs, Facts, Pace, facts_of
from pipeline.core.errors import ClozeError

Basis = Literal["measured", "scaled", "rough"]
LOOKED_AT = 16  # of a stage's newest artifacts
SAME = 0.02  # work that differs by less is the same
NEAR = 4.0  # times as large or small: beyond it the speed of another model says little
FAULTS = (ClozeError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)  # no estimate is worth a run
FAR = 10.0  # times as much work: a short run's speed says little of a long one's


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a node will take.

    Attributes:
        seconds: None: nobody knows.
        disk_bytes: at most, while it is made.
        memory_bytes: of all its processes together.
        gpu_memory_bytes: of each GPU that it takes.
        basis: `measured`: the same work was done here before; `scaled`: from measured work, by the amount; `rough`: nothing was measured.
        note: how it is made, where that hangs on amounts.
    """

    seconds: float | None = None
    disk_bytes: int | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    basis: Basis | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


NOTHING = Estimate(seconds=0.0, disk_bytes=0, memory_bytes=0, gpu_memory_bytes=0, basis="measured")  # of what is cached


def estimates(steps: Sequence[Step], runs: Path) -> dict[str, Estimate]:
    """What each step will take, in the steps' order.

    Args:
        runs: the directory of all runs: what was made there says how fast this machine is.
    """
    if all(step.cached for step in steps):
        return {step.name: NOTHING for step in steps}
    computer, measured = this_computer(), Measured(runs)
    facts: dict[str, Facts] = {}  # of artifacts, by path
    found: dict[str, Estimate] = {}
    for step in steps:
        inputs = {role: facts.get(path) or _facts_at(path) for role, path in step.inputs.items()}
        try:
            found[step.name], expected = _estimate(step, inputs, computer, measured)
        except FAULTS:  # something is odd about what it reads or what was made before: running the stage will tell
            found[step.name], expected = _last(step), {}
        if step.cached:  # what its summary does not tell follows from its inputs, as in what is still to be made
            found[step.name], expected = NOTHING, {**expected, **_facts_at(step.artifact)}
        facts[step.artifact] = expected
    return found


def _estimate(step: Step, inputs: Mapping[str, Facts], computer: Computer, measured: Measured) -> tuple[Estimate, Facts]:
    """What a step will take, and the facts of what it will make."""
    costs = stages.stage(step.node.stage).costs
    if costs is None:
        return _last(step), {}
    before = None if step.before is None else facts_of(step.before)
    cost = costs.ahead(step.node.config, inputs, step.node.execution, computer, before)
    seconds, basis = _seconds(step, cost, costs, before, measured)
    told = Estimate(
        seconds=round(seconds, 1),
        disk_bytes=cost.disk_bytes,
        memory_bytes=cost.memory_bytes,
        gpu_memory_bytes=cost.gpu_memory_bytes,
        basis=basis,
        note=cost.note,
    )
    return told, cost.makes


def _last(step: Step) -> Estimate:
    """What the node took the last time, whatever changed since then."""
    return Estimate(seconds=step.last_seconds, basis=None if step.last_seconds is None else "scaled")


def _seconds(step: Step, cost: Cost, costs: Costs, before: Facts | None, measured: Measured) -> tuple[float, Basis]:
    if cost.seconds is not None:
        return cost.seconds, "measured"
    own = None if before is None else costs.afterwards(before)
    if before is not None and own is not None and own.kind == cost.kind:
        known: tuple[Pace, float] | None = (own, max(0.0, float(before["seconds"]) - own.seconds))
        if abs(own.amount - cost.amount) <= SAME * own.amount:
            return max(float(before["seconds"]), own.seconds), "measured"  # an artifact tells the seconds of its last try alone
    elif before is not None and own is None:  # its stage does not say how fast it was
        return float(before["seconds"]), "measured" if step.forced else "scaled"
    else:
        known = measured.nearest(step.node.stage, costs, cost)
    if known is None:
        return cost.start + cost.amount / (cost.speed * cost.width), "rough"
    pace, start = known
    near = max(pace.size, cost.size) <= NEAR * min(pace.size, cost.size)
    far = cost.amount > FAR * pace.amount
    speed = max(pace.speed, cost.speed) if far else pace.speed
    return start + cost.amount / (speed * cost.width), "scaled" if near and not far else "rough"


class Measured:
    """What was made in any run, by stage: read when first asked for."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._places: dict[str, list[Path]] | None = None
        self._paces: dict[str, list[tuple[Pace, float]]] = {}

    def nearest(self, stage: str, costs: Costs, cost: Cost) -> tuple[Pace, float] | None:
        """The pace of the artifact that is nearest in size, the newest of those, and its seconds of start; None: there is none."""
        if stage not in self._paces:
            self._paces[stage] = list(self._read(stage, costs))
        fitting = [known for known in self._paces[stage] if known[0].kind == cost.kind]
        return min(fitting, key=lambda known: _distance(known[0], cost), default=None)

    def _read(self, stage: str, costs: Costs) -> Iterable[tuple[Pace, float]]:
        for place in self._newest(stage):
            with suppress(*FAULTS):
                facts = facts_of(artifact.read_manifest(str(place)))
                pace = costs.afterwards(facts)
                if pace is not None and pace.amount > 0:
                    yield pace, max(0.0, float(facts["seconds"]) - pace.seconds)

    def _newest(self, stage: str) -> list[Path]:
        if self._places is None:
            self._places = {}
            for run in self.runs.glob("*/"):
                with suppress(OSError), os.scandir(run) as entries:
                    for entry in entries:
                        name = entry.name.partition("@")[0].partition("-")[0]
                        if name in stages.TABLE and not entry.is_symlink():
                            self._places.setdefault(name, []).append(Path(entry.path))
        return sorted(self._places.get(stage, []), key=_changed, reverse=True)[:LOOKED_AT]


def _distance(pace: Pace, cost: Cost) -> float:
    """In size first of all, then in the amount of work."""
    return 2 * abs(math.log(max(pace.size, 1.0) / max(cost.size, 1.0))) + abs(
        math.log(max(pace.amount, 1.0) / max(cost.amount, 1.0))
    )


def _changed(place: Path) -> float:
    with suppress(OSError):
        return (place / artifact.MANIFEST).stat().st_mtime
    return 0.0


@cache
def _facts_of_artifact(path: str, changed: float) -> Facts:
    del changed
    return facts_of(artifact.read_manifest(path))


def _facts_at(path: str) -> Facts:
    """What is known of an input that is there: an artifact, or a part of one; of anything else nothing."""
    place = Path(path)
    for found in (place, *list(place.parents)[:3]):
        with suppress(ClozeError, OSError):
            return _facts_of_artifact(str(found), (found / artifact.MANIFEST).stat().st_mtime)
    return {}


def this_computer() -> Computer:
    """This machine as stages' arithmetic sees it."""
    there = slots.machine()
    memory, name = _gpu() if there.gpus else (0, "")
    return Computer(cpus=there.cpus, gpus=len(there.gpus), gpu_bytes=memory, gpu=name)


@cache
def _gpu() -> tuple[int, str]:
    """The memory of the smallest GPU, and its name."""
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=False, timeout=20,
        ).stdout  # fmt: skip
        rows = [line.split(",", 1) for line in told.splitlines()]
        memory, name = min((int(memory), name.strip()) for memory, name in rows)
        return memory << 20, name
    return 0, ""


def together(steps: Sequence[Step], found: Mapping[str, Estimate]) -> float | None:
    """Seconds until all is made, with independent nodes beside each other as far as there are slots; None: of one nobody knows.

    Each node begins as soon as what it needs is there and enough is free, in the plan's order.
    """
    there = slots.machine()
    free = {"gpus": len(there.gpus), "cpus": there.cpus}
    waiting = {step.name: step for step in steps if not step.cached}
    running: list[tuple[float, str, slots.Demand]] = []
    now = 0.0
    while waiting or running:
        for name, step in list(waiting.items()):
            seconds, wanted = found[name].seconds, demand(step.node.stage, step.node.execution, there)
            if seconds is None:
                return None
            busy = any(parent in waiting or any(parent == other for _, other, _ in running) for parent in step.after)
            if not busy and wanted.gpus <= free["gpus"] and wanted.cpus <= free["cpus"]:
                free["gpus"], free["cpus"] = free["gpus"] - wanted.gpus, free["cpus"] - wanted.cpus
                running.append((now + seconds, name, wanted))
                del waiting[name]
        running.sort(key=lambda one: one[0])
        now, _, wanted = running.pop(0)
        free["gpus"], free["cpus"] = free["gpus"] + wanted.gpus, free["cpus"] + wanted.cpus
    return now


def last_time(directory: Path) -> dict[str, Any] | None:
    """How far the estimates of the run's newest start that made something were off; None: there was none.

    Returns:
        As `off_of`.
    """
    for path in reversed(record.records_in(directory)):
        found = off_of(record.read_file(path) or {})
        if found is not None:
            return found
    return None


def off_of(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """How far the estimates of one start were off; None: it made nothing that had any.

    Args:
        content: its record.

    Returns:
        `expected` and `took`, seconds of the nodes that it made and that had an estimate, and `off`, by how much they took longer (0.1:
        a tenth). Where nodes told what memory they took, `memory` has the same of that, in bytes, and `node`, for the one that was
        furthest off; `gpu_memory` likewise.
    """
    made = {
        name: node
        for name, node in content.get("nodes", {}).items()
        if node["state"] == record.FINISHED and (node.get("estimate") or {}).get("seconds") is not None and "started" in node
    }
    if not made:
        return None
    expected = sum(node["estimate"]["seconds"] for node in made.values())
    took = sum(node["ended"] - node["started"] for node in made.values())
    found: dict[str, Any] = {
        "expected": round(expected, 1),
        "took": round(took, 1),
        "off": round(took / max(expected, 0.1) - 1, 3),
    }
    for name, key in (("memory", "memory_bytes"), ("gpu_memory", "gpu_memory_bytes")):
        worst = _memory_off(made, key)
        found |= {name: worst} if worst else {}
    return found


def _memory_off(made: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any] | None:
    known = [
        {"node": name, "expected": expected, "took": took, "off": round(took / expected - 1, 3)}
        for name, node in made.items()
        if (expected := node["estimate"].get(key)) and (took := node.get("figures", {}).get(key))
    ]
    return max(known, key=lambda one: abs(one["off"]), default=None)
