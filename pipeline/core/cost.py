"""What making an artifact takes, by arithmetic alone. Each stage says it of itself; whoever plans a run turns work into seconds.

Facts are what is known of an artifact: of one that is made its summary, rows, tokens, config, execution and seconds; of one that is
still to be made what the `Cost` of its stage expects these to be, as far as that can be said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.artifact import Manifest
from pipeline.core.execution import Execution

Facts = Mapping[str, Any]
PROCESS_BYTES = 250 << 20  # of a process of ours without torch, at work


@dataclass(frozen=True, slots=True, kw_only=True)
class Computer:
    """What there is to compute with. Attributes: gpu_bytes: the memory of each GPU; 0: not known; gpu: the driver's name of it."""

    cpus: int = 1
    gpus: int = 0
    gpu_bytes: int = 0
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an artifact will take.

    Attributes:
        amount: of work, in a unit of the stage's own: bytes, tokens, operations.
        speed: that amount a second and unit of `width`, roughly, where nothing was measured.
        start: seconds that any amount takes, roughly.
        seconds: what all of it takes, where that is settled beforehand.
        width: workers or GPUs that share the work.
        kind: what computes, where speeds of others say nothing of it: `cpu`, `cuda`.
        size: of what is trained (its parameters): speeds measured at the nearest size are taken.
        disk_bytes: at most, while it is made.
        memory_bytes: of all its processes together.
        gpu_memory_bytes: of each GPU that it takes.
        makes: facts of the artifact.
        note: how it is made, where that hangs on amounts; a clause for people.
    """

    amount: float
    speed: float
    start: float = 0.0
    seconds: float | None = None
    width: int = 1
    kind: str = ""
    size: float = 1.0
    disk_bytes: int = 0
    memory_bytes: int = PROCESS_BYTES
    gpu_memory_bytes: int = 0
    makes: Facts = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast an artifact was made; see `Cost`. Attributes: seconds: those that grow with the amount."""

    amount: float
    seconds: float
    width: int = 1
    kind: str = ""
    size: float = 1.0

    @property
    def speed(self) -> float:
        """The amount a second and unit of width."""
        return self.amount / max(self.seconds, 1e-3) / max(self.width, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A stage's arithmetic.

    Attributes:
        ahead: (config, facts of the inputs by role, execution, computer, facts of the node's last artifact) -> cost.
        afterwards: facts of a made artifact -> its pace; None: they do not say it.
    """

    ahead: Callable[[Any, Mapping[str, Facts], Execution, Computer, Facts | None], Cost]
    afterwards: Callable[[Facts], Pace | None]


def facts_of(manifest: Manifest) -> dict[str, Any]:
    """What is known of a made artifact."""
    return {
        **manifest.summary,
        "rows": manifest.rows or manifest.summary.get("rows", 0),
        "tokens": manifest.tokens or manifest.summary.get("tokens", 0),
        "seconds": manifest.seconds,
        "config": manifest.config,
        "execution": manifest.execution,
        "files_bytes": sum(entry.size for entry in manifest.files),
    }


def dataset_bytes(tokens: float, vocabulary: int, mask_rate: float, copies: int) -> tuple[float, float]:
    """A dataset's bytes for so many tokens in its rows: of the rows, and of their mask copies (a position and a replacement each)."""
    number = 4 if vocabulary > 1 << 16 else 2
    return tokens * number, tokens * mask_rate * copies * (2 + number)


def without_start(seconds: float, start: float) -> float:
    """The seconds that grew with the work, of a stage that takes about `start` for any."""
    return max(seconds - start, 0.1 * seconds)
