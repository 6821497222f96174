"""The batch: what travels from the loader through the model to the objectives and the loss.

`cloze.model.data.batch` collates pretraining batches on the CPU and moves them to the device. The
loop hands them to the engine, which calls the trained module: model, then objectives. Fine-tuning
and inference make batches of the same type, and add fields of their own (`extend`).

Shapes: B batch, L length, V vocabulary, M masked positions, C causal positions. A flat position is
an index into the flattened [B * L].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch
from torch import Tensor

from cloze.model.layers.layout import BatchLayout
from cloze.pipeline.dataset.schema import NO_PAIR

if TYPE_CHECKING:
    from typing import NotRequired

# Label that the losses ignore: a row without a pair, or filler of the masked positions.
IGNORE_INDEX = NO_PAIR


class Batch(TypedDict):
    """Tensors of B padded rows, and their layout. All of them are on one device.

    Positions and labels of predictions are padded to a common M or C: filler has position 0 and
    label -100.
    """

    input_ids: Tensor
    """int64 [B, L]: token ids, with the masks applied; padding at the end of each row."""

    token_type_ids: Tensor
    """int64 [B, L]: 1 in segment B, else 0; all 0 in packed rows."""

    attention_mask: NotRequired[Tensor]
    """bool [B, L]: True at tokens, False at padding. Absent: no padding."""

    layout: NotRequired[BatchLayout]
    """Arrangement of the tokens inside the layers, and which of them see each other. Absent: padded
    rows of one sequence each, as `attention_mask` says."""

    sequence_first: NotRequired[Tensor]
    """bool [B, L]: True where a sequence begins. Packed rows only."""

    global_attention_mask: NotRequired[Tensor]
    """bool [B, L]: True at global tokens. Longformer without a layout only. Absent: none."""

    masked_positions: NotRequired[Tensor]
    """int64 [M]: flat positions of the masked tokens, ascending."""

    masked_labels: NotRequired[Tensor]
    """int64 [M]: original tokens at `masked_positions`; -100 for filler. Absent: no masks."""

    prediction_positions: NotRequired[Tensor]
    """int64 [M]: flat positions whose outputs predict the masked tokens, one before each. Objective
    mntp only. Absent: `masked_positions`."""

    target_order: NotRequired[Tensor]
    """int64 [B, L]: 1, 2, … at the masked tokens of a row, in the order of prediction, -1 in the
    memory, else 0. A token sees those of its own or a smaller number, when predicted of a smaller
    one. The `input_ids` then have no masks."""

    causal_positions: NotRequired[Tensor]
    """int64 [C]: flat positions in causal rows whose outputs predict the next token. Objective clm
    only."""

    causal_labels: NotRequired[Tensor]
    """int64 [C]: the token after each of `causal_positions`; -100 for filler."""

    target_labels: NotRequired[Tensor]
    """int64 [B, T]: tokens that an encoder-decoder writes; -100 behind the last. Absent: the
    unmasked rows."""

    pair_labels: NotRequired[Tensor]
    """int64 [B]: nsp: 0 next, 1 random; sop: 0 in order, 1 swapped; -100 without a pair."""

    source: NotRequired[Tensor]
    """int64 [B, 2]: key of the document of each row, and its sentence in which the row begins."""

    step: NotRequired[Tensor]
    """int64 scalar: number of the step, from 0. Training only."""

    mask_id: NotRequired[Tensor]
    """int64 scalar: id of [MASK]. Held-out batches only, for `Objective.details`."""


def extend(batch: Batch, fields: Mapping[str, Any]) -> Batch:
    """Return the batch with fields that only their own maker and reader know, such as labels."""
    return cast(Batch, {**batch, **fields})


def overlay(batch: Batch, tokens: Tensor) -> Tensor:
    """Return ids [B, L] with `tokens`, int64 [M], at the masked positions; filler is ignored."""
    ids = batch["input_ids"]
    flat, positions = ids.flatten(), batch["masked_positions"]
    real = batch["masked_labels"] != IGNORE_INDEX
    # Filler is written to an extra position at the end, so that no shape depends on its amount.
    target = torch.where(real, positions, flat.numel())
    extended = torch.cat([flat, flat.new_zeros(1)])
    return extended.scatter(0, target, torch.where(real, tokens, 0))[:-1].view_as(ids)


def unmask(batch: Batch) -> Tensor:
    """Return the unmasked ids, int64 [B, L]; a batch without labels has no masks."""
    return (
        overlay(batch, batch["masked_labels"]) if "masked_labels" in batch else batch["input_ids"]
    )
