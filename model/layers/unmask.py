"""The rows of a batch as they were before the masks were laid over them."""

from __future__ import annotations

import torch
from torch import Tensor

from model.layers.batch import IGNORE, Batch


def overlay(batch: Batch, tokens: Tensor) -> Tensor:
    """The batch's ids with `tokens`, int64 [M], at the masked positions: int64 [B, L]. Filler among the positions changes nothing."""
    ids = batch["input_ids"]
    flat, positions = ids.flatten(), batch["masked_positions"]
    real = batch["masked_labels"] != IGNORE
    # What filler would write goes to a place of its own behind the end, so that no shape depends on how much filler there is.
    target = torch.where(real, positions, flat.numel())
    longer = torch.cat([flat, flat.new_zeros(1)])
    return longer.scatter(0, target, torch.where(real, tokens, 0))[:-1].view_as(ids)


def unmask(batch: Batch) -> Tensor:
    """The unmasked ids, int64 [B, L]. A batch without labels has nothing masked."""
    return overlay(batch, batch["masked_labels"]) if "masked_labels" in batch else batch["input_ids"]
