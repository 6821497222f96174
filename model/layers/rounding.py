"""Rounding of weights under autocast: all linear layers of an encoder layer in one operation.

Autocast rounds every weight and every bias by itself, and their gradients likewise: 24 kernels in a
BERT layer, which a GPU finishes sooner than the host starts them. The bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers.encoder import Encoder

Place = tuple[nn.Module, str]  # module, and name of its parameter


class _Rounded(torch.autograd.Function):
    """Rounds tensors to a dtype, and their gradients back to their own."""

    @staticmethod
    def forward(context: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        context.dtype = weights[0].dtype
        context.set_materialize_grads(False)
        return _cast(list(weights), dtype)

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> Any:
        cast = iter(_cast([item for item in gradients if item is not None], context.dtype))
        return None, *(None if item is None else next(cast) for item in gradients)


def _cast(tensors: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    results = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(results, tensors)
    return results


def round_weights_by_layer(network: nn.Module) -> None:
    """Round the trained linear weights of each encoder layer together, in passes under autocast.

    Layers that are used several times are left alone: autocast rounds their weights once.
    """
    for encoder in network.modules():
        for layer in encoder.layers if isinstance(encoder, Encoder) else ():
            places = [
                (module, name)
                for module in layer.modules()
                if isinstance(module, nn.Linear)
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad
            ]
            if places:
                layer.register_forward_pre_hook(partial(_round, places))
                layer.register_forward_hook(partial(_restore, places), always_call=True)


def _round(places: Sequence[Place], _: nn.Module, inputs: tuple[Any, ...]) -> None:
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        weights = [module._parameters[name] for module, name in places]
        rounded = _Rounded.apply(torch.get_autocast_dtype(device), *weights)  # type: ignore[no-untyped-call]
        for (module, name), weight in zip(places, rounded, strict=True):
            module.__dict__[name] = weight  # Python finds it before the parameter of this name


def _restore(places: Sequence[Place], *_: Any) -> None:
    for module, name in places:
        module.__dict__.pop(name, None)
