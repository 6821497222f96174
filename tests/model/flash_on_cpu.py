"""A stand-in on the CPU for torch's flash attention over cumulative lengths.

Importing it gives `aten::_flash_attention_forward` and its gradient a CPU kernel without dropout,
so that packed layouts and compiled layers can be tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("aten", "IMPL")


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *others: Any, **options: Any
) -> tuple[Tensor, ...]:
    mixed, (_, _, _, _, causal, _) = torch.zeros_like(query), others
    for part in _sequences(bounds):
        probabilities = _probabilities(query[part], key[part], causal, **options)
        mixed[part] = torch.einsum("nqk,knh->qnh", probabilities, value[part].float())
    number = torch.zeros((), dtype=torch.uint64)
    sums = torch.zeros(query.shape[1], query.shape[0])
    return mixed, sums, number.new_zeros(2), number, torch.zeros(0)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    bounds: Tensor,
    *others: Any,
    **options: Any,
) -> tuple[Tensor, ...]:
    del output, sums
    gradients, causal = [torch.zeros_like(tensor) for tensor in (query, key, value)], others[4]
    for part in _sequences(bounds):
        q, k, v, g = (tensor[part].float() for tensor in (query, key, value, gradient))
        probabilities = _probabilities(q, k, causal, **options)
        change = torch.einsum("qnh,knh->nqk", g, v)
        scores = probabilities * (change - (change * probabilities).sum(-1, keepdim=True))
        scores = scores * q.shape[-1] ** -0.5
        parts = (
            torch.einsum("nqk,knh->qnh", scores, k),
            torch.einsum("nqk,qnh->knh", scores, q),
            torch.einsum("nqk,qnh->knh", probabilities, g),
        )
        for whole, values in zip(gradients, parts, strict=True):
            whole[part] = values.to(whole.dtype)
    return tuple(gradients)


def _sequences(bounds: Tensor) -> Iterator[slice]:
    numbers = bounds.tolist()
    return (slice(start, stop) for start, stop in zip(numbers, numbers[1:], strict=False))


def _probabilities(
    query: Tensor,
    key: Tensor,
    causal: bool,
    window_size_left: int | None = None,
    **_: Any,
) -> Tensor:
    positions = torch.arange(len(query))
    offset = positions - positions[:, None]
    scores = torch.einsum("qnh,knh->nqk", query.float(), key.float()) * query.shape[-1] ** -0.5
    if window_size_left is not None and window_size_left >= 0:
        scores = scores.masked_fill(offset.abs() > window_size_left, -torch.inf)
    if causal:
        scores = scores.masked_fill(offset > 0, -torch.inf)
    return scores.softmax(-1)


_LIBRARY.impl("_flash_attention_forward", _forward, "CPU")
_LIBRARY.impl("_flash_attention_backward", _backward, "CPU")
