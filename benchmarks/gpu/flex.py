"""Sequences end to end in torch's FlexAttention, with a block mask that the host computes.

It is the third candidate beside the flash kernels. It is fast in compiled layers alone; torch gives
it no gradient on a CPU, and no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from cloze.model.layers.layout import AttentionPattern, Scores
from cloze.model.layers.unpadded import PackedLayout

BLOCK = 128  # tokens, of the kernel's tiles
WHOLE = AttentionPattern()


@dataclass(eq=False, kw_only=True)
class FlexLayout(PackedLayout):
    """A packed layout that FlexAttention reads, where tokens see their whole sequence.

    Args:
        sequence: int32 [T], number of each token's sequence.
        counts: int32 [Q], blocks of keys that each block of queries sees.
        blocks: int32 [Q, Q], their numbers first; the others follow.
    """

    sequence: Tensor
    counts: Tensor
    blocks: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mask: BlockMask | None = None

    def fresh(self) -> Self:
        layout = super().fresh()
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
        sequence, tokens = self.sequence, len(self.sequence)

        def same(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return sequence[query] == sequence[key]

        return BlockMask.from_kv_blocks(
            self.counts[None, None],
            self.blocks[None, None],
            BLOCK_SIZE=BLOCK,
            mask_mod=same,
            seq_lengths=(tokens, tokens),
        )
