"""Where fine-tuning and evaluation compute: device, threads, and the precision by the trainer's rule."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Literal

import torch

from model.train.precision import Precision, autocast, resolve, resolve_device
from pipeline.core.execution import Execution

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The device, and the precision of matrix products (weights are fp32 whatever it is)."""

    device: torch.device
    precision: Precision

    def __call__(self) -> contextlib.AbstractContextManager[object]:
        """The autocast context of a forward pass."""
        return autocast(self.precision, self.device.type)


def hardware_of(execution: Execution, precision: Literal["auto", "fp32", "bf16"]) -> Hardware:
    """What the settings mean on this machine; the choice is logged. One process computes, on all cores or on `threads`.

    Raises:
        UsageError: the device asked for is not there.
    """
    if execution.threads is not None:
        torch.set_num_threads(execution.threads)
    device = resolve_device(execution.device)
    hardware = Hardware(device=device, precision=resolve(precision, device))
    log.info("computing on %s in %s (precision: %s)", device, hardware.precision, precision)
    return hardware
