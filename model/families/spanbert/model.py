"""SpanBERT (Joshi et al., 2020): BERT on single segments, with a head that names masked tokens from the ends of their span.

Equation 1 of the paper is the sum of the masked-token loss and the span boundary loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from model.families.bert import model as bert
from model.families.bert.model import new_pooler
from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.families.spanbert.config import SpanBertConfig
from model.layers.encoder import Encoder
from model.layers.heads import MaskedLMHead, SpanBoundaryHead, initialize

__all__ = ["new_model", "new_pooler", "spans"]


class Spans(NamedTuple):
    """Of each masked position, all int64 [M]: the flat positions just before and behind its span, and its place in it."""

    left: Tensor
    right: Tensor
    place: Tensor


def spans(positions: Tensor) -> Spans:
    """The spans that masked positions form: runs without a gap.

    Spans that touch are one, as in the original (facebookresearch/SpanBERT, masking.py, `merge_intervals`): a boundary is a token
    that is not masked. Special tokens never are, so no run goes from one row into the next, and both ends exist.

    Args:
        positions: int64 [M], indices into the flattened B * L, ascending, with filler (0) at the end.
    """
    number = torch.arange(len(positions), device=positions.device)
    opens = torch.ones_like(positions, dtype=torch.bool)
    opens[1:] = positions[1:] != positions[:-1] + 1
    closes = torch.ones_like(opens)
    closes[:-1] = opens[1:]
    first = torch.where(opens, number, 0).cummax(dim=0).values
    behind = torch.where(closes, number, len(positions)).flip(0).cummin(dim=0).values.flip(0)
    left, right = positions[first] - 1, positions[behind] + 1
    return Spans(left=left.clamp(min=0), right=right, place=number - first)


class SpanModel(PretrainingModel):
    """A pretraining model with a span boundary head beside its masked-token head."""

    def __init__(self, encoder: Encoder, masked_lm: MaskedLMHead, span_boundary: SpanBoundaryHead) -> None:
        super().__init__(encoder, masked_lm)
        self.span_boundary = span_boundary

    def places(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Both ends of every masked token's span too."""
        found = spans(batch["masked_positions"])
        last = batch["input_ids"].numel() - 1  # a row that is one mask has nothing behind it
        return {**super().places(batch), "left": found.left, "right": found.right.clamp(max=last)}

    def logits(self, states: Mapping[str, Tensor], batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """As `PretrainingModel.logits`, and `sbo_logits` [M, V]."""
        place = spans(batch["masked_positions"]).place
        found = self.span_boundary(states["left"], states["right"], place, self.encoder.embeddings.word.weight)
        return {**super().logits(states, batch), "sbo_logits": found}


def new_model(config: ModelConfig) -> SpanModel:
    """The model of the given sizes, initialised from torch's current random state."""
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
