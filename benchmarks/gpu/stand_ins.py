"""What a GPU has and a CPU lacks, for a run of the levers' rows on a CPU: the flash kernel, the
kernel of the chip, graphs, and generated code. They compute what the real ones do, slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import attention as torch_attention

from cloze.labs.levers import attention, rows
from cloze.model.layers import cross_entropy


@cache
def install() -> None:
    """Install all of them in this process."""
    import tests.model.flash_on_cpu  # noqa: F401

    compile_module, compile_function = nn.Module.compile, torch.compile
    # Traced and run, without a C++ compiler, which takes long.
    nn.Module.compile = (  # type: ignore[method-assign]
        lambda self, **options: compile_module(self, backend="eager", **options)
    )
    torch.compile = partial(compile_function, backend="eager")
    cross_entropy._compiled_rows = lambda: cross_entropy._fused_rows  # type: ignore[assignment]
    cross_entropy.chunks_logits = lambda *_: True
    cross_entropy.filler_columns = lambda vocabulary, _: -vocabulary % cross_entropy.TILE
    rows.capture_on_gpu = lambda: _capture  # type: ignore[attr-defined]
    attention.activate = _activate  # type: ignore[assignment]


_active: list[str] = []


def _capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return run


def _activate(*_: Any) -> str:
    _active[:] = ["stand-in"]
    return "attention: a stand-in"


def active_kernel() -> str:
    """The kernel of the chip that is active; empty: torch's own."""
    current = getattr(torch_attention, "current_flash_attention_impl", lambda: None)()
    return current or "".join(_active)


def switch_kernel() -> tuple[Callable[[], object], Callable[[], object]]:
    """Take the active kernel back; return what activates it, and what takes it back again.

    It is the process's: today's step, which runs in between, must not have it.
    """
    name = active_kernel()
    _active.clear()
    if not name or name == "stand-in":
        return (lambda: None), (lambda: None)
    torch_attention.restore_flash_attention_impl()
    return (
        partial(torch_attention.activate_flash_attention_impl, name),
        torch_attention.restore_flash_attention_impl,
    )
