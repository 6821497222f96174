"""Operations of all layers, fast on CPUs, too: products, dropout, activations, casts, attention.

Some are operators that torch.compile must not fuse. docs/decisions/models.md has measured gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
# As int32, whose products wrap around; the second factor is negative there.
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
        # torch's shift of int32 repeats the sign bit; the mask makes it the hash's logical one.
        bits = (bits ^ ((bits >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return ((bits >> 16) >= dropped - LEVELS // 2).view(like.shape)


@torch.library.custom_op("cloze::embedding_lookup", mutates_args=())
def embedding_lookup(weight: Tensor, ids: Tensor) -> Tensor:
    return embedding(ids, weight)


@torch.library.custom_op("cloze::embedding_backward", mutates_args=())
def _embedding_backward(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    # -1: no padding row. False: gradients are not divided by how often an id occurs.
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


# Activations by their names in Hugging Face configs, dropout, and references to modules.

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "tanh": torch.tanh,
}


def dropout(values: Tensor, probability: float) -> Tensor:
    """Set a random share of `values` to 0 and scale up the others (Srivastava et al., 2014).

    On CPUs torch draws 64 bits per value on one thread: a fifth of a BERT-mini's bf16 step. Here
    one draw gives four values of 16 bits. In a compiled graph, masks are hashes of a few draws and
    the position, computed in forward and backward and never stored.

    Args:
        values: float, any shape.
        probability: probability of dropping a value; 0 returns `values` without drawing.
    """
    if not probability:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, probability)
    dropped = round(probability * LEVELS)
    if torch.compiler.is_compiling():
        return torch.where(
            hashed_dropout_mask(values, dropped), values * (LEVELS / (LEVELS - dropped)), 0.0
        )
    # Twice as fast as torch's generator, which seeds it.
    generator, count = np.random.PCG64DXSM(int(torch.randint(1 << 62, ()))), values.numel()
    # int16 has -32768 as its lowest level, hence the comparison with `LEVELS` // 2 less.
    bits = torch.from_numpy(generator.random_raw(-(-count // _PACKED)).view(np.int16))
    mask = torch.empty_like(values, requires_grad=False)
    # One pass compares and casts.
    torch.ge(bits[:count].view(values.shape), dropped - LEVELS // 2, out=mask)
    return values * mask.mul_(LEVELS / (LEVELS - dropped))


def autocast_input(hidden: Tensor, *, stream: bool = False) -> Tensor:
    """Cast `hidden` to autocast's dtype once, instead of once per projection.

    Args:
        stream: these are states between layers, a norm's output. On a GPU sums and norms then move
            half the bytes, as in fairseq's and Megatron's half-precision trainings, and norms
            compute in fp32. A CPU keeps fp32.
    """
    device = hidden.device.type
    if not torch.is_autocast_enabled(device) or (stream and device == "cpu"):
        return hidden
    return hidden.to(torch.get_autocast_dtype(device))


class Dropout(nn.Module):
    """Module for `dropout` in training.

    Args:
        probability: probability of dropping a value.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        return dropout(values, self.probability if self.training else 0.0)


class ModuleReference(nn.Module):
    """Reference to a module (or one of its methods) that another module owns; has no parameters."""

    def __init__(self, owned: Callable[..., Any]) -> None:
        super().__init__()
        self._owned = (owned,)  # a tuple, so that torch does not register it

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self._owned[0](*inputs, **options)


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute attention of rows without returning probabilities, by the faster way of a device.

    On CPUs in bf16 the fused kernel does not use the matrix units (AMX), which cost a quarter of a
    BERT-mini's training step. With dropout, CPUs have no fused kernel and draw random numbers
    slowly. Otherwise the fused kernel is faster and needs no [L, L] memory.

    Args:
        query: float [B, N, L, H].
        key, value: float [B, N, K, H].
        bias: added to the scores, broadcast to [B, N, L, K]; None for no bias.
        dropout: dropout of the probabilities; 0 outside training.

    Returns:
        float [B, N, L, H].
    """
    if query.device.type == "cpu" and (query.dtype == torch.bfloat16 or dropout > 0.0):
        return matmul_attention(query, key, value, bias, dropout)[0]
    bias = None if bias is None else bias.to(query.dtype)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout
    )


def matmul_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, probability: float
) -> tuple[Tensor, Tensor]:
    """Compute `scaled_dot_product_attention` with its probabilities; arguments as for `attend`.

    Returns:
        Mixed values [B, N, L, H], and probabilities before dropout [B, N, L, K], in the inputs'
        dtype; softmax is computed in fp32 and rounded.
    """
    with torch.autocast(
        query.device.type, enabled=False
    ):  # else softmax would store [L, K] in fp32
        scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(-1, -2))
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        probabilities = torch.softmax(scores, dim=-1)
        return torch.matmul(dropout(probabilities, probability), value), probabilities


@torch.no_grad()
def attention_maps(query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """Return the attention probabilities, float [B, N, L, K], without gradient."""
    # The keys stand in for values, whose mix nobody reads.
    return matmul_attention(query, key, key, bias, 0.0)[1]
