"""Precision and device: bf16 over fp32 master weights if the hardware supports it, else fp32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal, TypedDict, TypeVar

import torch
from torch import nn

from cloze.core.errors import UsageError
from cloze.core.plugins import Table
from cloze.model import hardware

Precision = Literal["fp32", "bf16", "fp16", "int8"]
RequestedPrecision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
# Dtypes of matrix products.
DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,  # of what is no product
}
Network = TypeVar("Network", bound=nn.Module)
Context = contextlib.AbstractContextManager[object]
# Further precisions of inference: each replaces layers of a network, and refuses other devices.
PRECISIONS: Table[Callable[[nn.Module, torch.device], None]] = Table("precisions", "precision", {})
AMPERE = (8, 0)  # first CUDA capability with bf16


def native_bf16(device: torch.device) -> bool:
    """Return True if `device` multiplies bf16 in hardware; emulation is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    return hardware.bf16_core_speed() is not None


def resolve(requested: RequestedPrecision, device: torch.device) -> Precision:
    """Resolve `auto` to bf16 or fp32 by the device. The caller records the result."""
    if requested in PRECISIONS:
        PRECISIONS[requested](nn.Module(), device)
    if requested == "auto":
        return "bf16" if native_bf16(device) else "fp32"
    return requested


class Placement(TypedDict, total=False):
    """Where and how a model computes: keyword arguments of the inference pipelines."""

    device: torch.device
    precision: Precision


def placement(device: str, precision: RequestedPrecision) -> Placement:
    """Resolve the options `device` and `precision`; raises as `resolve_device`."""
    resolved = resolve_device(device)
    return Placement(device=resolved, precision=resolve(precision, resolved))


def place(network: Network, device: torch.device, precision: Precision) -> Network:
    """Move a network for inference to a device, and replace layers if the precision does."""
    network = network.to(device)
    if precision in PRECISIONS:
        PRECISIONS[precision](network, device)
    return network


def resolve_for_run(
    requested: RequestedPrecision, recorded: str | None, device: torch.device, notes: list[str]
) -> Precision:
    """Return the precision of a run: as recorded in the checkpoint, else as `requested`.

    Args:
        recorded: precision in the checkpoint that is resumed; None: no checkpoint.
        notes: receives a message if this device only emulates the precision.

    Raises:
        UsageError: `requested` contradicts the checkpoint.
    """
    if requested == "fp16" and device.type == "cpu":
        notes.append(
            "precision fp16 is for GPUs: this CPU only emulates it; bf16 or fp32 are much faster"
        )
    if recorded is None:
        return resolve(requested, device)
    if requested not in ("auto", recorded):
        raise UsageError(
            f"precision ({requested}) is not that of the checkpoint to resume ({recorded}); "
            f"leave it at auto or {recorded}, or train in another directory"
        )
    if recorded == "bf16" and not native_bf16(device):
        notes.append(
            "continuing in bf16, as the checkpoint was made, although this machine only emulates it"
        )
    return next((precision for precision in DTYPES if precision == recorded), "fp32")


def check_grad_reduce_dtype(grad_reduce_dtype: Precision, precision: Precision) -> None:
    """Check that gradients are not reduced in a lower precision than they are computed in.

    Raises:
        UsageError: `grad_reduce_dtype` is bf16 and the precision is not.
    """
    if grad_reduce_dtype == "bf16" and precision != "bf16":
        raise UsageError(
            f"grad_reduce_dtype (bf16) requires precision bf16, and precision is {precision}; use "
            f"--precision bf16, or leave grad_reduce_dtype out"
        )


def autocast(precision: Precision, device_type: str) -> Context:
    """Return the context of a forward pass; everything outside of it stays fp32."""
    if (dtype := DTYPES[precision]) is torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=dtype)


def resolve_device(requested: str, local_rank: int = 0) -> torch.device:
    """Return the torch device for `Execution.device`.

    Raises:
        UsageError: the name is unknown, CUDA is not available, or there are more processes than
            GPUs.
    """
    if requested not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device ({requested}) is unknown; use auto, cpu or cuda")
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "device (cuda) is not available on this machine; use auto or cpu, or install torch "
            "with CUDA and a driver"
        )
    if local_rank >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(
            f"processes ({local_rank + 1} or more) is greater than the number of GPUs ({count}); "
            f"use {count} or fewer"
        )
    return torch.device("cuda", local_rank)
