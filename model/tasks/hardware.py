"""Where an evaluation computes: device, threads, and the precision by the trainer's rule."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from model.train.distributed import World
from model.train.precision import Precision, resolve, resolve_device
from pipeline.core.execution import Execution

log = logging.getLogger(__name__)


def alone(execution: Execution, precision: Literal["auto", "fp32", "bf16"]) -> tuple[World, Precision]:
    """This process on its own, on all cores or on `threads`, and what `precision` means there; the choice is logged.

    Raises:
        UsageError: the device asked for is not there.
    """
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    device = resolve_device(execution.device)
    chosen = resolve(precision, device)
    log.info("computing on %s in %s (precision: %s)", device, chosen, precision)
    return World(rank=0, size=1, device=device), chosen
