"""The task kind retrieval: a bi-encoder that ranks passages for a query by vector similarity.

A query is compared with the passages of its group, about `group` pairs of the step (Karpukhin et
al. 2020, section 3.2). Groups are cut from the step's pairs in order, and a part of a group
includes all of its passages. So the loss does not depend on micro-batches and ranks. If
micro-batches have complete groups, which is the default, nothing is computed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.ragged import I64
from cloze.labs.embed import BiEncoder
from cloze.labs.retrieval.pairs import (
    QueryPassages,
    ndcg,
    query_blocks,
    read_pairs,
    recall,
    relevant_ranks,
)
from cloze.labs.retrieval.passages import PassageIndex, best
from cloze.labs.retrieval.tasks import BiEncoderOptions
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.sampler import shard_range
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.layers.batch import Batch, extend
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.metrics import Floats, Vectors, mean_interval
from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.task import Loss, Metrics, Samples, Task, TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSamples:
    """Samples that are pairs of a query and a passage; equal passages occur once in a batch.

    Attributes:
        texts: queries, then passages.
        queries: number of queries.
        pairs: int64 [n, 2], numbers of query and passage.
        relevant: passages that answer each query; they are no negatives of each other.
        negatives: int64 [n, h], wrong passages that join the group of each pair.
        group: approximate number of pairs per group.
        symmetric: true if the loss also compares each passage with the queries.
    """

    texts: TextSamples
    queries: int
    pairs: I64
    relevant: Sequence[frozenset[int]]
    negatives: I64
    group: int
    symmetric: bool
    dropped_counts: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def lengths(self) -> I64:
        lengths = self.texts.lengths
        totals: I64 = lengths[self.pairs[:, 0]] + lengths[self.queries + self.pairs[:, 1]]
        return totals

    @property
    def truncated(self) -> int:
        return self.texts.truncated

    def batch(self, indices: Sequence[int] | I64, layout: LayoutKind) -> Batch:
        """Return the batch of these pairs, see `part`."""
        return self.part(np.asarray(indices, np.int64), 0, len(indices), layout)

    def part(self, indices: I64, begin: int, end: int, layout: LayoutKind) -> Batch:
        """Return the batch of pairs `chosen[begin:end]` of a step with pairs `indices`.

        Returns:
            batch: `TextSamples.batch` of Q queries, then P distinct passages, with these entries.
            own: int64 [B], queries that belong to the part.
            target: int64 [Q], passage of each query.
            allowed: bool [Q, P], passages compared with each query, including its own.
            backward: bool [Q, Q], true if query j (row) is compared with the passage of query i;
                symmetric loss only.
        """
        group_count = -(-len(indices) // self.group)
        bounds = [shard_range(0, len(indices), index, group_count) for index in range(group_count)]
        spans = [(first, last) for first, last in bounds if first < end and last > begin]
        groups_begin, groups_end = spans[0][0], spans[-1][1]
        queries = range(groups_begin, groups_end) if self.symmetric else range(begin, end)
        group = np.repeat(np.arange(len(spans)), [last - first for first, last in spans])
        chosen = indices[groups_begin:groups_end]
        pairs = self.pairs[chosen]
        candidates = np.column_stack([pairs[:, 1], self.negatives[chosen]])
        passages, places = np.unique(candidates, return_inverse=True)
        places = places.reshape(candidates.shape)
        columns = places[:, 0]
        member = np.zeros((len(spans), len(passages)), np.bool_)
        member[group[:, None], places] = True
        rows = np.arange(queries.start - groups_begin, queries.stop - groups_begin)
        query_numbers, target, row_groups = pairs[rows, 0], columns[rows], group[rows]
        relevant = (self.relevant[query] for query in query_numbers.tolist())
        is_relevant = np.array([[passage in own for passage in passages] for own in relevant])
        allowed = member[row_groups] & ~is_relevant
        allowed[np.arange(len(rows)), target] = True
        own = np.arange(begin - queries.start, end - queries.start)
        arrays = {"own": own, "target": target, "allowed": allowed}
        if self.symmetric:
            same_group = row_groups[:, None] == row_groups
            backward = same_group & ~is_relevant[:, target]  # query j and the passage of query i
            np.fill_diagonal(backward, True)
            arrays["backward"] = backward
        texts = self.texts.batch(np.concatenate([query_numbers, self.queries + passages]), layout)
        return extend(texts, {name: torch.from_numpy(array) for name, array in arrays.items()})


def hard_negatives(examples: QueryPassages, relevant: Sequence[frozenset[int]], count: int) -> I64:
    """Return the wrong passages that BM25 ranks highest for each pair's query, int64 [n, count].

    Where fewer passages have a word of the query, the pair's own passage fills up.
    """
    negatives = np.repeat(examples.pairs[:, 1:], count, axis=1)
    if count:
        index = PassageIndex.of_texts(examples.passages)
        wrong: dict[int, list[int]] = {}
        for row, query in enumerate(examples.pairs[:, 0].tolist()):
            if query not in wrong:
                ranked = best(index.scores(examples.queries[query]), count + len(relevant[query]))
                wrong[query] = [passage for passage in ranked if passage not in relevant[query]]
            own = wrong[query][:count]
            negatives[row, : len(own)] = own
    return negatives


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


# The task.

QRELS = "qrels.txt"
DEPTH = 100  # passages per query in the run file
TAG = "cloze"
RANKING_METRICS: dict[str, Callable[[I64, I64, I64, int], Floats]] = {
    "ndcg_at_10": partial(ndcg, depth=10),
    "recall_at_1": partial(recall, depth=1),
    "recall_at_10": partial(recall, depth=10),
}
FILES = {
    "rows": "a directory with train and dev files (.jsonl, .tsv, .csv; columns: query, passage)",
    "squad": "a directory with train-v1.1.json and dev-v1.1.json",
    "titles": "a corpus artifact of documents with titles",
    "sentences": "a corpus artifact",
}
Scores = Callable[[slice], Vectors]  # maps queries to scores of all passages, float32 [q, P]


@dataclass(frozen=True, slots=True)
class SplitEmbeddings:
    """Vectors of a split's queries and passages, float32 [Q, D] and [P, D]."""

    queries: Vectors
    passages: Vectors

    def scores(self, indices: slice) -> Vectors:
        scores: Vectors = self.queries[indices] @ self.passages.T
        return scores


class RetrievalTask(Task[QueryPassages, SplitEmbeddings]):
    """Contrastive training with in-batch negatives; evaluation ranks all passages of the split."""

    options: BiEncoderOptions
    metrics = tuple(RANKING_METRICS)
    max_length = 256
    predictions = "run.trec"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        self.source = "corpus" if self.options.pairs in ("titles", "sentences") else "data"
        self.files = FILES[self.options.pairs]

    def read(self, path: str, split: str, limit_per_class: int | None) -> QueryPassages:
        self.refuse_limit(limit_per_class, "; use options.limit")
        examples = read_pairs(path, split, self.options, self.files)
        return examples.capped(self.options.limit) if split == "train" else examples

    def metadata(self, train: QueryPassages) -> TaskMetadata:
        return {"pooling": self.options.pooling, "normalize": self.options.normalize}

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {"embedding": {"pooling": metadata["pooling"], "normalize": metadata["normalize"]}}

    def encode(self, examples: QueryPassages, tokenizer: Tokenizer, max_length: int) -> PairSamples:
        answers: dict[int, set[int]] = defaultdict(set)
        for query, passage in examples.pairs.tolist():
            answers[query].add(passage)
        queries = len(examples.queries)
        relevant = [frozenset(answers[query]) for query in range(queries)]
        return PairSamples(
            texts=encode([*examples.queries, *examples.passages], None, tokenizer, max_length),
            queries=queries,
            pairs=examples.pairs,
            relevant=relevant,
            negatives=hard_negatives(examples, relevant, self.options.hard_negatives),
            group=self.options.group,
            symmetric=self.options.symmetric,
        )

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        return BiEncoder(
            backbone.encoder, backbone.pooler, metadata["pooling"], bool(metadata["normalize"])
        )

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["own"])

    def loss(self, outputs: tuple[Tensor, Tensor], batch: Mapping[str, Any]) -> Loss:
        total, correct = contrastive_loss(outputs, batch, self.options.temperature)
        return Loss(total=total, correct=correct)

    def select_outputs(
        self, outputs: tuple[Tensor, Tensor], batch: Mapping[str, Any]
    ) -> tuple[Tensor, ...]:
        """Return the vectors of each pair's query and passage, [B, D]."""
        queries, passages = outputs
        return queries[batch["own"]], passages[batch["target"][batch["own"]]]

    def decode(
        self, answers: Sequence[Any], examples: QueryPassages, samples: Samples
    ) -> SplitEmbeddings:
        width = len(answers[0][0]) if answers else 0
        queries, passages = (
            np.zeros((len(texts), width), np.float32)
            for texts in (examples.queries, examples.passages)
        )
        for (query, passage), vectors in zip(examples.pairs.tolist(), answers, strict=True):
            queries[query], passages[passage] = vectors
        return SplitEmbeddings(queries, passages)

    def score(self, examples: QueryPassages, predictions: SplitEmbeddings) -> Metrics:
        by_query = self._by_query(examples, predictions.scores)
        return {name: float(by_query[name].mean()) for name in self.metrics}

    def baselines(self, examples: QueryPassages) -> Metrics:
        """Return `bm25`: the score of BM25 over the passages' words."""
        index = PassageIndex.of_texts(examples.passages)
        by_query = self._by_query(
            examples,
            lambda indices: np.stack([index.scores(query) for query in examples.queries[indices]]),
        )
        return {"bm25": float(by_query[self.metrics[0]].mean())}

    def dataset_statistics(self, examples: QueryPassages) -> dict[str, Any]:
        return {"queries": len(examples.queries), "passages": len(examples.passages)}

    def detailed_metrics(
        self, examples: QueryPassages, predictions: SplitEmbeddings, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        return {
            "interval": {
                name: mean_interval(values, seed, resamples)
                for name, values in self._by_query(examples, predictions.scores).items()
            }
        }

    def write_predictions(
        self, directory: str, examples: QueryPassages, predictions: SplitEmbeddings
    ) -> None:
        """Write a TREC run (query, Q0, passage, rank, score, tag) and `qrels.txt`."""
        judgments = (
            f"{examples.query_ids[query]} 0 {examples.passage_ids[passage]} 1\n"
            for query, passage in examples.pairs.tolist()
        )
        for name, lines in (
            (self.predictions, self._run(examples, predictions)),
            (QRELS, judgments),
        ):
            storage.write_bytes(storage.join(directory, name), "".join(lines).encode())

    def _by_query(self, examples: QueryPassages, scores: Scores) -> dict[str, Floats]:
        order = np.argsort(examples.pairs[:, 0], kind="stable")
        queries, passages = examples.pairs[order].T
        ranks = []
        for block in query_blocks(len(examples.queries), len(examples.passages)):
            begin, end = np.searchsorted(queries, (block.start, block.stop))
            block_scores = scores(block)[queries[begin:end] - block.start]
            ranks.append(relevant_ranks(block_scores, passages[begin:end]))
        above, tied = (np.concatenate(arrays) for arrays in zip(*ranks, strict=True))
        return {
            name: RANKING_METRICS[name](above, tied, queries, len(examples.queries))
            for name in self.metrics
        }

    @staticmethod
    def _run(examples: QueryPassages, predictions: SplitEmbeddings) -> Iterable[str]:
        for block in query_blocks(len(examples.queries), len(examples.passages)):
            scores = predictions.scores(block)
            for row, query in zip(scores, examples.query_ids[block], strict=True):
                best = np.argsort(-row, kind="stable")[:DEPTH].tolist()
                for rank, passage in enumerate(best, start=1):
                    identity = examples.passage_ids[passage]
                    yield f"{query} Q0 {identity} {rank} {row[passage]:.6f} {TAG}\n"
