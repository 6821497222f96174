"""Relative positions of T5: a bias of the scores by distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cloze.labs.seq2seq.kv_cache import KVCache
from cloze.model.layers.layout import BatchLayout


class RelativeBias(nn.Module):
    """Bias of attention scores by relative position, shared by all layers of a stack (T5).

    Half of the buckets have one distance each, the others grow logarithmically (Raffel et al.,
    2020, section 2.1; mesh-tensorflow, transformer_layers.py, `_relative_position_bucket`).

    Args:
        num_heads: N.
        buckets: number of buckets, over both directions unless `causal`.
        farthest: distance from which on all keys share the last bucket.
        causal: only earlier keys are visible, and have all buckets.
    """

    def __init__(self, num_heads: int, *, buckets: int, farthest: int, causal: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, num_heads)
        self.farthest, self.causal = farthest, causal

    def forward(self, layout: BatchLayout, query: Tensor, key: Tensor) -> Tensor:
        """Return the bias, float [1 or B, N, L, K], for query [B, N, L, H] and key [B, N, K, H]."""
        known, biases = (query.shape[2], key.shape[2]), layout.shared.relative
        if known not in biases:
            biases[known] = self._bias(layout, query, key)
        return biases[known]

    def _bias(self, layout: BatchLayout, query: Tensor, key: Tensor) -> Tensor:
        asked = torch.arange(query.shape[2], device=query.device)[None]
        # New tokens of a generation are asked at their own positions, among all cached keys.
        if isinstance(layout, KVCache):
            asked = layout.positions
        offset = torch.arange(key.shape[2], device=query.device) - asked[:, :, None]
        bias: Tensor = self.table(self.bucket(offset))
        # [1 or B, L, K, N], since the table's rows are by head.
        return bias.permute(0, 3, 1, 2)

    def bucket(self, offset: Tensor) -> Tensor:
        """Return the bucket of each key position minus query position, int64 of any shape."""
        buckets, first = self.table.num_embeddings, torch.zeros_like(offset)
        if self.causal:
            distance = (-offset).clamp(min=0)
        else:
            buckets //= 2
            # Earlier keys have the first half of the table, later ones the second.
            first, distance = (offset > 0).long() * buckets, offset.abs()
        exact = buckets // 2
        # In transformers' order, whose rounding decides the bucket at some distances.
        # The clamp only keeps log(0) out: `where` takes small distances as they are.
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.farthest / exact)
        far = exact + (far * (buckets - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))
