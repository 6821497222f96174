"""Asynchronous transfers of scalars between host and device.

Reading a scalar of a tensor makes the host wait for all work queued on the device. Here a copy to
pinned memory starts at once, and only the copy is waited for, later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class AsyncScalar:
    """A scalar on its way from the device to the host."""

    def __init__(self, scalar: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = scalar.detach()
        if scalar.device.type == "cuda":
            self._host = torch.empty(scalar.shape, dtype=scalar.dtype, pin_memory=True)
            self._host.copy_(scalar.detach(), non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def value(self) -> float:
        """The number; waits until the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)


def to_device_async(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy values to a new tensor on the device, without waiting."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(
        device, non_blocking=True
    )
