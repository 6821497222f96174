"""Which precision a device is good at: bf16 over fp32 master weights where the hardware multiplies it natively, else fp32."""

from __future__ import annotations

import contextlib
from typing import Literal

import torch

from model.train.scale import hardware
from pipeline.core.errors import UsageError

Precision = Literal["fp32", "bf16", "fp16"]
Wanted = Literal["auto", "fp32", "bf16", "fp16"]
# of matrix products
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AMPERE = (8, 0)  # the first CUDA capability that does


def native_bf16(device: torch.device) -> bool:
    """Whether `device` multiplies bf16 in hardware; elsewhere it is emulated, and slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    return hardware.native_bf16()


def resolve(wanted: Wanted, device: torch.device) -> Precision:
    """`wanted`, with `auto` decided by the device, which never takes fp16. Whoever calls it records the result."""
    if wanted == "auto":
        return "bf16" if native_bf16(device) else "fp32"
    return wanted


def settle(wanted: Wanted, recorded: str | None, device: torch.device, notes: list[str]) -> Precision:
    """The precision of a run: the one its checkpoint records, else `wanted`, decided by the device where it is `auto`.

    Args:
        recorded: by the checkpoint that training goes on from; None: there is none.
        notes: takes a sentence where this device is bad at what was recorded.

    Raises:
        UsageError: another one was asked for than is recorded.
    """
    if wanted == "fp16" and device.type == "cpu":
        notes.append("precision fp16 is for GPUs: this CPU only emulates it; bf16 or fp32 are much faster")
    if recorded is None:
        return resolve(wanted, device)
    if wanted not in ("auto", recorded):
        raise UsageError(
            f"precision ({wanted}) is not that of the checkpoint to go on from ({recorded}); leave it at auto or {recorded}, or"
            " train in another directory"
        )
    if recorded == "bf16" and not native_bf16(device):
        notes.append("going on in bf16, as the checkpoint was made, although this machine only emulates it")
    return next((precision for precision in DTYPES if precision == recorded), "fp32")


def multiply_fp32(tf32: bool, device: torch.device) -> None:
    """Say whether a GPU multiplies fp32 as TF32: with ten bits of mantissa, at up to eight times the speed."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")


def check_reduce(reduce: Precision, precision: Precision) -> None:
    """Refuse gradients that travel in fewer digits than they were computed with.

    Raises:
        UsageError: they would.
    """
    if reduce == "bf16" and precision != "bf16":
        raise UsageError(
            f"reduce (bf16) is for gradients that are computed in bf16, precision is {precision}; use --precision bf16, or leave"
            " reduce out"
        )


def autocast(precision: Precision, device_type: str) -> contextlib.AbstractContextManager[object]:
    """The context of a forward pass. Weights, gradients and optimizer stay in fp32 outside of it."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=DTYPES[precision])


def resolve_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The torch device for `Execution.device`.

    Raises:
        UsageError: CUDA is asked for and absent, or there are more processes than GPUs, or the name is unknown.
    """
    if wanted not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device ({wanted}) is unknown; use auto, cpu or cuda")
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "device (cuda) is not available on this machine; use auto or cpu, or install torch with CUDA and a driver"
        )
    if local_rank >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UsageError(
            f"processes ({local_rank + 1} or more) is greater than the number of GPUs ({count}); use {count} or fewer"
        )
    return torch.device("cuda", local_rank)
