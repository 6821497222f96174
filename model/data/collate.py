"""Rows to a batch: the dict of tensors that every model takes. Vectorized; no Python object a token or a row.

The masks lie beside the sequences in the dataset; here they are laid over them, and the labels are read from below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model.data.batch import LAYOUT, Batch
from model.data.directions import WHOLE, Directions
from model.data.layouts import MULTIPLE, Kind, Sequences, make_layout
from model.data.rows import MaskedRows
from pipeline.core.ragged import I64
from pipeline.dataset.schema import NO_PAIR

# Masked positions too. On a CPU every new shape costs the building of a kernel, milliseconds and megabytes that are kept:
# with a number of its own in each batch, a BERT-tiny trained at half its speed in five times the memory.
PREDICTIONS = 64


def collate(
    rows: MaskedRows,
    *,
    pad: int,
    longest: int,
    fixed_predictions: int | None = None,
    layout: Kind = "rows",
    directions: Directions = WHOLE,
    samples: I64 | None = None,
) -> Batch:
    """Lay the masks over B rows and pad them to one length.

    Args:
        rows: from `Shards.take`.
        pad: the id that fills rows up.
        longest: the most tokens that a row of the dataset has.
        fixed_predictions: for compiled models: every batch is `longest` long and has this many masked positions a row.
        layout: how tokens shall lie on their way through the layers; see `model.data.layouts`.
        directions: which rows are read from left to right; these have no masks.
        samples: int64 [B], the rows' numbers as samples; needed where some are.

    Returns:
        input_ids int64 [B, L] masked; attention_mask bool [B, L]; token_type_ids int64 [B, L]; masked_positions int64 [M],
        indices into the flattened B * L; masked_labels int64 [M], -100 for filler; pair_labels int64 [B], -100 for none.
        M is a multiple of `PREDICTIONS`, or fixed; what is too many is filler. Of packed rows also sequence_first, bool [B, L],
        true where a sequence begins; their token_type_ids are 0. Beside the tensors stands the layout, unless rows are padded,
        read whole, and one sequence each.
        Where rows are read from left to right also causal_positions and causal_labels, int64 [C], like those of masks: where a next
        token is named, and it. Where masked tokens are named at the position before them, masked_places, int64 [M], says which.
    """
    causal = None if samples is None else directions.causal(samples)
    if causal is not None:
        rows = rows.without_masks(causal)
    count = len(rows.lengths)
    padded = -(-int(rows.lengths.max()) // MULTIPLE) * MULTIPLE
    length = min(longest, padded) if fixed_predictions is None else longest
    places = np.arange(length)
    real = places < rows.lengths[:, None]
    input_ids = np.full((count, length), pad, np.int64)
    input_ids[real] = rows.ids
    flat = np.repeat(np.arange(count) * length, rows.counts) + rows.positions
    wanted = max(1, -(-len(flat) // PREDICTIONS)) * PREDICTIONS if fixed_predictions is None else count * fixed_predictions
    labels = input_ids.reshape(-1)[flat]
    input_ids.reshape(-1)[flat] = rows.replacements
    flat, labels = _filled(flat, labels, wanted)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "input_ids": input_ids,
        "attention_mask": real,
        "token_type_ids": ((places >= rows.segment_start[:, None]) & real).astype(np.int64),
        "masked_positions": flat,
        "masked_labels": labels,
        "pair_labels": rows.pair_labels,
    }
    if directions.before:
        arrays["masked_places"] = np.maximum(flat - 1, 0)
    sequences = Sequences.of(rows, length, causal)
    if sequences.several:
        first = np.zeros(count * length, np.bool_)
        first[sequences.first] = True
        arrays["sequence_first"] = first.reshape(count, length)
        arrays["token_type_ids"] = np.zeros_like(input_ids)
    if causal is not None:
        named = real & causal[:, None] & (places > 0)
        if sequences.several:
            named &= ~arrays["sequence_first"]
        next_ones = np.flatnonzero(named)
        filled = max(1, -(-len(next_ones) // PREDICTIONS)) * PREDICTIONS
        arrays["causal_positions"], arrays["causal_labels"] = _filled(next_ones - 1, input_ids.reshape(-1)[next_ones], filled)
    batch: Batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    lies = make_layout(layout, sequences)
    return batch if lies is None else {**batch, LAYOUT: lies}


def _filled(positions: I64, labels: I64, wanted: int) -> tuple[I64, I64]:
    """Both with filler behind, until they are as many as wanted."""
    filler = max(0, wanted - len(positions))
    return np.pad(positions, (0, filler)), np.pad(labels, (0, filler), constant_values=NO_PAIR)


def blank(*, pad: int, length: int = MULTIPLE, predictions: int = 1, directions: Directions = WHOLE) -> Batch:
    """A batch of one row of padding, with nothing to predict: its loss and gradients are zero.

    A rank that has fewer rows than the others runs it, so that all ranks take part in the same collectives.
    """
    nothing, none = torch.zeros(predictions, dtype=torch.int64), torch.full((predictions,), NO_PAIR)
    return {
        **({"causal_positions": nothing, "causal_labels": none} if directions.causal_share else {}),
        **({"masked_places": nothing} if directions.before else {}),
        "input_ids": torch.full((1, length), pad),
        "attention_mask": torch.zeros(1, length, dtype=torch.bool),
        "token_type_ids": torch.zeros(1, length, dtype=torch.int64),
        "masked_positions": nothing,
        "masked_labels": none,
        "pair_labels": torch.full((1,), NO_PAIR),
    }
