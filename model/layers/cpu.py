"""CPU code: matrix products, dropout masks, and operations that torch.compile must not fuse.

docs/decisions/models.md has the measured gains.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import embedding

from cloze.model.hardware import cpu_flags, cpu_info

# Multiply fp32 matrices with oneDNN instead of MKL, which uses AVX2 on AMD's CPUs: 250 instead of
# 110 GFLOP/s on a core of an AMD EPYC (Zen 5).
ONEDNN = (
    cpu_info().get("vendor_id") == "AuthenticAMD"
    and "avx512f" in cpu_flags()
    and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
)
# Levels of the probability: 0.1 becomes 6554 / 65536 = 0.100006, which the scale uses too.
LEVELS = 1 << 16
_STRIDE = -1640531527  # 2^32 / golden ratio: adjacent rows are far apart before hashing
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)))  # shift and factor
_PACKED = 4  # 16-bit numbers in each 64-bit draw of the generator


def linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `functional.linear`, in fp32 with the faster of a CPU's libraries."""
    fp32 = values.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if ONEDNN and fp32 and values.device.type == "cpu" and values.dim() > 1 and values.numel():
        product: Tensor = _product(values, weight, bias)
        return product
    return functional.linear(values, weight, bias)


# Not `torch.library.custom_op`, which imports torch's compiler at its first call, for a second.
_OPERATORS = torch.library.Library("cloze", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERATORS.define(  # type: ignore[no-untyped-call]
    "product(Tensor left, Tensor right, Tensor? bias) -> Tensor"
)
_product = torch.ops.cloze.product.default


@torch.library.impl(_OPERATORS, "product", "CPU")
def _compute(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Return left [..., K] · right [N, K] transposed + bias [N]; torch's compiler calls it so."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], ""))


@torch.library.register_fake("cloze::product")  # type: ignore[untyped-decorator]
def _(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return left.new_empty(*left.shape[:-1], len(right))


def _keep_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _factor_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    left, right = ctx.saved_tensors
    needs_left, needs_right, needs_bias = ctx.needs_input_grad
    rows = gradient.flatten(0, -2)
    return (
        _product(gradient, right.t(), None) if needs_left else None,
        _product(rows.t(), left.flatten(0, -2).t(), None) if needs_right else None,
        rows.sum(dim=0) if needs_bias else None,
    )


torch.library.register_autograd("cloze::product", _factor_gradients, setup_context=_keep_factors)


class Linear(nn.Linear):
    """torch's module with the product of `linear`."""

    def forward(self, values: Tensor) -> Tensor:
        """Map float [..., K] to float [..., N]."""
        return linear(values, self.weight, self.bias)


def dropout_mask(like: Tensor, dropped: int) -> Tensor:
    """Return a mask like `like`: 0 with probability `dropped` / `LEVELS`, else 1."""
    count = like.numel()
    # Twice as fast as torch's generator, which seeds it.
    generator = np.random.PCG64DXSM(int(torch.randint(1 << 62, ())))
    bits = torch.from_numpy(generator.random_raw(-(-count // _PACKED)).view(np.int16))
    mask = torch.empty_like(like, requires_grad=False)
    # One pass compares and casts.
    torch.ge(bits[:count].view(like.shape), dropped - LEVELS // 2, out=mask)
    return mask


def hashed_dropout_mask(like: Tensor, dropped: int) -> Tensor:
    """Return a bool mask from two random numbers per column, hashed with the row number.

    The hash is "lowbias32" (C. Wellons, "Prospecting for Hash Functions", 2018, nullprogram.com)
    with one of the numbers added before each round. torch.compile vectorizes it along a row.
    """
    rows, columns = like.numel() // like.shape[-1], like.shape[-1]
    seeds = torch.randint(
        -(1 << 31), (1 << 31) - 1, (2, columns), dtype=torch.int32, device=like.device
    )
    bits = torch.arange(rows, dtype=torch.int32, device=like.device)[:, None] * _STRIDE
    for seed, (shift, factor) in zip(seeds.unbind(), _ROUNDS, strict=True):
        bits = bits + seed
        bits = (bits ^ ((bits >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return ((bits >> 16) >= dropped - LEVELS // 2).view(like.shape)


@torch.library.custom_op("cloze::embedding_lookup", mutates_args=())
def embedding_lookup(weight: Tensor, ids: Tensor) -> Tensor:
    return embedding(ids, weight)


@torch.library.custom_op("cloze::embedding_backward", mutates_args=())
def _embedding_backward(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    return cast(Tensor, torch.ops.aten.embedding_dense_backward(gradient, ids, rows, -1, False))


@embedding_lookup.register_fake
def _(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


@_embedding_backward.register_fake
def _(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    return gradient.new_empty(rows, gradient.shape[-1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rows = len(inputs[0])


def _backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _embedding_backward(gradient, context.saved_tensors[0], context.rows), None


embedding_lookup.register_autograd(_backward, setup_context=_keep)


def rotary_factors(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Map angles [..., H / 2] to their cosines and signed sines, [..., H] each.

    A compiled graph on a CPU calls them: fused, each value of each head would compute a sine.
    """
    calls = torch.compiler.is_compiling() and angle.device.type == "cpu"
    factors: tuple[Tensor, Tensor] = (_called_factors if calls else _factors)(angle)
    return factors


def _factors(angle: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


_called_factors = torch.library.custom_op("cloze::rotary_factors", _factors, mutates_args=())


@_called_factors.register_fake
def _(angle: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*angle.shape[:-1], 2 * angle.shape[-1])
    return angle.new_empty(shape), angle.new_empty(shape)
