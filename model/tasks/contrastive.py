"""One encoder for queries and passages: their vectors, the batches that bring the passages a query is told apart from, and the loss.

A query is compared with the passages of its *group*, some 32 pairs of the step (in-batch negatives; Karpukhin et al. 2020, section
3.2). Groups are cut from the step's pairs in their order, whatever micro-batches and ranks these are shared out to: a part of a group
brings along all the passages of the group, so the loss does not depend on how a batch is split. Where a micro-batch holds whole groups,
as it does if nobody asks for less, nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from model.data.batch import LAYOUT, Batch
from model.data.layouts import Kind
from model.data.sampler import share
from model.layers.heads import mean_state
from model.tasks.encode import TextSamples
from model.tasks.task import Ints

Pooling = Literal["mean", "first", "pooler"]


def pooled(hidden: Tensor, attention_mask: Tensor, pooling: Pooling, pooler: nn.Module) -> Tensor:
    """One vector a row, fp32 [B, D].

    Args:
        hidden: float [B, L, D]; what stands at padding is not looked at.
        attention_mask: bool [B, L].
        pooling: `mean` of the states of all tokens, special ones included, as sentence-transformers has it (Reimers and Gurevych 2019);
            the `first` token's; or what the checkpoint's `pooler` makes of that.
    """
    if pooling == "pooler":
        vectors: Tensor = pooler(hidden, attention_mask)
        return vectors.float()
    if pooling == "first":
        return hidden[:, 0].float()
    return mean_state(hidden.float(), attention_mask)


class BiEncoder(nn.Module):
    """Encoder and pooling. It has no weights of its own; the pooler is kept for whoever goes on from the checkpoint."""

    def __init__(self, encoder: nn.Module, pooler: nn.Module, pooling: Pooling, normalize: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self._pooling: Pooling = pooling
        self._normalize = normalize

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The vectors of queries [Q, D] and passages [P, D], fp32, of a batch as `PairSamples` makes it."""
        vectors = self.embed(batch)
        queries = batch["allowed"].shape[0]
        return vectors[:queries], vectors[queries:]

    def embed(self, batch: Mapping[str, Any]) -> Tensor:
        """The vectors of all rows, fp32 [B, D], of a batch as `TextSamples` makes it."""
        hidden = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], batch.get(LAYOUT))
        vectors = pooled(hidden, batch["attention_mask"], self._pooling, self.pooler)
        return nn.functional.normalize(vectors, dim=-1) if self._normalize else vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSamples:
    """A sample is a pair of a query and a passage. Equal passages stand in a batch once.

    Attributes:
        texts: the queries, and behind them the passages.
        queries: how many queries there are.
        pairs: int64 [n, 2]: numbers of a query and a passage.
        relevant: the numbers of all passages that answer each query: none of these is told apart from another one.
        group: pairs of a step that see each other, about.
        symmetric: whether the loss also looks at the queries of each passage.
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
        both: Ints = lengths[self.pairs[:, 0]] + lengths[self.queries + self.pairs[:, 1]]
        return both

    @property
    def truncated(self) -> int:
        return self.texts.truncated

    @property
    def lost(self) -> Mapping[str, int]:
        return {}

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind) -> Batch:
        """The pairs of these numbers: see `part`."""
        return self.part(np.asarray(chosen, np.int64), 0, len(chosen), layout)

    def part(self, chosen: Ints, begin: int, end: int, layout: Kind) -> Batch:
        """The pairs `chosen[begin:end]` of a step that has all the `chosen`.

        Returns:
            of Q queries and, behind them, P distinct passages what `TextSamples.batch` gives; own int64 [B], which of the queries are
            asked about; target int64 [Q], the number of each one's passage; allowed bool [Q, P], the passages that it is compared
            with, its own among them; backward bool [Q, P], the queries that a query's passage is compared with, turned round.
        """
        number = -(-len(chosen) // self.group)
        bounds = [share(0, len(chosen), place, number) for place in range(number)]
        touched = [(first, last) for first, last in bounds if first < end and last > begin]
        low, high = touched[0][0], touched[-1][1]
        queries = range(low, high) if self.symmetric else range(begin, end)
        group = np.repeat(np.arange(len(touched)), [last - first for first, last in touched])
        pairs = self.pairs[chosen[low:high]]
        passages, column = np.unique(pairs[:, 1], return_inverse=True)
        member = np.zeros((len(touched), len(passages)), np.bool_)
        member[group, column] = True
        rows = np.arange(queries.start - low, queries.stop - low)
        asked, target, own_group = pairs[rows, 0], column[rows], group[rows]
        answers = np.array([[passage in self.relevant[query] for passage in passages.tolist()] for query in asked.tolist()])
        allowed = member[own_group] & ~answers
        allowed[np.arange(len(rows)), target] = True
        arrays = {"own": np.arange(begin - queries.start, end - queries.start), "target": target, "allowed": allowed}
        if self.symmetric:
            same = own_group[:, None] == own_group
            backward = same & ~answers[:, target]  # of query j, and the passage of query i
            np.fill_diagonal(backward, True)
            arrays["backward"] = backward
        texts = self.texts.batch(np.concatenate([asked, self.queries + passages]), layout)
        return {**texts, **{name: torch.from_numpy(array) for name, array in arrays.items()}}


def contrastive_loss(outputs: tuple[Tensor, Tensor], batch: Mapping[str, Any], temperature: float) -> tuple[Tensor, Tensor]:
    """InfoNCE (van den Oord et al. 2018): the cross-entropy of a query's own passage among those that it is compared with.

    Returns:
        fp32 scalar, nats, summed over the batch's own pairs; of a symmetric batch the mean of both ways. And how many queries
        score their own passage highest.
    """
    queries, passages = outputs
    own, target = batch["own"], batch["target"]
    scores = queries @ passages.T / temperature
    forward = scores.masked_fill(~batch["allowed"], -torch.inf)[own]
    total = nn.functional.cross_entropy(forward, target[own], reduction="sum")
    if "backward" in batch:
        among = scores[:, target].masked_fill(~batch["backward"], -torch.inf).T[own]  # row: a pair's passage, column: a query
        total = (total + nn.functional.cross_entropy(among, own, reduction="sum")) / 2
    return total, (forward.argmax(dim=-1) == target[own]).sum()
