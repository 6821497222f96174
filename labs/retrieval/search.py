"""Search in the passages of a corpus: by words (BM25), by vectors, or both; answers from them.

The target is an index (`cloze index`), or vectors of its passages (`cloze embed-corpus --corpus
INDEX`), which also know words. Index and checkpoint of vectors are found by fingerprint, where they
were or near the vectors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.errors import UsageError
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.retrieval.passages import Passage, PassageIndex, Scores, best
from cloze.labs.retrieval.stages import AnswerCorpusConfig, SearchConfig
from cloze.labs.serving.predictors import Answer, AnswerPredictor
from cloze.labs.vectors import SCALE, find_input, read_vectors, vectors_file_name
from cloze.model.tasks.task import Split
from cloze.model.train.precision import placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

FUSED, SMOOTHING = 100, 60  # ranks that are fused, and k of Cormack et al. 2009
ROWS = 1 << 14  # vectors that are compared at once


class Searcher:
    """An index in memory, with vectors of its passages or without.

    Args:
        path: index, or vectors of its passages.
        by: bm25; dense: cosine of the vectors; both: reciprocal rank fusion of the two. Default:
            both if `path` has vectors, else bm25.
        options: `device` and `precision` of the model that embeds queries.

    Raises:
        UsageError: `by` needs vectors, and `path` has none.
        DataError: `path` has neither an index nor vectors, or what belongs to them is not near.
    """

    def __init__(self, path: str, by: str | None = None, **options: Any) -> None:
        manifest = artifact.read_manifest(path)
        has_vectors = manifest.stage == "vectors"
        self.by = by or ("both" if has_vectors else "bm25")
        if self.by != "bm25" and not has_vectors:
            raise UsageError(
                f"by ({self.by}) needs vectors, and {path} is an index of words; make vectors: "
                f"cloze embed-corpus --corpus {path} --checkpoint …"
            )
        if not has_vectors:
            self.index = PassageIndex.open(path)
            return
        self.index = PassageIndex.open(find_input(path, "corpus", manifest.parents["corpus"]))
        if self.by == "bm25":
            return
        self._embedder = EmbeddingPipeline(
            find_input(path, "checkpoint", manifest.parents["checkpoint"]),
            pooling=manifest.config["pooling"],
            max_length=manifest.config["max_length"],
            normalize=True,
            **options,
        )
        self._vectors = [
            read_vectors(storage.join(path, vectors_file_name(name)))[1]
            for name in self.index.names
        ]

    def search(self, queries: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
        """Return the best passages of each query, best first: their numbers and scores."""
        vectors: Any = None if self.by == "bm25" else self._embedder.embed(queries)
        answers = []
        scores: Scores
        for number, query in enumerate(queries):
            if self.by == "bm25":
                scores = self.index.scores(query)
            elif self.by == "dense":
                scores = self._cosines(vectors[number])
            else:
                scores = np.zeros(len(self.index), np.float32)
                for ranked in (self.index.scores(query), self._cosines(vectors[number])):
                    for rank, passage in enumerate(best(ranked, max(FUSED, count)), 1):
                        scores[passage] += 1 / (SMOOTHING + rank)
            answers.append([(passage, float(scores[passage])) for passage in best(scores, count)])
        return answers

    def _cosines(self, query: Any) -> Scores:
        """Return the cosine of each passage's vector with the query's, float32 [passages]."""
        blocks = [
            shard[begin : begin + ROWS].astype(np.float32) @ query
            for shard in self._vectors
            for begin in range(0, len(shard), ROWS)
        ]
        return (np.concatenate(blocks) / SCALE).astype(np.float32)


class Reading:
    """Passages as one text to read, and the way back from its characters."""

    BETWEEN = "\n\n"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.text = self.BETWEEN.join(passage.text for passage in passages)
        lengths = [len(passage.text) + len(self.BETWEEN) for passage in passages]
        self._begins = list(accumulate(lengths, initial=0))

    def source(self, start: int, end: int) -> dict[str, Any] | None:
        """Return the passage of an answer, with its characters there; None: it spans several."""
        number = bisect_right(self._begins, start) - 1
        begin, passage = self._begins[number], self.passages[number]
        if end > begin + len(passage.text):
            return None
        return {"start": start - begin, "end": end - begin, "passage": asdict(passage)}


class Search(Verb[str]):
    """Predictor of search: `results`, passages with their sources, best first."""

    def __init__(self, path: str, config: SearchConfig) -> None:
        options = placement(config.device, config.precision)
        self._searcher, self._top_k = Searcher(path, config.by, **options), config.top_k

    def read(self, request: Request) -> str:
        return request.text("query")

    def answer(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        passage = self._searcher.index.passage
        found = self._searcher.search(encoded, self._top_k)
        return [
            {
                "query": query,
                "results": [{"score": score, **asdict(passage(number))} for number, score in own],
            }
            for query, own in zip(encoded, found, strict=True)
        ]

    def finish(self) -> dict[str, Any]:
        return {"by": self._searcher.by, "passages": len(self._searcher.index)}


class CorpusAnswers(AnswerPredictor):
    """Predictor of answer-corpus: the best answer of each request, and all in `predictions`.

    A question without a passage is answered from the passages that the search finds.
    They are read as one text, so their answers compete (Yang et al. 2019, BERTserini); each answer
    then has its `passage` with title, url and licence.
    """

    def __init__(self, checkpoint: str, config: AnswerCorpusConfig) -> None:
        super().__init__(checkpoint, config)
        self._passages = config.passages
        self._searcher = Searcher(config.corpus, **placement(config.device, config.precision))

    def read(self, request: Request) -> tuple[str, str | None]:
        return request.text("question"), request.optional("passage")

    def encode(self, group: Sequence[tuple[str, str | None]]) -> tuple[Split, list[Reading | None]]:
        readings: list[Reading | None] = [None] * len(group)
        searched = [number for number, (_, passage) in enumerate(group) if passage is None]
        if searched:
            found = self._searcher.search([group[number][0] for number in searched], self._passages)
            for number, own in zip(searched, found, strict=True):
                passage = self._searcher.index.passage
                readings[number] = Reading([passage(place) for place, _ in own])
        questions = [
            (question, passage or (reading.text if reading else ""))
            for (question, passage), reading in zip(group, readings, strict=True)
        ]
        return self._answerer.encode_questions(questions), readings

    def answers(self, encoded: tuple[Split, list[Reading | None]]) -> list[dict[str, Any]]:
        split, readings = encoded
        return self.best(
            ranked if reading is None else _sourced(ranked, reading)
            for ranked, reading in zip(self._answerer.ranked(split), readings, strict=True)
        )


def _sourced(ranked: Sequence[Answer], reading: Reading) -> list[Answer]:
    """Return the answers that lie in one passage, with it; at least "no answer"."""
    answers = []
    for answer in ranked:
        source = None if answer["start"] is None else reading.source(answer["start"], answer["end"])
        if source is not None or answer["start"] is None:
            answers.append({**answer, **(source or {"passage": None})})
    nothing = {"answer": "", "score": 0.0, "start": None, "end": None, "passage": None}
    return answers or [nothing]
