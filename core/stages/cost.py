"""Cost models of stages.

Metadata of a finished artifact are its summary, rows, tokens, config, execution and seconds. For a
future artifact, its stage's `CostEstimate` gives the expected metadata where possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cloze.core.artifacts.artifact import Manifest
from cloze.core.stages.execution import Execution

Metadata = Mapping[str, Any]
C = TypeVar("C")
PROCESS_BYTES = 250 << 20  # a working process without torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """The hardware. `gpu_bytes`: memory of each GPU, 0: unknown; `gpu`: the driver's name."""

    cpus: int = 1
    gpus: int = 0
    gpu_bytes: int = 0
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The expected cost of an artifact."""

    work: float  # amount of work, in the stage's own unit: bytes, tokens, operations
    # work per second and unit of `parallelism`, a rough value for use without measurements
    speed: float
    startup_seconds: float = 0.0  # seconds that do not depend on the work, roughly
    seconds: float | None = None  # total duration, if it is known in advance
    parallelism: int = 1  # number of workers or GPUs that share the work
    kind: str = ""  # device class, `cpu` or `cuda`; throughputs of other classes are ignored
    size: float = 1.0  # model size in parameters; throughputs of the nearest size are used
    disk_bytes: int = 0  # peak disk use of the build
    memory_bytes: int = PROCESS_BYTES  # memory of all processes together
    gpu_memory_bytes: int = 0  # memory of each GPU in use
    expected_metadata: Metadata = field(default_factory=dict)
    # clause for people about how the artifact will be built, if that depends on amounts
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredThroughput:
    """The measured speed of a build; see `CostEstimate`."""

    amount: float
    seconds: float  # seconds without the startup
    width: int = 1  # number of workers or GPUs that shared the work
    kind: str = ""
    size: float = 1.0

    @classmethod
    def by_workers(cls, build: Metadata, amount: float, startup: float) -> MeasuredThroughput:
        """Return the throughput of the Beam workers that did this amount of work in a build."""
        seconds = subtract_startup(build["seconds"], startup)
        width = int(build["execution"].get("workers", 1))
        return cls(amount=amount, seconds=seconds, width=width)

    @property
    def speed(self) -> float:
        """Return the amount of work per second and unit of width."""
        return self.amount / max(self.seconds, 1e-3) / max(self.width, 1)


@dataclass(frozen=True, slots=True)
class PlannedBuild(Generic[C]):
    """A build whose cost is asked for."""

    config: C
    inputs: Mapping[str, Metadata]  # metadata of the inputs by role
    execution: Execution
    machine: MachineSpec
    before: Metadata | None = None  # metadata of the node's last artifact

    @property
    def device(self) -> str:
        """Device kind on which the stage will run."""
        if self.execution.device == "auto":
            return "cuda" if self.machine.gpus else "cpu"
        return self.execution.device


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The cost model of a stage.

    Attributes:
        measure: metadata of a finished artifact -> its throughput; None: not derivable.
    """

    estimate: Callable[[PlannedBuild[Any]], CostEstimate]
    measure: Callable[[Metadata], MeasuredThroughput | None]


def artifact_metadata(manifest: Manifest) -> dict[str, Any]:
    return {
        **manifest.summary,
        "rows": manifest.rows or manifest.summary.get("rows", 0),
        "tokens": manifest.tokens or manifest.summary.get("tokens", 0),
        "seconds": manifest.seconds,
        "config": manifest.config,
        "execution": manifest.execution,
        "files_bytes": manifest.size,
    }


def subtract_startup(seconds: float, start: float) -> float:
    """Return `seconds` without a startup of about `start` seconds; at least a tenth."""
    return max(seconds - start, 0.1 * seconds)
