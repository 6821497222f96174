"""Activations by their names in Hugging Face configs, dropout, and references to modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.layers.cpu import LEVELS, dropout_mask, hashed_dropout_mask

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
    return values * dropout_mask(values, dropped).mul_(LEVELS / (LEVELS - dropped))


def cast_stream(hidden: Tensor) -> Tensor:
    """Cast a norm's output to the dtype of the states between layers.

    On a GPU that is autocast's dtype: sums and norms then move half the bytes, as in fairseq's and
    Megatron's half-precision trainings. Norms compute in fp32. A CPU keeps fp32.
    """
    device = hidden.device.type
    return hidden if device == "cpu" else autocast_input(hidden)


def autocast_input(hidden: Tensor) -> Tensor:
    """Cast `hidden` to autocast's dtype once, instead of once per projection."""
    device = hidden.device.type
    return (
        hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden
    )


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
