"""Batches of tensors: their type, the ignored label, and the ids without masks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cloze.pipeline.dataset.schema import NO_PAIR

TensorBatch = Mapping[str, Tensor]  # created by `cloze.model.data.batch`
# Label that the losses ignore: a row without a pair, or filler of the masked positions.
IGNORE_INDEX = NO_PAIR


def overlay(batch: TensorBatch, tokens: Tensor) -> Tensor:
    """Return ids [B, L] with `tokens`, int64 [M], at the masked positions; filler is ignored."""
    ids = batch["input_ids"]
    flat, positions = ids.flatten(), batch["masked_positions"]
    real = batch["masked_labels"] != IGNORE_INDEX
    # Filler is written to an extra position at the end, so that no shape depends on its amount.
    target = torch.where(real, positions, flat.numel())
    extended = torch.cat([flat, flat.new_zeros(1)])
    return extended.scatter(0, target, torch.where(real, tokens, 0))[:-1].view_as(ids)


def unmask(batch: TensorBatch) -> Tensor:
    """Return the unmasked ids, int64 [B, L]; a batch without labels has no masks."""
    return (
        overlay(batch, batch["masked_labels"]) if "masked_labels" in batch else batch["input_ids"]
    )
