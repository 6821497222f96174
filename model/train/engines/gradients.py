"""Gradient reduction over ranks that overlaps the backward pass.

Buckets contain the parameters in reverse order, which is usually the order in which gradients
become ready. A bucket is sent when it and all buckets before it are complete, so all ranks send the
same buckets in the same order. Unlike in DistributedDataParallel, buckets never change: sums are
rounded identically after a resume. Gradients are summed, not averaged, because the loss is already
divided by global counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from cloze.core.processes import HeartbeatWriter, RankPhase
from cloze.model.data.sampler import shard_range
from cloze.model.tensors import TensorSlice
from cloze.model.train.distributed import assign_owners
from cloze.model.train.throughput import TimeBreakdown

# As in torch: large enough for the network's bandwidth, small enough to start early.
BUCKET_BYTES = 25 << 20


class GradientReducer:
    """Sums the gradients of `parameters` over all ranks of the default process group.

    Call `begin` before the last backward pass of a step, and `finish` after it.

    Args:
        dtype: dtype in which gradients are sent and summed.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        pulse: HeartbeatWriter,
        timeline: TimeBreakdown,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._pulse, self._timeline, self._dtype = pulse, timeline, dtype
        self._buckets: list[list[nn.Parameter]] = []
        self._bucket_of: dict[Tensor, int] = {}
        free_bytes = 0
        for parameter in reversed(parameters):
            size = parameter.numel() * dtype.itemsize
            if not self._buckets or free_bytes < size:
                self._buckets.append([])
                free_bytes = bucket_bytes
            self._buckets[-1].append(parameter)
            self._bucket_of[parameter] = len(self._buckets) - 1
            free_bytes -= size
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
        self._flat: list[Tensor | None] = [None] * len(self._buckets)
        self._missing: list[int] = []
        self._sent: list[Any] = []
        self._running = False

    def begin(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._running = True

    def finish(self) -> None:
        """Send the remaining buckets and wait for all; every `grad` then contains the sum."""
        while len(self._sent) < len(self._buckets):
            self._send()
        with (
            self._pulse.phase(RankPhase.EXCHANGE),
            self._timeline.section("communication", on_device=True),
        ):
            # All messages were started before the first is waited for.
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
        # In the order of the buckets, not of arrival: two ranks whose gradients become ready in
        # another order would otherwise add up different buckets.
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Copy the next bucket's gradients into one tensor and start its all-reduce."""
        number = len(self._sent)
        bucket = self._buckets[number]
        flat = self._flat[number]
        if flat is None:
            size = sum(parameter.numel() for parameter in bucket)
            flat = self._flat[number] = bucket[0].new_empty(size, dtype=self._dtype)
        for view, parameter in zip(_views(flat, bucket), bucket, strict=True):
            if parameter.grad is None:
                # Another rank may have this gradient: all messages have one layout.
                view.zero_()
            else:
                view.copy_(parameter.grad)
            # The gradient becomes a view of the message, so the sum arrives in place.
            if parameter.dtype == self._dtype:
                parameter.grad = view
        self._sent.append(distributed.all_reduce(flat, async_op=True))

    @torch.no_grad()
    def _spread(self, bucket: Sequence[nn.Parameter], flat: Tensor) -> None:
        """Copy the sums into the gradients, unless these are already views of `flat`."""
        for view, parameter in zip(_views(flat, bucket), bucket, strict=True):
            if parameter.dtype != self._dtype:
                parameter.grad = view.to(parameter.dtype)


def _views(flat: Tensor, bucket: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return views of the flat tensor in the shapes of the bucket's parameters."""
    pieces = torch.split(flat, [parameter.numel() for parameter in bucket])
    return [view.view_as(parameter) for view, parameter in zip(pieces, bucket, strict=True)]


def own_tensors(
    tensors: Mapping[str, Tensor], rank: int, ranks: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that `assign_owners` assigns to this rank."""
    owners = assign_owners({name: tensor.numel() for name, tensor in tensors.items()}, ranks)
    return ((name, tensor) for name, tensor in tensors.items() if owners[name] == rank)


def own_slices(
    tensors: Iterable[tuple[str, Tensor]], rank: int, ranks: int
) -> Iterator[TensorSlice]:
    """Yield this rank's share of all values, in `ranks` equal parts of the concatenated tensors."""
    named_tensors = list(tensors)
    total = sum(tensor.numel() for _, tensor in named_tensors)
    start, stop = shard_range(0, total, rank, ranks)
    offset = 0
    for name, tensor in named_tensors:
        begin, end = max(start - offset, 0), min(stop - offset, tensor.numel())
        if begin < end:
            values = tensor.detach().flatten()[begin:end]
            yield TensorSlice(name, tuple(tensor.shape), begin, values)
        offset += tensor.numel()
