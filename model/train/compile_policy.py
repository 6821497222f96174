"""The decision about torch.compile.

On a CPU the whole step is compiled, for batches of one shape, where the user asks for it: what that
gains differs by machine, and it changes the bits of a training (other kernels, other dropout
masks). So checkpoints record the choice.

On a GPU each layer is compiled, for all shapes and depths, in trainings of some minutes.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch

from cloze.core.errors import UsageError
from cloze.model.data.batch import BIDIRECTIONAL, AttentionModes, move
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import Batch
from cloze.model.train.plan.estimates import active_parameters, operations

if TYPE_CHECKING:
    from cloze.model.train.config import PretrainConfig
    from cloze.model.train.evaluate.scoring import PretrainModule
    from cloze.model.train.plan.micro_batch import BatchPlan

# Seconds of compiling a whole step on a CPU (two cores with AMX): fixed, and per layer.
COMPILING = (10.0, 6.0)
PAYS = 1.25  # factor by which the saved seconds must exceed the compile time: times vary
# On an H200, BERT-large at length 512 (benchmarks/README.md): share of a step that is saved,
# seconds of compiling at any depth, and operations per second of plain steps.
GPU_GAIN, GPU_COMPILING, GPU_SPEED = 0.14, 20.0, 3e14
WHOLE_STEP = 1800.0  # seconds of training that repay a whole step's compiling: 47 s for 3 %
# Seconds per layer and step that the host saves in launching kernels: all of the time of narrow
# layers. There, a compiled step of 12 layers of 384 takes the host 55 ms; on a core of an EPYC,
# with tiny tensors, 20 ms compiled and 29 ms plain.
GPU_LAUNCHES = 0.0015
# Seconds; layers that are not compiled by then run plain. Half of the time after which a rank
# counts as dead: one that fails at once waits for another that does not.
COMPILE_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """The work of a rank: micro-batches of `positions` through the layers, or seconds."""

    micro_batches: float = 0.0
    positions: int
    seconds: float | None = None

    @classmethod
    def of_rank(
        cls, config: PretrainConfig, plan: BatchPlan, length: int, ranks: int
    ) -> WorkEstimate:
        """Return the work of each of `ranks` ranks. Args: length: positions of a row."""
        positions, steps = plan.micro_batch * length, config.phase_steps
        by_tokens = (config.tokens or 0) / (positions * ranks)
        return cls(
            micro_batches=by_tokens if steps is None else steps * plan.accumulation,
            positions=positions,
            seconds=config.seconds,
        )

    def expected_seconds(self, model: ModelConfig, speed: float) -> float:
        """Estimate the seconds of plain steps. Args: speed: operations per second."""
        step_seconds = operations(active_parameters(model), self.positions) / speed
        return self.micro_batches * step_seconds if self.seconds is None else self.seconds


class CompileDecision(NamedTuple):
    """The decision to compile or not, with a reason for the user if `auto` decided."""

    compiled: bool
    reason: str = ""


def given_decision(
    requested: bool | None,
    recorded: bool | None,
    model: ModelConfig,
    device: torch.device,
    gathers: bool,
    directions: AttentionModes = BIDIRECTIONAL,
    recomputes: bool = False,
) -> CompileDecision | None:
    """Decide as the training permits, as the checkpoint records, or as `requested`.

    Without either, a CPU runs plain steps.

    Args:
        requested: the user's choice; None: automatic.
        recorded: the choice in the checkpoint that is resumed; None: no checkpoint.
        gathers: weights are gathered between the layers that one graph has.
        directions: attention modes of the samples.
        recomputes: True if activation checkpointing is on.

    Returns:
        None: a GPU decides by the length of the training (`decide_on_gpu`).

    Raises:
        UsageError: the model cannot be compiled, or `requested` contradicts the checkpoint.
    """
    obstacle = ""
    if not model.supports_compile:
        obstacle = f"models of the family {model.family}"
    elif directions.causal_share and device.type == "cpu":
        obstacle = "samples that are read from left to right by a model that reads others whole"
    elif recomputes and device.type == "cpu":
        obstacle = "activation checkpointing: a compiled step decides itself what it computes again"
    elif gathers:
        obstacle = "weights that are gathered between the layers (ZeRO stage 3, or fsdp on a CPU)"
    decision = recorded_decision(requested, recorded, obstacle)
    if decision is None and device.type == "cpu":
        return CompileDecision(False)
    return decision


def recorded_decision(
    requested: bool | None, recorded: bool | None, obstacle: str
) -> CompileDecision | None:
    """Decide by what prevents compiling, if anything does, by the checkpoint, or by the user.

    Raises:
        UsageError: `requested` is prevented, or contradicts the checkpoint.
    """
    if obstacle:
        if requested:
            raise UsageError(f"compile (true) is not for {obstacle}; leave it out")
        reason = f"the checkpoint to continue was, but compiling is not for {obstacle}"
        return CompileDecision(False, reason if recorded else "")
    if recorded is not None and requested not in (None, recorded):
        raise UsageError(
            f"compile ({str(requested).lower()}) is not how the checkpoint to continue was trained "
            f"({str(recorded).lower()}); leave it out, or train in another directory"
        )
    choice = requested if recorded is None else recorded
    return None if choice is None else CompileDecision(choice)


def decide_on_gpu(model: ModelConfig, work: WorkEstimate) -> CompileDecision:
    """Decide by the estimated length of the training."""
    if find_spec("triton") is None:
        return CompileDecision(False, "Triton is not installed, which torch.compile needs on a GPU")
    # Wide layers gain time on the device, narrow ones time of the host that launches kernels.
    saved = max(
        GPU_GAIN * work.expected_seconds(model, GPU_SPEED),
        GPU_LAUNCHES * model.num_hidden_layers * work.micro_batches,
    )
    return CompileDecision(saved > PAYS * GPU_COMPILING)


def repays_whole_step(model: ModelConfig, work: WorkEstimate) -> bool:
    """Return True if a GPU's training is long enough to compile its step as one graph."""
    return work.expected_seconds(model, GPU_SPEED) >= WHOLE_STEP


def first_step_failure(
    scoring: PretrainModule, batch: Batch, device: torch.device, seconds: float = COMPILE_TIMEOUT
) -> str:
    """Compile the layers by a forward and backward pass over a batch, leaving no gradients.

    Returns:
        Why they could not be compiled within `seconds`; empty: they are.
    """
    ones = torch.ones(len(scoring.names), device=device)
    try:
        with _time_limit(seconds), torch.random.fork_rng([device] if device.type == "cuda" else []):
            total, _ = scoring.to(device).train()(move(batch, device), ones)
            total.backward()
    except _OutOfTime:
        torch._dynamo.reset()  # what is half compiled
        return f"compiling took more than {seconds:.0f} s"
    except torch.OutOfMemoryError:
        return ""  # the training's first step tells it
    except Exception as error:
        # torch wraps the compiler's own error (`BackendCompilerFailed`).
        cause = getattr(error, "inner_exception", error)
        return f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
    finally:
        for parameter in scoring.parameters():
            parameter.grad = None
    return ""


class _OutOfTime(BaseException):
    """No Exception: the compiler catches those, to try something else."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_OutOfTime` in the block after `seconds`, as soon as Python runs there.

    A thread that is left alone would go on: it would add gradients to the training's, draw from its
    random numbers, and abort the process if it outlived it. Only a main thread receives signals;
    any other has no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    begin = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if rest:  # somebody else's timer
            signal.setitimer(
                signal.ITIMER_REAL, max(0.001, rest - (time.monotonic() - begin)), interval
            )


def compiling_seconds(model: ModelConfig) -> float:
    """Estimate the compile time of the first step in seconds (1 to 2 s if torch has it cached)."""
    return COMPILING[0] + COMPILING[1] * model.num_hidden_layers
