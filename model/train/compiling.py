"""Whether a run goes through torch.compile: where its steps gain by it, and where there are enough of them to pay for compiling."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import numpy as np
import torch

from model.data.directions import WHOLE, Directions
from model.data.layouts import WORTH
from model.data.shards import Rows
from model.families.config import ModelConfig
from model.train.arithmetic import computed_weights
from model.train.precision import Precision
from pipeline.core.errors import UsageError

# Measured on two cores with AMX, BERT-mini and BERT-base (benchmarks/README.md): the share of a step that is won, the seconds that
# compiling takes and those of each layer, and the operations a second that a thread reaches without.
GAIN: dict[Precision, float] = {"fp32": 0.03, "bf16": 0.1, "fp16": 0.0}  # of fp16 nobody has measured it
COMPILING = (10.0, 6.0)
SPEED: dict[Precision, float] = {"fp32": 0.1e12, "bf16": 0.2e12, "fp16": 0.1e12}
PAYS = 2.0  # times the seconds that compiling takes must be won back
SAMPLE = 2048  # rows that the share of padding is read from


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a rank will do: so many positions will have run through the layers by the end; or it has so many seconds."""

    positions: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to compile, and why not where that was left open and is not obvious."""

    compiled: bool
    reason: str = ""


def decide(
    wanted: bool | None,
    recorded: bool | None,
    model: ModelConfig,
    work: Work,
    train: Rows,
    device: torch.device,
    precision: Precision,
    zero: int,
    directions: Directions = WHOLE,
    recomputes: bool = False,
) -> Decision:
    """What the checkpoint records, `wanted`, or what pays.

    Args:
        wanted: what the user said; None: nothing.
        recorded: by the checkpoint that training goes on from; None: there is none.
        model: what is trained.
        work: how much there is to do.
        train: the dataset's rows.
        zero: the ZeRO stage.
        directions: how samples are read.
        recomputes: whether layers are computed again for the gradient.

    Raises:
        UsageError: compiling was asked for where it cannot be, or otherwise than is recorded.
    """
    if wanted and (obstacle := _obstacle(model, zero, directions, recomputes)):
        raise UsageError(f"compile (true) is not for {obstacle}; leave it out")
    if recorded is not None:
        if wanted is not None and wanted != recorded:
            raise UsageError(
                f"compile ({str(wanted).lower()}) is not how the checkpoint to go on from was trained ({str(recorded).lower()});"
                " leave it out, or train in another directory"
            )
        return Decision(recorded)
    if wanted is not None:
        return Decision(wanted)
    if device.type != "cpu":
        return Decision(False, "not measured on GPUs yet; ask for it with --compile")
    if _obstacle(model, zero, directions, recomputes):
        return Decision(False)
    if _compiler() is None:
        return Decision(False, "there is no C++ compiler")
    if full(train) < WORTH:
        return Decision(False)  # leaving padding out gains more, and compiled models keep it
    seconds = work.seconds
    if seconds is None:
        seconds = 6.0 * computed_weights(model) * work.positions / (SPEED[precision] * torch.get_num_threads())
    return Decision(seconds * GAIN[precision] > PAYS * compiling_seconds(model))


def _obstacle(model: ModelConfig, zero: int, directions: Directions, recomputes: bool) -> str:
    """What cannot be compiled; empty where everything can."""
    if not model.compiles:
        return f"models of the family {model.family}"
    if directions.causal_share:
        return "samples that are read from left to right by a model that reads others whole"
    if recomputes:
        return "activation checkpointing: a compiled step decides itself what it computes again"
    if zero == 3:
        return "ZeRO stage 3, which gathers weights between the layers"
    return ""


def compiling_seconds(model: ModelConfig) -> float:
    """How long the first step takes to compile, roughly; a second or two where torch finds it in its cache."""
    return COMPILING[0] + COMPILING[1] * model.num_hidden_layers


def full(train: Rows) -> float:
    """The share of a batch's positions that hold a token, of rows spread over the dataset; 0 for rows in length bins."""
    if train.info is None or train.bins is not None:
        return 0.0
    count = min(len(train), SAMPLE)
    rows = train.take(np.linspace(0, len(train) - 1, count).astype(np.int64), np.zeros(count, np.int64))
    return float(rows.lengths.sum()) / (count * train.info.length)


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))  # what torch.compile calls
