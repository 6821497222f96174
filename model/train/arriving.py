"""Numbers between the host and its device, without either waiting for the other.

A number of a tensor that is asked for makes the host wait until the device has done all that it was given, also what came after. Here
a copy to page-locked memory is begun at once, and only that is waited for, later.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Arriving:
    """A scalar of the device on its way to the host."""

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
        """The number, as soon as it is there."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)


def departing(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of these values on the device."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
