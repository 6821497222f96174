"""Half-precision copies of weights, written by the optimizer's step instead of cast in each pass.

A module with a copy gets a class that uses it where autocast would cast its weights. The copies are
buffers that no checkpoint has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.labs.levers.tied_table import COPY
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.cpu import Linear, autocast_input, linear
from cloze.model.layers.layout import BatchLayout
from cloze.model.train.engines.torch import TorchEngine

Copy = tuple[Tensor, Tensor]  # the copy, and the fp32 weight


class _Copied(torch.autograd.Function):
    """The copy in place of its weights, whose gradients are its rows in fp32."""

    @staticmethod
    def forward(context: Any, half: Tensor, *weights: Tensor) -> Tensor:
        context.rows = [len(weight) for weight in weights]
        return half.view_as(half)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        return None, *(part.float() for part in torch.split(gradient, context.rows))


def _copied(half: Tensor, *weights: Tensor) -> Tensor:
    return cast(Tensor, _Copied.apply(half, *weights))  # type: ignore[no-untyped-call]


class HalfLinear(Linear):
    """A projection with a copy of its weight, [N, K]."""

    weight_copy: Tensor

    def forward(self, values: Tensor) -> Tensor:
        """Map float [..., K] to float [..., N]."""
        if not torch.is_autocast_enabled(values.device.type):
            return super().forward(values)
        return linear(values, _copied(self.weight_copy, self.weight), self.bias)

    def parts(self) -> tuple[Linear, ...]:
        return (self,)


class HalfAttention(SelfAttention):
    """Attention with one copy of the query, key and value matrices, [3 N H, D]."""

    weight_copy: Tensor

    def project(
        self, hidden: Tensor, layout: BatchLayout | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project [..., D] to query, key and value, [..., N, H] each."""
        if not torch.is_autocast_enabled(hidden.device.type):
            return super().project(hidden, layout)
        layers, bias = self.parts(), None
        if self.query.bias is not None:
            bias = torch.cat([layer.bias for layer in layers])
        weight = _copied(self.weight_copy, *(layer.weight for layer in layers))
        query, key, value = linear(autocast_input(hidden), weight, bias).chunk(3, dim=-1)
        return self.split(query), self.split(key), self.split(value)

    def parts(self) -> tuple[Linear, ...]:
        return self.query, self.key, self.value


def add_copies(network: nn.Module, dtype: torch.dtype) -> int:
    """Add copies of all layers' matrices, still empty; return their number.

    Modules of derived classes stay as they are. A projection that attention stacks keeps no copy of
    its own.
    """
    stacked, added = set[nn.Module](), 0
    for module in network.modules():
        if type(module) is SelfAttention and not module.fused:
            module.__class__ = HalfAttention
        elif type(module) is Linear and module not in stacked:
            module.__class__ = HalfLinear
        else:
            continue
        parts = cast(HalfLinear | HalfAttention, module).parts()
        stacked.update(parts)
        shape = sum(len(part.weight) for part in parts), parts[0].weight.shape[1]
        half = torch.zeros(shape, dtype=dtype, device=parts[0].weight.device)
        module.register_buffer("weight_copy", half, persistent=False)
        added += 1
    return added


def copies(network: nn.Module) -> Iterator[Copy]:
    for module in network.modules():
        if isinstance(module, (HalfLinear, HalfAttention)):
            weights = [part.weight for part in module.parts()]
            pieces = torch.split(module.weight_copy, [len(weight) for weight in weights])
            yield from zip(pieces, weights, strict=True)
    for weight in network.parameters():
        if (padded := getattr(weight, COPY, None)) is not None:
            yield padded[: len(weight)], weight


def write_after_updates(engine: TorchEngine, network: nn.Module) -> None:
    """Write all copies now and whenever the engine has changed weights."""
    pairs = list(copies(network))
    if not pairs:
        return  # torch copies no empty lists

    def write() -> None:
        with torch.no_grad():
            torch._foreach_copy_([copy for copy, _ in pairs], [weight for _, weight in pairs])

    write()
    engine.after_update = write
