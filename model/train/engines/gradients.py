"""Gradients added up over ranks while the backward pass still runs.

Parameters lie in buckets in the reverse of their order, in which their gradients become ready as a rule. A bucket goes out as soon
as it and all before it are complete, so every rank sends the same buckets in the same order. Unlike DistributedDataParallel's,
buckets never change: a sum over ranks is rounded the same way after resuming as without. And it is a sum, not a mean:
the loss is divided by global counts already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from model.train.timeline import Timeline
from pipeline.core.pulse import Phase, Pulse

BUCKET_BYTES = 25 << 20  # as torch's: large enough for the network's bandwidth, small enough to begin early


def itself(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter's gradient is its own."""
    return parameter


class GradientSums:
    """Adds up the gradients of `parameters` over all ranks of the default process group.

    `begin` before the backward pass whose gradients are complete with it, `finish` after.

    Args:
        holder: what has a parameter's gradient as its own when it has arrived there.
        dtype: in which gradients travel, and are added up.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        pulse: Pulse,
        timeline: Timeline,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        holder: Callable[[nn.Parameter], nn.Parameter] = itself,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._pulse, self._timeline, self._dtype = pulse, timeline, dtype
        self._buckets: list[list[nn.Parameter]] = []  # of holders
        self._bucket_of: dict[Tensor, int] = {}
        room = 0
        for parameter in reversed(parameters):
            size = parameter.numel() * dtype.itemsize
            if not self._buckets or room < size:
                self._buckets.append([])
                room = bucket_bytes
            self._buckets[-1].append(holder(parameter))
            self._bucket_of[parameter] = len(self._buckets) - 1
            room -= size
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
        self._flat: list[Tensor | None] = [None] * len(self._buckets)
        self._missing: list[int] = []
        self._sent: list[Any] = []
        self._running = False

    def begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._running = True

    def finish(self) -> None:
        """Send what no gradient came for, too, and wait for all: now every `grad` holds the sum."""
        while len(self._sent) < len(self._buckets):
            self._send()
        with self._pulse.within(Phase.EXCHANGE), self._timeline.part("communication", on_device=True):
            for work in self._sent:
                work.wait()
        for bucket, flat in zip(self._buckets, self._flat, strict=True):
            assert flat is not None
            self._spread(bucket, flat)
        self._sent = []
        self._running = False

    def _arrived(self, parameter: Tensor) -> None:
        if not self._running:
            return
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Lay the next bucket's gradients together, and have them summed."""
        number = len(self._sent)
        bucket = self._buckets[number]
        flat = self._flat[number]
        if flat is None:
            size = sum(parameter.numel() for parameter in bucket)
            flat = self._flat[number] = bucket[0].new_empty(size, dtype=self._dtype)
        for view, parameter in zip(_views(flat, bucket), bucket, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
            if parameter.dtype == self._dtype:
                parameter.grad = view
        self._sent.append(distributed.all_reduce(flat, async_op=True))

    @torch.no_grad()
    def _spread(self, bucket: Sequence[nn.Parameter], flat: Tensor) -> None:
        """Where gradients travelled in another type than theirs, give each the sum; else they are views of it."""
        for view, parameter in zip(_views(flat, bucket), bucket, strict=True):
            if parameter.dtype != self._dtype:
                parameter.grad = view.to(parameter.dtype) if parameter.grad is None else parameter.grad.copy_(view)


def _views(flat: Tensor, bucket: Sequence[nn.Parameter]) -> list[Tensor]:
    """The bucket's parts of what lies together, in the parameters' shapes."""
    cut = torch.split(flat, [parameter.numel() for parameter in bucket])
    return [view.view_as(parameter) for view, parameter in zip(cut, bucket, strict=True)]
