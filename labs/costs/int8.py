"""Precision int8: matrix products of an inference in int8, on CPUs.

Weights have a scale per output and 8 bits; they are packed once, at their first product. Each row
of the other factor has its own scale, so an answer does not depend on what shares its batch:

    y = (codes - ZERO) W8ᵀ · scale of the row · scale of the output + bias

Rows have 7 bits: without VNNI a CPU adds two products of 8 bits in 16 bits, which overflow. So all
CPUs give the same answers. Norms, softmax, attention's products and GELU stay in fp32, and so do
the weights in memory, which embeddings and other precisions read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from cloze.core.errors import UsageError
from cloze.model.layers.cpu import PRODUCT

LARGEST_WEIGHT, LARGEST_CODE, ZERO = 127, 63, 64
SMALLEST_SCALE = 1e-30  # of rows of zeros


class PackedWeight(NamedTuple):
    """A weight in oneDNN's layout, with scale and zero point of each output, [N]."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor
    version: int  # of the weight, which training changes in place


_packed: WeakIdKeyDictionary = WeakIdKeyDictionary()


def pack(weight: Tensor) -> PackedWeight:
    """Return a weight [N, K] in int8; packed once, until it changes."""
    known: PackedWeight | None = _packed.get(weight)  # type: ignore[no-untyped-call]
    version = 0 if weight.is_inference() else weight._version
    if known is not None and known.version == version:
        return known
    scales = weight.detach().abs().amax(dim=1).clamp_min(SMALLEST_SCALE) / LARGEST_WEIGHT
    codes = (weight.detach() / scales[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    zeros = torch.zeros(len(weight), dtype=torch.int32)
    _packed[weight] = found = PackedWeight(packed, scales, zeros, version)
    return found


def product(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute float [..., K] · weight [N, K] transposed + bias [N]; not finite rows stay so."""
    own, rows = pack(weight), values.flatten(0, -2).float()
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_SCALE) / LARGEST_CODE
    codes = (rows / scale).round_().add_(ZERO).to(torch.uint8)
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, ZERO, own.packed, own.scales, own.zeros, None, 1.0, 0, torch.float32,
        "none", [], "",
    )  # fmt: skip
    found = found.mul_(scale) if bias is None else found.mul_(scale).add_(bias)
    return found.view(*values.shape[:-1], len(weight))


def int8_products(device_type: str) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the products of `cloze.model.layers.cpu.linear` are in int8.

    Raises:
        UsageError: the device is no CPU, or this torch has no oneDNN.
    """
    if device_type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UsageError(
            f"precision (int8) is for CPUs with oneDNN (the device is {device_type}); use bf16"
        )
    return _using_int8()


@contextlib.contextmanager
def _using_int8() -> Iterator[None]:
    token = PRODUCT.set(product)
    try:
        yield
    finally:
        PRODUCT.reset(token)
