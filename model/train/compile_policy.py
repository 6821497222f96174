"""The decision about torch.compile: compile if the steps gain by it and repay the compile time.

On a CPU the whole step is compiled, for batches of one shape. A training that is long enough
measures both kinds of step and the compile time before its first step. The choice may change the
bits of a training (other kernels, other dropout masks), so checkpoints record it.

On a GPU each layer is compiled, for all shapes and depths, in trainings of some minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.core.humanize import format_duration
from cloze.model.data.batch import BIDIRECTIONAL, AttentionModes, move
from cloze.model.data.layouts import WORTH
from cloze.model.data.mixture import RowTable
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import Batch
from cloze.model.train.plan.estimates import active_parameters, operations
from cloze.model.train.precision import Precision

if TYPE_CHECKING:
    from cloze.model.train.config import PretrainConfig
    from cloze.model.train.distributed import World
    from cloze.model.train.evaluate.scoring import PretrainModule
    from cloze.model.train.plan.micro_batch import BatchPlan

# Estimates that say whether a training is long enough to measure (two cores with AMX, BERT-mini
# and BERT-base): COMPILING, compile seconds, fixed and per layer; SPEED, operations per second per
# thread without compiling. fp16 is not measured.
COMPILING = (10.0, 6.0)
SPEED: dict[Precision, float] = {"fp32": 0.1e12, "bf16": 0.2e12, "fp16": 0.1e12}
MEASURES = 10.0  # compile times that a training must last to measure: it may lose a tenth
PAYS = 1.25  # factor by which the saved seconds must exceed the compile time: times vary
ROUNDS = 5  # steps of each kind, in alternation; the fastest counts
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
SAMPLE = 2048  # rows from which the share of padding is measured
CPU = torch.device("cpu")


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

    def total(self, step_seconds: float) -> float:
        """Return the seconds of the work if a micro-batch takes `step_seconds`."""
        return self.micro_batches * step_seconds if self.seconds is None else self.seconds

    def expected_seconds(self, model: ModelConfig, speed: float) -> float:
        """Estimate the seconds of plain steps. Args: speed: operations per second."""
        return self.total(operations(active_parameters(model), self.positions) / speed)


class StepTimes(NamedTuple):
    """Measured seconds: a plain and a compiled step of one micro-batch, and compiling."""

    plain: float
    compiled: float
    compiling: float


class CompileDecision(NamedTuple):
    """The decision to compile or not, with a reason for the user if `auto` decided."""

    compiled: bool
    reason: str = ""


def given_decision(
    requested: bool | None,
    recorded: bool | None,
    model: ModelConfig,
    train: RowTable,
    device: torch.device,
    gathers: bool,
    directions: AttentionModes = BIDIRECTIONAL,
    recomputes: bool = False,
) -> CompileDecision | None:
    """Decide as the training permits, as the checkpoint records, or as `requested`.

    Args:
        requested: the user's choice; None: automatic.
        recorded: the choice in the checkpoint that is resumed; None: no checkpoint.
        gathers: weights are gathered between the layers that one graph has.
        directions: attention modes of the samples.
        recomputes: True if activation checkpointing is on.

    Returns:
        None: decide by time.

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
    if decision is not None or device.type != "cpu":
        return decision
    if shutil.which(os.environ.get("CXX", "g++")) is None:  # as torch.compile looks for it
        return CompileDecision(False, "there is no C++ compiler")
    # Unpadding gains more, and compiled models keep the padding.
    return CompileDecision(False) if fill_ratio(train) < WORTH else None


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


def decide(
    work: WorkEstimate,
    model: ModelConfig,
    precision: Precision,
    world: World,
    measure: Callable[[], StepTimes],
) -> CompileDecision:
    """Decide by the expected length of the training; every rank must call it.

    On a CPU by the times that `measure` finds if the training is long enough to lose little by it.
    """
    if world.device.type != "cpu":
        return decide_on_gpu(model, work)
    expected = work.expected_seconds(model, SPEED[precision] * torch.get_num_threads())
    # Hosts may have other cores: all ranks measure, or none does.
    long = world.decide_on_rank_zero(lambda: expected > MEASURES * compiling_seconds(model))
    return compare(work, measure()) if long else CompileDecision(False)


def compare(work: WorkEstimate, times: StepTimes) -> CompileDecision:
    """Decide by measured times."""
    total = work.total(times.plain)
    # Shares of the same measurement, so another program on the machine slows both.
    saved = total * (1.0 - times.compiled / times.plain)
    reason = (
        f"expected to save {format_duration(max(0.0, saved))} of {format_duration(total)} of "
        f"forward and backward passes (without updates, evaluations and saves) by "
        f"{format_duration(times.compiling)} of compiling, as measured on this machine"
    )
    return CompileDecision(saved > PAYS * times.compiling, reason)


def measure_steps(scoring: PretrainModule, plain: Batch, padded: Batch) -> StepTimes:
    """Time forward and backward; the training's gradients and random numbers do not change.

    Args:
        plain: a micro-batch in the layout of plain steps.
        padded: the same rows in the fixed shape of compiled steps.
    """

    def seconds(loss: Callable[[Batch, Tensor], Any], batch: Batch) -> float:
        begin = time.perf_counter()
        _pass(scoring, batch, CPU, loss)
        return time.perf_counter() - begin

    scoring.set_compiled(True)
    first = seconds(scoring, padded)
    # In alternation: a machine that becomes busy slows both kinds.
    rounds = [
        (seconds(scoring.uncompiled, plain), seconds(scoring, padded)) for _ in range(1 + ROUNDS)
    ]
    fastest_plain, fastest_compiled = map(min, zip(*rounds[1:], strict=True))  # [0] allocates
    # The first compiled step compiled, and was a step itself.
    return StepTimes(fastest_plain, fastest_compiled, max(0.0, first - fastest_compiled))


def _pass(
    scoring: PretrainModule, batch: Batch, device: torch.device, loss: Callable[..., Any]
) -> None:
    """Run forward and backward; the training's gradients and random numbers do not change."""
    scoring.to(device).train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            total, _ = loss(move(batch, device), torch.ones(len(scoring.names), device=device))
            total.backward()
        finally:
            for parameter in scoring.parameters():
                parameter.grad = None


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
    try:
        with _time_limit(seconds):
            _pass(scoring, batch, device, scoring)
    except _OutOfTime:
        torch._dynamo.reset()  # what is half compiled
        return f"compiling took more than {seconds:.0f} s"
    except torch.OutOfMemoryError:
        return ""  # the training's first step tells it
    except Exception as error:
        # torch wraps the compiler's own error (`BackendCompilerFailed`).
        cause = getattr(error, "inner_exception", error)
        return f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
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


def fill_ratio(train: RowTable) -> float:
    """Return the share of positions with a token in sampled rows; 0 for length-binned rows."""
    if train.info is None or train.is_binned:
        return 0.0
    count = min(len(train), SAMPLE)
    sample = train.take(
        np.linspace(0, len(train) - 1, count).astype(np.int64), np.zeros(count, np.int64)
    )
    return float(sample.lengths.sum()) / (count * train.info.length)
