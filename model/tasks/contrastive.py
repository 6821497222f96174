"""Bi-encoder for retrieval: vectors, batches with in-batch negatives, and the contrastive loss.

A query is compared with the passages of its group, about `group` pairs of the step (Karpukhin et
al. 2020, section 3.2). Groups are cut from the step's pairs in order, and a part of a group
includes all of its passages. So the loss does not depend on micro-batches and ranks. If
micro-batches have complete groups, which is the default, nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cloze.model.data.layouts import LayoutKind
from cloze.model.data.sampler import shard_range
from cloze.model.families.pretraining import encode
from cloze.model.layers.batch import Batch, extend
from cloze.model.layers.heads import mean_state
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.task import Ints

Pooling = Literal["mean", "first", "pooler"]


def pooled(hidden: Tensor, attention_mask: Tensor, pooling: Pooling, pooler: nn.Module) -> Tensor:
    """Pool to one vector per row, fp32 [B, D].

    Args:
        hidden: float [B, L, D]; values at padding are ignored.
        attention_mask: bool [B, L].
        pooling: `mean` of all tokens' states, special tokens included, as in sentence-transformers
            (Reimers and Gurevych 2019); `first` token; or the checkpoint's `pooler`.
    """
    if pooling == "pooler":
        vectors: Tensor = pooler(hidden, attention_mask)
        return vectors.float()
    if pooling == "first":
        return hidden[:, 0].float()
    return mean_state(hidden.float(), attention_mask)


class BiEncoder(nn.Module):
    """Encoder and pooling; the pooler stays in the checkpoint even if unused."""

    def __init__(
        self, encoder: nn.Module, pooler: nn.Module, pooling: Pooling, normalize: bool
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self._pooling: Pooling = pooling
        self._normalize = normalize

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the vectors of queries [Q, D] and passages [P, D], fp32."""
        vectors = self.embed(batch)
        queries = batch["allowed"].shape[0]
        return vectors[:queries], vectors[queries:]

    def embed(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the vectors of all rows, fp32 [B, D], for a batch of `TextSamples`."""
        hidden = encode(self.encoder, batch["input_ids"], batch)
        vectors = pooled(hidden, batch["attention_mask"], self._pooling, self.pooler)
        return nn.functional.normalize(vectors, dim=-1) if self._normalize else vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSamples:
    """Samples that are pairs of a query and a passage; equal passages occur once in a batch.

    Attributes:
        texts: queries, then passages.
        queries: number of queries.
        pairs: int64 [n, 2], numbers of query and passage.
        relevant: passages that answer each query; they are no negatives of each other.
        group: approximate number of pairs per group.
        symmetric: true if the loss also compares each passage with the queries.
    """

    texts: TextSamples
    queries: int
    pairs: Ints
    relevant: Sequence[frozenset[int]]
    group: int
    symmetric: bool

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def lengths(self) -> Ints:
        lengths = self.texts.lengths
        totals: Ints = lengths[self.pairs[:, 0]] + lengths[self.queries + self.pairs[:, 1]]
        return totals

    @property
    def truncated(self) -> int:
        return self.texts.truncated

    @property
    def dropped_counts(self) -> Mapping[str, int]:
        return {}

    def batch(self, chosen: Sequence[int] | Ints, layout: LayoutKind) -> Batch:
        """Return the batch of these pairs, see `part`."""
        return self.part(np.asarray(chosen, np.int64), 0, len(chosen), layout)

    def part(self, chosen: Ints, begin: int, end: int, layout: LayoutKind) -> Batch:
        """Return the batch of pairs `chosen[begin:end]` of a step with pairs `chosen`.

        Returns:
            batch: `TextSamples.batch` of Q queries, then P distinct passages, with these entries.
            own: int64 [B], queries that belong to the part.
            target: int64 [Q], passage of each query.
            allowed: bool [Q, P], passages compared with each query, including its own.
            backward: bool [Q, Q], true if query j (row) is compared with the passage of query i;
                symmetric loss only.
        """
        group_count = -(-len(chosen) // self.group)
        bounds = [shard_range(0, len(chosen), index, group_count) for index in range(group_count)]
        spans = [(first, last) for first, last in bounds if first < end and last > begin]
        groups_begin, groups_end = spans[0][0], spans[-1][1]
        queries = range(groups_begin, groups_end) if self.symmetric else range(begin, end)
        group = np.repeat(np.arange(len(spans)), [last - first for first, last in spans])
        pairs = self.pairs[chosen[groups_begin:groups_end]]
        passages, columns = np.unique(pairs[:, 1], return_inverse=True)
        member = np.zeros((len(spans), len(passages)), np.bool_)
        member[group, columns] = True
        rows = np.arange(queries.start - groups_begin, queries.stop - groups_begin)
        query_numbers, target, row_groups = pairs[rows, 0], columns[rows], group[rows]
        is_relevant = np.array(
            [
                [passage in self.relevant[query] for passage in passages.tolist()]
                for query in query_numbers.tolist()
            ]
        )
        allowed = member[row_groups] & ~is_relevant
        allowed[np.arange(len(rows)), target] = True
        arrays = {
            "own": np.arange(begin - queries.start, end - queries.start),
            "target": target,
            "allowed": allowed,
        }
        if self.symmetric:
            same_group = row_groups[:, None] == row_groups
            backward = same_group & ~is_relevant[:, target]  # query j and the passage of query i
            np.fill_diagonal(backward, True)
            arrays["backward"] = backward
        texts = self.texts.batch(np.concatenate([query_numbers, self.queries + passages]), layout)
        return extend(texts, {name: torch.from_numpy(array) for name, array in arrays.items()})


def contrastive_loss(
    outputs: tuple[Tensor, Tensor], batch: Mapping[str, Any], temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute InfoNCE (van den Oord et al. 2018): cross-entropy of each query's own passage.

    Returns:
        The loss in nats, summed over the part's pairs, fp32 scalar; for symmetric batches the mean
        of both directions. Second, the number of queries whose own passage scores highest.
    """
    queries, passages = outputs
    own_queries, target = batch["own"], batch["target"]
    scores = queries @ passages.T / temperature
    forward = scores.masked_fill(~batch["allowed"], -torch.inf)[own_queries]
    total = nn.functional.cross_entropy(forward, target[own_queries], reduction="sum")
    if "backward" in batch:
        # Row: passage of a pair; column: query.
        backward = scores[:, target].masked_fill(~batch["backward"], -torch.inf).T[own_queries]
        total = (total + nn.functional.cross_entropy(backward, own_queries, reduction="sum")) / 2
    return total, (forward.argmax(dim=-1) == target[own_queries]).sum()
