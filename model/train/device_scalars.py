"""Asynchronous transfers between host and device, and the loss scale of fp16.

Reading a tensor of the device makes the host wait for all work queued there. `AsyncCopy` starts a
copy to pinned memory at once, and only the copy is waited for, later.

The loss scale is dynamic, in powers of two; fp16's smallest number is 6e-8. The rule is that of
Micikevicius et al., "Mixed Precision Training", 2018, section 3.2, with the constants of
`torch.amp.GradScaler`: an overflowing step changes no weight and halves the scale; GROWTH_STEPS
consecutive finite steps double it. All engines share it, so a checkpoint can be resumed with
another engine.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

BEHIND = 2  # batches whose results are on their way to the host
FIRST = 2.0**16
LEAST = 1.0  # a non-finite gradient at this scale is no overflow but an error
GROWTH_STEPS = 2000


class AsyncCopy:
    """A tensor that is being copied from the device to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        # On a CPU it is the tensor itself, so its owner must not change it in place.
        self._host = tensor.detach()
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach(), non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> Tensor:
        """Return the tensor on the host; waits until the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.cpu()


class AsyncScalar(AsyncCopy):
    """A scalar that is being copied from the device to the host."""

    @property
    def value(self) -> float:
        """The number; waits until the copy is complete."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)


Key = TypeVar("Key")


def read_async(
    results: Iterable[tuple[Key, Sequence[Tensor]]],
) -> Iterator[tuple[Key, list[npt.NDArray[Any]]]]:
    """Yield the results of batches on the host, `BEHIND` batches after they were queued.

    So results are copied while the device computes the next batches.

    Args:
        results: iterator that queues a batch; the key comes back with its results.
    """
    pending: deque[tuple[Key, list[AsyncCopy]]] = deque()
    for item in itertools.chain(results, [None] * BEHIND):
        if item is not None:
            key, tensors = item  # numpy has no bf16
            pending.append(
                (key, [AsyncCopy(t.float() if t.is_floating_point() else t) for t in tensors])
            )
        if pending and (item is None or len(pending) > BEHIND):
            first, copies = pending.popleft()
            # Copied once more, so that pinned memory is used again.
            yield first, [copy.wait().numpy().copy() for copy in copies]


def to_device_async(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy values to a new tensor on the device, without waiting."""
    # Page-locked: from other memory the host would wait even with `non_blocking`.
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(
        device, non_blocking=True
    )


class LossScale:
    """The loss scale, kept on the device so that the host never waits for it.

    Attributes:
        value: fp32 scalar, the scale of the next step; never changed in place.
    """

    def __init__(self, device: torch.device) -> None:
        self.value = torch.tensor(FIRST, device=device)
        self._good = torch.tensor(0.0, device=device)  # steps since the last change

    def update(self, norm: Tensor) -> None:
        """Update the scale after a step. Args: norm: scalar, norm of the step's gradient."""
        finite = torch.isfinite(norm).to(self.value.device)
        # No `if`: the host would have to wait for the norm. Factors of two lose no digit.
        finite_steps = torch.where(finite, self._good + 1, 0.0)
        grows = finite_steps >= GROWTH_STEPS
        # New tensors, not changed ones: the log may still be reading the old value.
        self.value = torch.where(
            finite, self.value * torch.where(grows, 2.0, 1.0), (self.value / 2).clamp(min=LEAST)
        )
        self._good = torch.where(grows, 0.0, finite_steps)

    def state(self) -> list[float]:
        """Return the state for a checkpoint."""
        return [float(self.value), float(self._good)]

    def restore(self, state: Sequence[float]) -> None:
        """Restore the result of `state`; empty (a training without scaling): no change."""
        if state:
            value, finite_steps = state
            self.value, self._good = (
                torch.full_like(self.value, value),
                torch.full_like(self._good, finite_steps),
            )
