"""Parameters that several layers have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Shared(nn.Module):
    """Runs a module (or a method of one) that another one owns: no parameters here, no names in a checkpoint, gradients where the owner is."""

    def __init__(self, owned: Callable[..., Any]) -> None:
        super().__init__()
        self._owned = (owned,)  # in a tuple, where torch does not register it

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self._owned[0](*inputs, **options)
