"""The decision about torch.compile: compile if the steps gain by it and repay the compile time.

On a CPU the whole step is compiled, for batches of one shape; on a GPU each layer, for all shapes.
"""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

from cloze.core.errors import UsageError
from cloze.model.data.batch import BIDIRECTIONAL, AttentionModes, Batch, move
from cloze.model.data.layouts import WORTH
from cloze.model.data.shards import RowTable
from cloze.model.families.config import ModelConfig
from cloze.model.layers.cross_entropy import VocabularyHead
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.plan.flops import active_parameters
from cloze.model.train.precision import Precision

# Measured on two cores with AMX, BERT-mini and BERT-base (benchmarks/README.md): GAIN, share of a
# step that is saved; COMPILING, compile seconds, fixed and per layer; SPEED, operations per second
# per thread without compiling.
# fp16 is not measured.
GAIN: dict[Precision, float] = {"fp32": 0.03, "bf16": 0.1, "fp16": 0.0}
COMPILING = (10.0, 6.0)
SPEED: dict[Precision, float] = {"fp32": 0.1e12, "bf16": 0.2e12, "fp16": 0.1e12}
# On an H200, BERT-base and BERT-large at length 512 (benchmarks/README.md): share of a step that is
# saved, seconds for any depth, and operations per second of plain steps.
GPU_GAIN, GPU_COMPILING, GPU_SPEED = 0.15, 20.0, 2.5e14
COMPILE_TIMEOUT = 600.0  # seconds; layers that are not compiled by then run plain
PAYS = 2.0  # factor by which the saved seconds must exceed the compile time
SAMPLE = 2048  # rows from which the share of padding is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """The work of a rank: a number of positions through the layers, or a number of seconds."""

    positions: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CompileDecision:
    """The decision to compile or not, with a reason for the user if `auto` decided against it."""

    compiled: bool
    reason: str = ""


def decide_compile(
    wanted: bool | None,
    recorded: bool | None,
    model: ModelConfig,
    work: WorkEstimate,
    train: RowTable,
    device: torch.device,
    precision: Precision,
    zero: int,
    directions: AttentionModes = BIDIRECTIONAL,
    recomputes: bool = False,
) -> CompileDecision:
    """Decide whether to compile: as the checkpoint records, as `wanted`, or if it pays.

    Args:
        wanted: the user's choice; None: automatic.
        recorded: the choice in the checkpoint that is resumed; None: no checkpoint.
        model: the trained model.
        work: the amount of work.
        train: the dataset's rows.
        zero: the ZeRO stage.
        directions: attention modes of the samples.
        recomputes: True if activation checkpointing is on.

    Raises:
        UsageError: the model cannot be compiled, or `wanted` contradicts the checkpoint.
    """
    if wanted and (obstacle := _obstacle(model, zero, directions, recomputes, device)):
        raise UsageError(f"compile (true) is not for {obstacle}; leave it out")
    if recorded is not None:
        if wanted is not None and wanted != recorded:
            raise UsageError(
                f"compile ({str(wanted).lower()}) is not how the checkpoint to go on from was "
                f"trained ({str(recorded).lower()});"
                " leave it out, or train in another directory"
            )
        return CompileDecision(recorded)
    if wanted is not None:
        return CompileDecision(wanted)
    if _obstacle(model, zero, directions, recomputes, device):
        return CompileDecision(False)
    if device.type != "cpu":
        return _decide_on_gpu(model, work)
    if _compiler() is None:
        return CompileDecision(False, "there is no C++ compiler")
    if fill_ratio(train) < WORTH:
        return CompileDecision(False)  # unpadding gains more, and compiled models keep the padding
    seconds = work.seconds
    if seconds is None:
        seconds = (
            6.0
            * active_parameters(model)
            * work.positions
            / (SPEED[precision] * torch.get_num_threads())
        )
    return CompileDecision(seconds * GAIN[precision] > PAYS * compiling_seconds(model))


def _decide_on_gpu(model: ModelConfig, work: WorkEstimate) -> CompileDecision:
    if find_spec("triton") is None:
        return CompileDecision(False, "Triton is not installed, which torch.compile needs on a GPU")
    seconds = work.seconds
    if seconds is None:
        seconds = 6.0 * active_parameters(model) * work.positions / GPU_SPEED
    return CompileDecision(seconds * GPU_GAIN > PAYS * GPU_COMPILING)


def first_step_failure(
    scoring: PretrainModule,
    batch: Batch,
    device: torch.device,
    seconds: float = COMPILE_TIMEOUT,
) -> str:
    """Compile the layers by a forward and backward pass over a batch, leaving no gradients.

    Returns:
        Why they could not be compiled within `seconds`; empty: they are.
    """
    failure = [f"compiling took more than {seconds:.0f} s"]

    def compile_layers() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # of this thread
            counts = torch.ones(len(scoring.names), device=device)
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                scoring(move(batch, device), counts)[0].backward()
            failure[0] = ""
        except torch.OutOfMemoryError:
            failure[0] = ""  # the training's first step tells it
        except Exception as error:
            cause = getattr(error, "inner_exception", error)
            failure[0] = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"

    scoring.to(device).train()
    thread = threading.Thread(target=compile_layers, name="compile", daemon=True)
    thread.start()
    thread.join(seconds)
    for parameter in scoring.parameters():
        parameter.grad = None
    return failure[0]


def decompile(network: nn.Module) -> None:
    """Run the layers and heads of a network plain from now on."""
    for module in network.modules():
        module._compiled_call_impl = None
        if isinstance(module, VocabularyHead):
            module.compiled = False


def _obstacle(
    model: ModelConfig,
    zero: int,
    directions: AttentionModes,
    recomputes: bool,
    device: torch.device,
) -> str:
    """Return what rules out compiling; empty: nothing."""
    if not model.supports_compile:
        return f"models of the family {model.family}"
    if directions.causal_share:
        return "samples that are read from left to right by a model that reads others whole"
    if recomputes and device.type == "cpu":
        return "activation checkpointing: a compiled step decides itself what it computes again"
    if zero == 3:
        return "ZeRO stage 3, which gathers weights between the layers"
    return ""


def compiling_seconds(model: ModelConfig) -> float:
    """Estimate the compile time of the first step in seconds (1 to 2 s if torch has it cached)."""
    return COMPILING[0] + COMPILING[1] * model.num_hidden_layers


def fill_ratio(train: RowTable) -> float:
    """Return the share of positions with a token in sampled rows; 0 for length-binned rows."""
    if train.info is None or train.bins is not None:
        return 0.0
    count = min(len(train), SAMPLE)
    sample = train.take(
        np.linspace(0, len(train) - 1, count).astype(np.int64), np.zeros(count, np.int64)
    )
    return float(sample.lengths.sum()) / (count * train.info.length)


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))  # as torch.compile does
