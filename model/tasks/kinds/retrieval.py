"""The task kind retrieval: a bi-encoder that ranks passages for a query by vector similarity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.words import word_pattern
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.contrastive import BiEncoder, PairSamples, contrastive_loss
from cloze.model.tasks.encode import encode
from cloze.model.tasks.formats.pairs import QueryPassages, read_pairs
from cloze.model.tasks.metrics import (
    Floats,
    Ints,
    Vectors,
    mean_interval,
    ndcg,
    query_blocks,
    recall,
    relevant_ranks,
)
from cloze.model.tasks.options import RetrievalOptions, TaskOptions
from cloze.model.tasks.task import Figures, Loss, Samples, Task, TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

QRELS = "qrels.txt"
DEPTH = 100  # passages per query in the run file
TAG = "cloze"
METRICS: dict[str, Callable[[Ints, Ints, Ints, int], Floats]] = {
    "ndcg_at_10": partial(ndcg, depth=10),
    "recall_at_1": partial(recall, depth=1),
    "recall_at_10": partial(recall, depth=10),
}
FILES = {
    "rows": "a directory with train and dev files (.jsonl, .tsv, .csv; columns: query, passage)",
    "squad": "a directory with train-v1.1.json and dev-v1.1.json",
    "titles": "a corpus artifact of documents with titles",
}
Scores = Callable[[slice], Vectors]  # maps queries to scores of all passages, float32 [q, P]


@dataclass(frozen=True, slots=True)
class SplitEmbeddings:
    """Vectors of a split's queries and passages, float32 [Q, D] and [P, D]."""

    queries: Vectors
    passages: Vectors

    def scores(self, chosen: slice) -> Vectors:
        scores: Vectors = self.queries[chosen] @ self.passages.T
        return scores


class Retrieval(Task[QueryPassages, SplitEmbeddings]):
    """Contrastive training with in-batch negatives; evaluation ranks all passages of the split."""

    metrics = tuple(METRICS)
    max_length = 256
    predictions = "run.trec"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, RetrievalOptions)
        self.retrieval = options
        self.source = "corpus" if options.pairs == "titles" else "data"
        self.files = FILES[options.pairs]

    def read(self, path: str, split: str, limit_per_class: int | None) -> QueryPassages:
        self.refuse_limit(limit_per_class, "; use options.limit")
        examples = read_pairs(path, split, self.retrieval, self.files)
        return examples.capped(self.retrieval.limit) if split == "train" else examples

    def metadata(self, train: QueryPassages) -> TaskMetadata:
        return {"pooling": self.retrieval.pooling, "normalize": self.retrieval.normalize}

    def heads(self, meaning: TaskMetadata) -> dict[str, Any]:
        return {"embedding": {"pooling": meaning["pooling"], "normalize": meaning["normalize"]}}

    def encode(self, examples: QueryPassages, tokenizer: Tokenizer, max_length: int) -> PairSamples:
        answers: dict[int, set[int]] = defaultdict(set)
        for query, passage in examples.pairs.tolist():
            answers[query].add(passage)
        queries = len(examples.queries)
        return PairSamples(
            texts=encode([*examples.queries, *examples.passages], None, tokenizer, max_length),
            queries=queries,
            pairs=examples.pairs,
            relevant=[frozenset(answers[query]) for query in range(queries)],
            group=self.retrieval.group,
            symmetric=self.retrieval.symmetric,
        )

    def network(
        self, backbone: Backbone, config: ModelConfig, meaning: TaskMetadata, dropout: float
    ) -> nn.Module:
        return BiEncoder(
            backbone.encoder, backbone.pooler, meaning["pooling"], bool(meaning["normalize"])
        )

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["own"])

    def loss(self, outputs: tuple[Tensor, Tensor], batch: Mapping[str, Any]) -> Loss:
        total, correct = contrastive_loss(outputs, batch, self.retrieval.temperature)
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
        del samples
        width = len(answers[0][0]) if answers else 0
        queries, passages = (
            np.zeros((len(texts), width), np.float32)
            for texts in (examples.queries, examples.passages)
        )
        for (query, passage), vectors in zip(examples.pairs.tolist(), answers, strict=True):
            queries[query], passages[passage] = vectors
        return SplitEmbeddings(queries, passages)

    def score(self, examples: QueryPassages, predictions: SplitEmbeddings) -> Figures:
        by_query = self._by_query(examples, predictions.scores)
        return {name: float(by_query[name].mean()) for name in self.metrics}

    def baselines(self, examples: QueryPassages) -> Figures:
        """Return `tfidf`: the score of scikit-learn's TF-IDF over the passages' words."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(
            sublinear_tf=True, tokenizer=word_pattern().findall, token_pattern=None
        )
        passages = vectorizer.fit_transform(examples.passages).astype(np.float32)
        queries = vectorizer.transform(examples.queries).astype(np.float32)
        by_query = self._by_query(examples, lambda chosen: (queries[chosen] @ passages.T).toarray())
        return {"tfidf": float(by_query[self.metrics[0]].mean())}

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
        """Return the metrics of each query."""
        order = np.argsort(examples.pairs[:, 0], kind="stable")
        queries, passages = examples.pairs[order].T
        ranks = []
        for block in query_blocks(len(examples.queries), len(examples.passages)):
            begin, end = np.searchsorted(queries, (block.start, block.stop))
            block_scores = scores(block)[queries[begin:end] - block.start]
            ranks.append(relevant_ranks(block_scores, passages[begin:end]))
        above, tied = (np.concatenate(arrays) for arrays in zip(*ranks, strict=True))
        return {
            name: METRICS[name](above, tied, queries, len(examples.queries))
            for name in self.metrics
        }

    @staticmethod
    def _run(examples: QueryPassages, predictions: SplitEmbeddings) -> Iterable[str]:
        for block in query_blocks(len(examples.queries), len(examples.passages)):
            scores = predictions.scores(block)
            for row, query in zip(scores, examples.query_ids[block], strict=True):
                for rank, passage in enumerate(
                    np.argsort(-row, kind="stable")[:DEPTH].tolist(), start=1
                ):
                    yield (
                        f"{query} Q0 {examples.passage_ids[passage]} {rank} {row[passage]:.6f} "
                        f"{TAG}\n"
                    )
