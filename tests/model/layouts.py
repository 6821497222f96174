"""Hand-made batches in the layouts that the collator makes, and the GPU's attention kernel spelled
out for a CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cloze.model.data import layouts
from cloze.model.data.layouts import Sequences
from cloze.model.layers.cpu import attend
from cloze.model.layers.layout import AttentionPattern, BatchLayout, additive

Choice = Literal["padded", "buckets", "packed"]


@torch.no_grad()
def attention_maps(encoder: Any, ids: Tensor, real: Tensor, types: Tensor) -> list[Tensor]:
    """Each layer's attention probabilities, float [B, N, L, L]."""
    maps = list[Tensor]()
    encoder(ids, real, types, replace(encoder.rows(ids, real, types), maps=maps))
    return maps


def laid(batch: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """The batch with that layout, however little padding there is."""
    layout = layout_of(batch, choice)
    return {name: part for name, part in batch.items() if name != "layout"} | (
        {} if layout is None else {"layout": layout}
    )


def layout_of(batch: dict[str, Any], choice: Choice) -> BatchLayout | None:
    """That layout of the batch; None: padded rows of one sequence each."""
    sequences = sequences_of(batch)
    if choice == "padded":
        return layouts.rows(sequences) if sequences.packed else None
    return layouts.buckets(sequences) if choice == "buckets" else layouts.packed(sequences)


def sequences_of(batch: dict[str, Any]) -> Sequences:
    """What the batch's attention_mask and, of packed rows, sequence_first say."""
    real = batch["attention_mask"].numpy()
    if "sequence_first" not in batch:
        return Sequences.alone(real.sum(axis=1), real.shape[1])
    first = np.flatnonzero(batch["sequence_first"].numpy())
    number = np.cumsum(batch["sequence_first"].numpy())[real.ravel()] - 1
    return Sequences(
        shape=real.shape,
        first=first,
        lengths=np.bincount(number, minlength=len(first)),
        packed=True,
    )


def pack(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch's rows as sequences of half as many rows twice as long."""
    lengths = batch["attention_mask"].sum(1).tolist()
    rows, width = len(lengths) // 2, 2 * batch["input_ids"].shape[1]
    names = ("input_ids", "token_type_ids", "attention_mask")
    found = {name: torch.zeros(rows, width, dtype=batch[name].dtype) for name in names}
    found["sequence_first"] = torch.zeros(rows, width, dtype=torch.bool)
    places = []
    for number, length in enumerate(lengths):
        row = number // 2
        first = 0 if number % 2 == 0 else lengths[number - 1]
        found["sequence_first"][row, first] = True
        for name in names:
            found[name][row, first : first + length] = batch[name][number, :length]
        places.append(row * width + first + torch.arange(batch["input_ids"].shape[1]))
    found["masked_positions"] = torch.cat(places)[batch["masked_positions"]]
    return found


def varlen_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    window: int | None,
    causal: bool,
    dropout: float,
) -> Tensor:
    """What `varlen_attention` computes, as one masked attention over all tokens."""
    place = torch.arange(len(query))
    number = torch.searchsorted(bounds, place, right=True)
    seen = number == number[:, None]
    within = AttentionPattern(window=window, causal=causal).visible(place - place[:, None])
    bias = additive(seen if within is None else seen & within, query.dtype)
    parts = (part.transpose(0, 1)[None] for part in (query, key, value))
    return attend(*parts, bias, dropout)[0].transpose(0, 1)
