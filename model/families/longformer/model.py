"""Longformer (Beltagy et al., 2020): RoBERTa with sliding windows and global tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.model.families.bert import model as bert
from cloze.model.families.bert.model import new_pooler
from cloze.model.families.config import ModelConfig
from cloze.model.families.longformer.config import LongformerConfig
from cloze.model.families.models import PretrainingModel, encoded
from cloze.model.layers.encoder import Encoder, rows_of
from cloze.model.layers.global_attention import GlobalAttention, GlobalAttentionLayout
from cloze.model.layers.heads import initialize
from cloze.model.layers.layout import BatchLayout, PaddedLayout

__all__ = ["convert", "new_model", "new_pooler"]

PROJECTIONS = ("query", "key", "value")


class LongEncoder(Encoder):
    """Encoder with global tokens, by default the first of every row, as for classification.

    Padding is kept: global tokens are found by their rows, and windows are computed in chunks.
    """

    supports_unpadding = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: BatchLayout | None = None,
        wanted: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's states, float [B, L, D] or [P, D].

        Args:
            input_ids, attention_mask, token_type_ids, wanted: as for `Encoder.forward`.
            layout: `GlobalAttentionLayout` with global tokens, or any other without.
            global_attention_mask: without a layout: bool [B, L], true at global tokens. Default:
                the first of every row.
        """
        if layout is None:
            layout = long_rows(input_ids, attention_mask, global_attention_mask)
        return super().forward(input_ids, attention_mask, token_type_ids, layout, wanted)

    @torch.no_grad()
    def attention_maps(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: PaddedLayout | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> list[Tensor]:
        """Return attention maps; see `Encoder.attention_maps`.

        Global tokens are as in `forward`.
        """
        if layout is None:
            layout = long_rows(input_ids, attention_mask, global_attention_mask)
        return super().attention_maps(input_ids, attention_mask, token_type_ids, layout)


def long_rows(
    input_ids: Tensor, attention_mask: Tensor | None, chosen: Tensor | None
) -> GlobalAttentionLayout:
    """Return a layout whose global tokens are the `chosen` ones, or the first of every row."""
    shape = (input_ids.shape[0], input_ids.shape[1])
    if chosen is None:
        return GlobalAttentionLayout.first(shape, attention_mask, input_ids.device)
    return GlobalAttentionLayout.with_global_tokens(shape, attention_mask, chosen.bool())


class LongModel(PretrainingModel):
    """Pretraining model; only tokens that the batch names are global (section 5)."""

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        ids, real, chosen = (
            batch["input_ids"],
            batch.get("attention_mask"),
            batch.get("global_attention_mask"),
        )
        layout = batch.get("layout")
        if layout is None:
            layout = rows_of(ids, real) if chosen is None else long_rows(ids, real, chosen)
        return encoded(self.encoder, ids, {**batch, "layout": layout}, wanted)


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state."""
    config = cast(LongformerConfig, config)
    plain = bert.encoder(config, position_offset=config.pad_token_id + 1)
    for number, layer in enumerate(plain.layers):
        layer.attention = GlobalAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            window=config.window(number),
        )
    model = LongModel(
        LongEncoder(plain.embeddings, list(plain.layers), plain.norm), bert.masked_lm(config)
    )
    initialize(model, config.initializer_range)
    return model


def convert(
    model: ModelConfig, state: Mapping[str, Tensor], positions: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Convert a trained RoBERTa (section 5; allenai/longformer, convert_model_to_long.ipynb).

    Learned positions are repeated, and the global projections start as copies of the local ones.
    The window is 512 as there, or the largest even number that the RoBERTa could see.

    Args:
        model, state: config and weights of the RoBERTa.
        positions: maximum row length of the Longformer.

    Raises:
        UsageError: the model is no RoBERTa, or reads longer rows already.
    """
    if model.family != "roberta":
        raise UsageError(f"family ({model.family}) cannot become a longformer; use a roberta model")
    before = model.max_position_embeddings
    if positions < before:
        raise UsageError(
            f"positions ({positions}) is less than the {before} that the model reads; use {before} "
            f"or more"
        )
    values = {**model.model_dump(), "family": "longformer", "max_position_embeddings": positions}
    config = LongformerConfig(**values, attention_window=max(2, min(512, before // 2 * 2)))
    longer = dict(state)
    table = state["encoder.embeddings.position.weight"]
    offset = model.pad_token_id + 1
    learned = table[offset:]
    longer["encoder.embeddings.position.weight"] = torch.cat(
        [table[:offset], learned.repeat(-(-positions // len(learned)), 1)[:positions]]
    )
    for name, tensor in state.items():
        for projection in PROJECTIONS:
            if f".attention.{projection}." in name:
                longer[name.replace(f".{projection}.", f".global_{projection}.")] = tensor.clone()
    return config, longer
