"""Torch's meta device in place of a GPU: it has shapes alone, takes the branches of a device that
is no CPU, and raises where a tensor of the CPU meets one of its own, or where a number is asked of
it. Only `Tensor.cpu` gives an answer: ones.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from cloze.model.layers import layout as layout_module
from cloze.model.layers.encoder import Encoder
from cloze.model.train.distributed import World

META = torch.device("meta")
GPU_BYTES = 80 << 30
RUN, READ = "run", "read"


def stand_in(monkeypatch: pytest.MonkeyPatch) -> World:
    """One rank on the meta device."""
    copy = Tensor.cpu

    def ones(tensor: Tensor) -> Tensor:
        return torch.ones_like(tensor, device="cpu") if tensor.is_meta else copy(tensor)

    monkeypatch.setattr(Tensor, "cpu", ones)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GPU_BYTES, GPU_BYTES))
    # Neither autocast nor generators know the device.
    autocast, generator, enabled = torch.autocast, torch.Generator, torch.is_autocast_enabled

    class Autocast:
        def __new__(cls, kind: str, **how: Any) -> Any:
            return nullcontext() if kind == META.type else autocast(kind, **how)

    class Generator:
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator("cpu" if device == META else device)

    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda *kind: kind != (META.type,) and enabled(*kind)
    )
    monkeypatch.setattr(torch, "autocast", Autocast)
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(
        layout_module, "varlen_attention", lambda query, key, value, *_: query + key + value
    )
    # Fused optimizers and the norm of many tensors have kernels for it, and refuse it nevertheless.
    for module, name in (
        ("torch.optim.optimizer", "_get_fused_kernels_supported_devices"),
        ("torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices"),
    ):
        monkeypatch.setattr(sys.modules[module], name, lambda: ["cpu", META.type])
    return World(rank=0, size=1, device=META)


class Order:
    """The order in which encoders run and results are read of the meta device: RUN and READ."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        copy = Tensor.cpu

        def read(tensor: Tensor) -> Tensor:
            if tensor.is_meta:
                self.events.append(READ)
            return copy(tensor)

        monkeypatch.setattr(Tensor, "cpu", read)

    def __enter__(self) -> list[str]:
        self._hook = register_module_forward_pre_hook(self._runs)
        return self.events

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _runs(self, module: nn.Module, _inputs: Any) -> None:
        if isinstance(module, Encoder):
            self.events.append(RUN)
