"""Precision int8: matrix products of an inference in int8, on CPUs.

A model's layers are replaced when it is loaded. Weights have a scale per output and 8 bits; they
are packed once, at their first product. Each row of the other factor has its own scale, so an
answer does not depend on what shares its batch:

    y = (codes - ZERO) W8ᵀ · scale of the row · scale of the output + bias

Rows have 7 bits: without VNNI a CPU adds two products of 8 bits in 16 bits, which overflow. So all
CPUs give the same answers. Norms, softmax, attention's products and GELU stay in fp32, and so do
the weights in memory, which embeddings read.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.layers.cpu import Linear, linear
from cloze.model.layers.cross_entropy import LazyLogits, VocabularyHead

LARGEST_WEIGHT, LARGEST_CODE, ZERO = 127, 63, 64
SMALLEST_SCALE = 1e-30  # of rows of zeros


class PackedWeight(NamedTuple):
    """A weight in oneDNN's layout, with scale and zero point of each output, [N]."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor

    def __deepcopy__(self, memo: object) -> PackedWeight:
        """Return itself: torch cannot copy oneDNN's layout."""
        return self


def pack(weight: Tensor) -> PackedWeight:
    """Return a weight [N, K] in int8."""
    scales = weight.detach().abs().amax(dim=1).clamp_min(SMALLEST_SCALE) / LARGEST_WEIGHT
    codes = (weight.detach() / scales[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    return PackedWeight(packed, scales, torch.zeros(len(weight), dtype=torch.int32))


def product(values: Tensor, own: PackedWeight, bias: Tensor | None) -> Tensor:
    """Compute float [..., K] · weight [N, K] transposed + bias [N]; not finite rows stay so."""
    rows = values.flatten(0, -2).float()
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(SMALLEST_SCALE) / LARGEST_CODE
    codes = (rows / scale).round_().add_(ZERO).to(torch.uint8)
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, ZERO, own.packed, own.scales, own.zeros, None, 1.0, 0, torch.float32,
        "none", [], "",
    )  # fmt: skip
    found = found.mul_(scale) if bias is None else found.mul_(scale).add_(bias)
    return found.view(*values.shape[:-1], len(own.scales))


class _Int8:
    """Mixin of layers: products with a weight that is packed at the first of them."""

    differentiable, lazy = False, False
    _own: tuple[Tensor, PackedWeight] | None = None

    def project(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Map float [..., K] to float [..., N], or to a lazy head's `LazyLogits`."""
        if not values.numel():
            return linear(values, weight, bias)
        if self._own is None or self._own[0] is not weight:
            self._own = weight, pack(weight)
        run = partial(product, own=self._own[1], bias=bias)
        found = self.lazy and super().project(values, weight, bias)  # type: ignore[misc]
        return found._replace(product=run) if isinstance(found, LazyLogits) else run(values)


class Int8Linear(_Int8, Linear):
    """The layer, with its product in int8."""

    def forward(self, values: Tensor) -> Tensor:
        """Map float [..., K] to float [..., N]."""
        mapped: Tensor = self.project(values, self.weight, self.bias)
        return mapped


def convert(network: nn.Module, device: torch.device) -> None:
    """Compute the products of a network's layers, and with its word embeddings, in int8.

    Raises:
        UsageError: the device is no CPU, or this torch has no oneDNN.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise UsageError(
            f"precision (int8) is for CPUs with oneDNN (the device is {device.type}); use bf16"
        )
    for module in network.modules():
        kind: Any = type(module)
        if kind is Linear:
            module.__class__ = Int8Linear
        elif isinstance(module, VocabularyHead):
            module.__class__ = type(f"Int8{kind.__name__}", (_Int8, kind), {})
