"""Nearest occurrences of a word in context, and nearest words by static vectors: `neighbours`.

Peters et al. 2018, table 4: a static vector mixes all meanings of a word, a state in context does
not. The states of a word's occurrences in a corpus are compared with its state in the given
sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cloze.core.errors import DataError, UsageError
from cloze.core.humanize import an
from cloze.labs.embed import EmbeddingPipeline, Vectors
from cloze.labs.inside.stages import NeighboursConfig
from cloze.labs.word_vectors import Span, words_of
from cloze.model import checkpoint
from cloze.model.tasks.files import documents
from cloze.model.train.precision import placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

FAMILY = "static"
WORDS = "encoder.embeddings.word.weight"


class Question(NamedTuple):
    """A word, the sentence it is in, and its characters there; without a sentence both are None."""

    word: str
    sentence: str | None
    span: Span | None


def find_word(text: str, word: str) -> list[Span]:
    """Return the occurrences of a word in a text, ignoring case."""
    wanted = word.casefold()
    if wanted not in text.casefold():
        return []
    return [span for span in words_of(text) if text[slice(*span)].casefold() == wanted]


class StaticWords:
    """Words and their static vectors, in memory.

    Raises:
        UsageError: the checkpoint is not of the family static.
    """

    def __init__(self, path: str) -> None:
        loaded, pieces = checkpoint.load_with_tokenizer(path)
        if loaded.model.family != FAMILY:
            raise UsageError(
                f"static ({path}) is {an(loaded.model.family)} model, whose vectors depend on the "
                f"sentence; name vectors that `cloze static-vectors` made"
            )
        vectors = loaded.state[WORDS].numpy()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._vectors = vectors / np.maximum(lengths, 1e-12)
        self._known = lengths[:, 0] > 0
        self._known[list(pieces.special.ids)] = False
        self._pieces = pieces

    def nearest(self, word: str, count: int) -> list[dict[str, Any]]:
        """Return the nearest words by cosine, best first; empty for an unknown word."""
        ids = self._pieces.encode_batch([word])[0]
        if len(ids) != 1 or not self._known[ids[0]]:
            return []
        scores = np.where(self._known, self._vectors @ self._vectors[ids[0]], -np.inf)
        scores[ids[0]] = -np.inf
        best = np.argsort(-scores, kind="stable")[:count]
        return [
            {"word": self._pieces.backend.id_to_token(int(number)), "score": float(scores[number])}
            for number in best
            if np.isfinite(scores[number])
        ]


def sentences_of(path: str, word: str | None, count: int) -> Iterator[dict[str, Any]]:
    """Iterate over distinct sentences of a corpus in its order, with their document's source.

    Args:
        word: word that they must contain; None: any.
        count: maximum number of sentences.
    """
    seen, columns = set[str](), ("title", "url", "licence", "id")
    for *source, sentences in documents(path, (*columns, "sentences")):
        for sentence in sentences:
            if sentence in seen or (word is not None and not find_word(sentence, word)):
                continue
            if len(seen) == count:
                return
            seen.add(sentence)
            yield {"sentence": sentence, **dict(zip(columns, source, strict=True))}


class Neighbours(Verb[Question]):
    """Predictor of neighbours: `contexts`, occurrences with their sentences, and `static`, words.

    Args:
        path: checkpoint; one of the family static has no contexts.

    Raises:
        UsageError: there is no corpus for the contexts.
    """

    def __init__(self, path: str, config: NeighboursConfig) -> None:
        self._config = config
        with checkpoint.resolve_pinned(path) as directory:
            is_static = checkpoint.load_metadata(directory).model.family == FAMILY
        static = path if is_static else config.static
        self._static = None if static is None else StaticWords(static)
        self._embedder = None
        if is_static:
            return
        if config.corpus is None:
            raise UsageError(
                "corpus (found none) has the sentences that are searched; name one with --corpus"
            )
        self._embedder = EmbeddingPipeline(
            path,
            normalize=True,
            layers=(config.layer,),
            **placement(config.device, config.precision),
        )

    def read(self, request: Request) -> Question:
        word, sentence = request.text("word").strip(), request.optional("in")
        if sentence is None:
            if self._embedder is not None:
                raise request.error("has no 'in', the sentence of the word; add it")
            return Question(word, None, None)
        spans = find_word(sentence, word)
        if not spans:
            raise request.error(f"is no word of the sentence {sentence!r}; give one of its words")
        return Question(word, sentence, spans[0])

    def answer(self, encoded: Sequence[Question]) -> list[dict[str, Any]]:
        answers = []
        for question in encoded:
            answer: dict[str, Any] = {"word": question.word, "in": question.sentence}
            if self._embedder is not None:
                answer["contexts"] = self._contexts(self._embedder, question)
            if self._static is not None:
                answer["static"] = self._static.nearest(question.word, self._config.top_k)
            answers.append(answer)
        return answers

    def _contexts(self, embedder: EmbeddingPipeline, question: Question) -> list[dict[str, Any]]:
        """Return the occurrences whose states are nearest, best first, one per sentence.

        Raises:
            DataError: the word is beyond what the model reads of its sentence.
        """
        config, corpus = self._config, self._config.corpus
        assert corpus is not None
        assert question.sentence is not None
        assert question.span is not None
        wanted = None if config.any_word else question.word
        rows = [
            row
            for row in sentences_of(corpus, wanted, config.sentences)
            if row["sentence"] != question.sentence
        ]
        own, *others = embedder.embed_words([question.sentence, *(row["sentence"] for row in rows)])
        state = dict(own).get(question.span)
        if state is None:
            raise DataError(
                f"{question.word!r} is beyond the {embedder.max_length} tokens that the model "
                f"reads; shorten its sentence"
            )
        found = [
            {**best, **row}
            for row, words in zip(rows, others, strict=True)
            if (best := _nearest(row["sentence"], words, state, wanted)) is not None
        ]
        return sorted(found, key=lambda row: -row["score"])[: config.top_k]


def _nearest(
    text: str, words: Sequence[tuple[Span, Vectors]], state: Vectors, wanted: str | None
) -> dict[str, Any] | None:
    """Return the word of a text whose state is nearest; of `wanted` alone, unless it is None."""
    spans = None if wanted is None else find_word(text, wanted)
    scored = [
        (float(vector @ state), span) for span, vector in words if spans is None or span in spans
    ]
    if not scored:
        return None
    score, (start, end) = max(scored)
    return {"score": score, "word": text[start:end], "start": start, "end": end}
