"""Sequences end to end in torch's FlexAttention, with a block mask that the host computes.

It is the third candidate beside the flash kernels, and no part of the product until a GPU shows
that it is the fastest. It is fast in compiled layers alone; torch gives it no gradient on a CPU,
and no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from cloze.model.layers.batch import Batch, extend
from cloze.model.layers.layout import AttentionPattern, BatchLayout, Scores

BLOCK = 128  # tokens, of the kernel's tiles
WHOLE = AttentionPattern()


@dataclass(eq=False, kw_only=True)
class FlexLayout(BatchLayout):
    """A packed layout that FlexAttention reads, where tokens see their whole sequence.

    Args:
        sequences: int32 [T], number of each token's sequence.
        counts: int32 [Q], blocks of keys that each block of queries sees.
        numbers: int32 [Q, Q], their numbers first; the others follow.
    """

    sequences: Tensor
    counts: Tensor
    numbers: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mask: BlockMask | None = None

    def fresh(self, change: Callable[[Tensor], Tensor] | None = None) -> Self:
        layout = super().fresh(change)
        # Here, where no layer is compiled yet: all layers read one mask.
        layout._mask = layout._block_mask()
        return layout

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        if self._mask is None or pattern != WHOLE or dropout or added is not None:
            return super().attend(query, key, value, pattern, dropout, added)
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        mixed = flex_attention(query, key, value, block_mask=self._mask)
        assert isinstance(mixed, Tensor)
        return mixed[0].transpose(0, 1)

    def _block_mask(self) -> BlockMask:
        sequence, tokens = self.sequences, len(self.sequences)

        def same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sequence[query] == sequence[key]

        return BlockMask.from_kv_blocks(
            self.counts[None, None],
            self.numbers[None, None],
            BLOCK_SIZE=BLOCK,
            mask_mod=same,
            seq_lengths=(tokens, tokens),
        )


def flexed(batch: Batch) -> Batch:
    """Return a packed batch whose attention is FlexAttention."""
    layout = batch["layout"]
    assert layout is not None
    assert layout.flat_positions is not None
    assert layout.bounds is not None
    tokens, bounds = len(layout.flat_positions), layout.bounds.numpy()
    sequence = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)).astype(np.int32)
    starts = np.arange(0, tokens, BLOCK)
    # Sequences lie end to end, so a block of queries sees the blocks from the beginning of its first
    # sequence to the end of its last.
    first = bounds[sequence[starts]] // BLOCK
    last = (bounds[sequence[np.minimum(starts + BLOCK, tokens) - 1] + 1] - 1) // BLOCK
    number = np.arange(len(starts))
    values = {each.name: getattr(layout, each.name) for each in fields(layout)}
    return extend(batch, {"layout": FlexLayout(
        **values,
        sequences=torch.from_numpy(sequence),
        counts=torch.from_numpy((last - first + 1).astype(np.int32)),
        numbers=torch.from_numpy(((first[:, None] + number) % len(starts)).astype(np.int32)),
    )})  # fmt: skip
