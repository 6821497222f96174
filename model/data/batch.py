"""A batch, and how it gets to the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Tensors by name, and beside them, under LAYOUT, how they lie in the layers: a `model.layers.layout.Layout`.
Batch = dict[str, Any]
LAYOUT = "layout"


def pin(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """The batch in page-locked memory if `device` is a GPU, which then fetches it while it computes; else as it is."""
    return {name: part.pin_memory() for name, part in batch.items()} if device.type == "cuda" else dict(batch)


def move(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """The batch on `device`. A GPU's copy of a pinned batch is not waited for."""
    return {name: part.to(device, non_blocking=True) for name, part in batch.items()}
