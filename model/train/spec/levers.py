"""GPU levers: ways to faster steps that a training takes if `run.gpu_levers` names them.

They change losses and gradients by rounding alone. A lever is a row of the table `gpu_levers`: its
hooks are called as the training is set up, and `attach` may replace methods of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cloze.core.stages.execution import GPU_LEVERS
from cloze.model.data.layouts import LayoutKind
from cloze.model.train.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverContext:
    """What levers may depend on.

    Attributes:
        engine: key in `ENGINES`.
        layout: layout of training batches without levers.
        causal_share: share of samples that are read left to right.
        second_network: what else runs in a step, such as a teacher; empty: nothing.
    """

    device: torch.device
    engine: str
    processes: int
    precision: Precision
    optimizer: str
    layout: LayoutKind
    causal_share: float = 0.0
    second_network: str = ""
    finetuning: bool = False


class Lever:
    """One lever; this base class changes nothing of a training.

    Attributes:
        fixed_sizes: packed batches have few numbers of tokens, sequences and predictions.
        static: each of these numbers has compiled graphs of its own.
        whole_step: trainings of half an hour or more compile the step as one graph.
        finetunes: it is for fine-tuning alone, and compiles it when a pretraining would be.
    """

    fixed_sizes = static = whole_step = finetunes = False

    def obstacle(self, context: LeverContext) -> str:
        """Return why this training cannot use it, in words; empty if it can."""
        return ""

    def prepare(self, network: nn.Module, context: LeverContext, compiled: bool) -> str:
        """Change the network before it is compiled; return a note for the log, or nothing."""
        return ""

    def attach(self, engine: Any, network: nn.Module) -> None:
        """Change the engine when it is built, and the network is on the device."""


def usable_levers(
    names: Iterable[str], context: LeverContext, notes: list[str]
) -> tuple[Lever, ...]:
    """Return the levers that this training can use; notes receive a sentence for each other."""
    levers = []
    for name in dict.fromkeys(names):
        lever: Lever = GPU_LEVERS.find(name)
        obstacle = lever.obstacle(context)
        if context.device.type != "cuda":
            obstacle = "there is no GPU"
        elif lever.finetunes != context.finetuning:
            obstacle = "it is for fine-tuning" if lever.finetunes else "it is for pretraining"
        if obstacle:
            notes.append(f"gpu_levers: {name} is not used: {obstacle}")
        else:
            levers.append(lever)
    return tuple(levers)
