"""SpanBERT (Joshi et al., 2020): BERT that also predicts tokens from span boundaries.

Equation 1 of the paper is the sum of the masked-token loss and the span boundary loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from cloze.model.families.bert import model as bert
from cloze.model.families.bert.model import new_pooler
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.families.spanbert.config import SpanBertConfig
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import MaskedLMHead, SpanBoundaryHead, initialize

__all__ = ["new_model", "new_pooler", "spans"]


class SpanBoundaries(NamedTuple):
    """Flat positions before and after each masked position's span, and its index; int64 [M]."""

    left: Tensor
    right: Tensor
    place: Tensor


def spans(positions: Tensor) -> SpanBoundaries:
    """Return the spans of masked positions: runs without a gap.

    Adjacent spans are merged, as in the original (facebookresearch/SpanBERT, masking.py,
    `merge_intervals`), so boundaries are unmasked tokens. Special tokens are never masked, so no
    span crosses rows, and both boundaries exist.

    Args:
        positions: int64 [M], ascending indices into the flattened B * L, with filler (0) at the
            end.
    """
    number = torch.arange(len(positions), device=positions.device)
    opens = torch.ones_like(positions, dtype=torch.bool)
    opens[1:] = positions[1:] != positions[:-1] + 1
    closes = torch.ones_like(opens)
    closes[:-1] = opens[1:]
    first = torch.where(opens, number, 0).cummax(dim=0).values
    behind = torch.where(closes, number, len(positions)).flip(0).cummin(dim=0).values.flip(0)
    left, right = positions[first] - 1, positions[behind] + 1
    return SpanBoundaries(left=left.clamp(min=0), right=right, place=number - first)


class SpanModel(PretrainingModel):
    """Pretraining model with a span boundary head in addition to its masked LM head."""

    def __init__(
        self, encoder: Encoder, masked_lm: MaskedLMHead, span_boundary: SpanBoundaryHead
    ) -> None:
        super().__init__(encoder, masked_lm)
        self.span_boundary = span_boundary

    def head_positions(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the positions that the heads read, span boundaries included."""
        found = spans(batch["masked_positions"])
        last = batch["input_ids"].numel() - 1  # a row that is one mask has no token after it
        return {
            **super().head_positions(batch),
            "left": found.left,
            "right": found.right.clamp(max=last),
        }

    def logits(self, states: Mapping[str, Tensor], batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return `PretrainingModel.logits` and `sbo_logits` [M, V]."""
        place = spans(batch["masked_positions"]).place
        found = self.span_boundary(
            states["left"], states["right"], place, self.encoder.embeddings.word.weight
        )
        return {**super().logits(states, batch), "sbo_logits": found}


def new_model(config: ModelConfig) -> SpanModel:
    """Build the model, initialized from torch's current random state."""
    config = cast(SpanBertConfig, config)
    boundary = SpanBoundaryHead(
        config.hidden_size,
        config.vocab_size,
        positions=config.span_positions,
        position_size=config.span_position_size,
        activation=config.hidden_act,
        eps=config.layer_norm_eps,
    )
    model = SpanModel(bert.encoder(config), bert.masked_lm(config), boundary)
    initialize(model, config.initializer_range)
    return model
