"""Gradients added up over ranks while the backward pass still runs.

Parameters lie in buckets in the reverse of their order, in which their gradients become ready as a rule. A bucket goes out as soon
as it and all before it are complete, so every rank sends the same buckets in the same order. Unlike DistributedDataParallel's,
buckets never change: a sum over ranks is rounded the same way after resuming as without. And it is a sum, not a mean:
the loss is divided by global counts already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from model.train.timeline import Timeline
from pipeline.core.pulse import Phase, Pulse

BUCKET_BYTES = 25 << 20  # as torch's: large enough for the network's bandwidth, small enough to begin early


class GradientSums:
    """Adds up the gradients of `parameters` over all ranks of the default process group.

    `begin` before the backward pass whose gradients are complete with it, `finish` after.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], pulse: Pulse, timeline: Timeline, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._pulse, self._timeline = pulse, timeline
        self._buckets: list[list[nn.Parameter]] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        room = 0
        for parameter in reversed(parameters):
            size = parameter.numel() * parameter.element_size()
            if not self._buckets or room < size or parameter.dtype != self._buckets[-1][0].dtype:
                self._buckets.append([])
                room = bucket_bytes
            self._buckets[-1].append(parameter)
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
        self._sent = []
        self._running = False

    def _arrived(self, parameter: Tensor) -> None:
        if not self._running:
            return
        assert isinstance(parameter, nn.Parameter)
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    def _send(self) -> None:
        """Lay the next bucket's gradients together, and have them summed; each `grad` becomes a view of the sum."""
        number = len(self._sent)
        bucket = self._buckets[number]
        flat = self._flat[number]
        if flat is None:
            flat = self._flat[number] = bucket[0].new_empty(sum(parameter.numel() for parameter in bucket))
        views = [
            view.view_as(parameter)
            for view, parameter in zip(torch.split(flat, [parameter.numel() for parameter in bucket]), bucket, strict=True)
        ]
        with torch.no_grad():
            for view, parameter in zip(views, bucket, strict=True):
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view
        self._sent.append(distributed.all_reduce(flat, async_op=True))
