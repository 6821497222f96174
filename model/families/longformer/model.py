"""Longformer (Beltagy et al., 2020): RoBERTa with sliding windows and a few global tokens, for rows of 4,096 tokens and more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from model.families.bert import model as bert
from model.families.bert.model import new_pooler
from model.families.config import ModelConfig
from model.families.longformer.config import LongformerConfig
from model.families.pretraining import PretrainingModel, encoded
from model.layers.encoder import Encoder, rows_of
from model.layers.global_attention import GlobalAttention, LongRows
from model.layers.heads import initialize
from model.layers.layout import Layout, Rows
from pipeline.core.errors import UsageError

__all__ = ["convert", "new_model", "new_pooler"]

PROJECTIONS = ("query", "key", "value")


class LongEncoder(Encoder):
    """An encoder some of whose tokens are global: the first of every row, as for classification, where nothing else is said.

    Padding stays in: global tokens are found by their rows, and the chunks of a window are what makes it fast.
    """

    unpads = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: Layout | None = None,
        wanted: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states, float [B, L, D] or [P, D].

        Args:
            input_ids, attention_mask, token_type_ids, wanted: as for `Encoder.forward`.
            layout: `LongRows` with global tokens, or any other without.
            global_attention_mask: where there is no layout: bool [B, L], true at global tokens. By default the first of every row.
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
        layout: Rows | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> list[Tensor]:
        """As `Encoder.attention_maps`, with global tokens as in `forward`."""
        if layout is None:
            layout = long_rows(input_ids, attention_mask, global_attention_mask)
        return super().attention_maps(input_ids, attention_mask, token_type_ids, layout)


def long_rows(input_ids: Tensor, attention_mask: Tensor | None, chosen: Tensor | None) -> LongRows:
    """The layout of a batch that brings none: global are the `chosen` tokens, or the first of every row."""
    shape = (input_ids.shape[0], input_ids.shape[1])
    if chosen is None:
        return LongRows.first(shape, attention_mask, input_ids.device)
    return LongRows.marked(shape, attention_mask, chosen.bool())


class LongModel(PretrainingModel):
    """Pretraining has no global tokens but those that the batch names (section 5: only windows; LongformerForMaskedLM)."""

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        ids, real, chosen = batch["input_ids"], batch.get("attention_mask"), batch.get("global_attention_mask")
        layout = batch.get("layout")
        if layout is None:
            layout = rows_of(ids, real) if chosen is None else long_rows(ids, real, chosen)
        return encoded(self.encoder, ids, {**batch, "layout": layout}, wanted)


def new_model(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state."""
    config = cast(LongformerConfig, config)
    plain = bert.encoder(config, position_offset=config.pad_token_id + 1)
    for number, layer in enumerate(plain.layers):
        layer.attention = GlobalAttention(
            config.hidden_size, config.num_attention_heads, dropout=config.attention_dropout, window=config.window(number)
        )
    model = LongModel(LongEncoder(plain.embeddings, list(plain.layers), plain.norm), bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model


def convert(model: ModelConfig, state: Mapping[str, Tensor], positions: int) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A Longformer from a trained RoBERTa (section 5; allenai/longformer, scripts/convert_model_to_long.ipynb).

    The learned positions are laid end to end until there are enough, and the global projections begin as copies of the local ones.
    The window is 512, as there, or the longest even one that the RoBERTa itself could have seen.

    Args:
        model, state: of the RoBERTa.
        positions: the longest row that the Longformer shall read.

    Raises:
        UsageError: the model is no RoBERTa, or reads rows as long already.
    """
    if model.family != "roberta":
        raise UsageError(f"family ({model.family}) cannot become a longformer; use a roberta model")
    before = model.max_position_embeddings
    if positions < before:
        raise UsageError(f"positions ({positions}) is less than the {before} that the model reads; use {before} or more")
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
