"""Model FLOPs utilisation: the operations that a model's arithmetic asks for, beside the most that the device can do in that time.

The count is `model.train.arithmetic`'s, for real tokens alone: padding and layers that are computed again are no work. A GPU's peak is
that of the table of hardware. No table knows what a CPU reaches: it is what a product of two matrices reaches here, now.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch

from model.families.config import ModelConfig
from model.train.arithmetic import operations_per_token
from model.train.precision import DTYPES, Precision
from model.train.scale import hardware

SIDE = 1024  # of the matrices, larger than the second-level cache
TRIES = 5  # of which the fastest counts


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Of a training.

    Attributes:
        model: what is trained.
        peak: operations a second of all its ranks' devices; None: not known.
        source: where it is from, or why it is not known.
    """

    model: ModelConfig
    peak: float | None
    source: str

    def mfu(self, tokens_per_second: float, seen: float) -> float | None:
        """The share of the peak.

        Args:
            tokens_per_second: real ones, of all ranks.
            seen: tokens of its sequence that a token sees on average, itself included.
        """
        if self.peak is None:
            return None
        return tokens_per_second * operations_per_token(self.model, seen) / self.peak


def utilisation(model: ModelConfig, precision: Precision, device: torch.device, ranks: int) -> Utilisation:
    """Of a training of `model` on so many ranks with a device like this one each."""
    if device.type == "cuda":
        peak, source = _gpu_peak(device, precision)
    elif precision == "fp16":  # whose products take minutes on most of them
        peak, source = None, "no MFU is told: fp16 is for GPUs"
    else:
        peak, source = _cpu_peak(precision, torch.get_num_threads()), _told_cpu(precision)
    return Utilisation(model, None if peak is None else peak * ranks, source)


def _gpu_peak(device: torch.device, precision: Precision) -> tuple[float | None, str]:
    name = torch.cuda.get_device_name(device)
    found = hardware.recognised(name)
    if found is None:
        return None, f"no MFU is told: {name} is not in the table of GPUs (model/train/scale/hardware.py)"
    return (found.fp32 if precision == "fp32" else found.bf16), found.source


@functools.cache  # a process may train more than once
def _cpu_peak(precision: Precision, threads: int) -> float:
    """Operations a second of this process's threads in a product of two matrices, by the time that cores gave them: what else the machine
    does takes none of it.
    """
    matrix = torch.linspace(-1.0, 1.0, SIDE * SIDE).view(SIDE, SIDE).to(DTYPES[precision])
    fastest = float("inf")
    for _ in range(TRIES):
        began = time.process_time()
        matrix @ matrix
        fastest = min(fastest, (time.process_time() - began) / threads)
    return 2.0 * SIDE**3 / fastest


def _told_cpu(precision: Precision) -> str:
    return (
        f"a product of two {SIDE} x {SIDE} matrices in {precision} on {torch.get_num_threads()} threads, measured at the start"
    )
