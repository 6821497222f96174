"""Cloze in Python: load a checkpoint and use it like the commands of `cloze`.

    import cloze

    model = cloze.load("W/pretrain")
    model.fill_mask("The capital of France is [MASK].")

`load` reads the artifacts of `cloze pretrain`, `cloze finetune` and `cloze import`. The methods
that a checkpoint supports depend on its training; the others raise a `UsageError`. The weights are
loaded at the first use.

    model = cloze.load("W/sst2", device="auto", precision="auto")
    for answer in model.batch("classify", open("reviews.txt")):
        ...
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from cloze.checkpoint import Checkpoint
    from cloze.core.errors import ClozeError, DataError, UsageError

__all__ = ["Checkpoint", "ClozeError", "DataError", "UsageError", "load"]


def load(
    path: str | os.PathLike[str],
    *,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    precision: Literal["auto", "fp32", "bf16"] = "fp32",
) -> Checkpoint:
    """Return the checkpoint at `path`.

    Examples:
        >>> load("W/pretrain")
        Checkpoint('W/pretrain')
        >>> load("W/nowhere")
        Traceback (most recent call last):
            ...
        cloze.core.errors.DataError: W/nowhere does not exist; name a checkpoint, or an artifact ...

    Args:
        path: an artifact of pretrain, finetune or import, or a checkpoint directory in an artifact.
        device: device to compute on; auto: a GPU if there is one.
        precision: precision of matrix products; auto: bf16 if the hardware has it.

    Raises:
        DataError: no checkpoint exists at `path`, or the checkpoint is incomplete.
        UsageError: `path` is no path, or `device` or `precision` is unknown.
    """
    from cloze.checkpoint import Checkpoint

    return Checkpoint(path, device, precision)


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` at its first use: the command line starts without them."""
    if name not in __all__:
        raise AttributeError(f"module 'cloze' has no attribute {name!r}")
    module = "checkpoint" if name == "Checkpoint" else "core.errors"
    return getattr(import_module(f"cloze.{module}"), name)
