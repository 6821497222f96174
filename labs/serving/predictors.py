"""Pipelines and predictors of the verbs answer, tag, embed and score."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.labs.embed import EmbeddingPipeline, Vectors
from cloze.labs.serving.explain import Explains, explain_answer, explain_tag
from cloze.labs.serving.verbs import (
    AnswerConfig,
    BestAnswersConfig,
    EmbedConfig,
    ScoreTextsConfig,
    TagConfig,
)
from cloze.labs.word_vectors import Span, between_spaces, words_of
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.kinds.spans import Spans
from cloze.model.tasks.kinds.tagging import Tagging
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.request import Request
from cloze.model.use.scorer import SentenceScorer
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    from typing import Unpack


# {"answer": str, "score": probability, "start": int, "end": int}, see `answer_batch`.
Answer = dict[str, Any]


class QuestionAnsweringPipeline(FinetunedModel):
    """Question-answering checkpoint in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no question answering.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, **placement: Unpack[Placement]) -> None:
        super().__init__(path, **placement)
        if not isinstance(self.task, Spans):
            raise UsageError(
                f"task {self.task.name} of {path} answers no questions; name a checkpoint of a "
                f"task such as squad"
            )
        options = self.task.options
        self._threshold = (options.null_threshold or 0.0) if options.unanswerable else None

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[Answer]:
        """Return the best answers to one question, see `answer_batch`."""
        return self.answer_batch([(question, passage)], top_k)[0]

    def answer_batch(
        self, questions: Sequence[tuple[str, str]], top_k: int = 5
    ) -> list[list[Answer]]:
        """Return the best answers to each question, most probable first.

        Args:
            questions: pairs (question, passage); passages may have any length, equal ones are
                read once.
            top_k: number of answers, at least 1; "no answer" is appended if it is not among them.

        Returns:
            For each question dicts of "answer": the text; "score": its probability among the
            answers that were kept; "start" and "end": its characters in the passage, end exclusive.
            "No answer" is {"answer": "", "score": …, "start": None, "end": None}; only models
            trained on unanswerable questions give it, or any model for a passage without words. It
            is first exactly if its score passes the model's threshold.

        Raises:
            UsageError: a question is empty.
        """
        ranked = self.ranked(self.encode_questions(questions)) if questions else []
        return [best_answers(answers, top_k) for answers in ranked]

    def encode_questions(self, questions: Sequence[tuple[str, str]]) -> Split:
        """Tokenize questions and passages for `ranked`; raises as `answer_batch`."""
        for number, (question, _) in enumerate(questions, start=1):
            if not question.strip():
                raise UsageError(f"question {number} is empty; write one")
        passages = list(dict.fromkeys(passage for _, passage in questions))
        passage_index = {passage: number for number, passage in enumerate(passages)}
        examples = SquadExamples(
            ids=[str(number) for number in range(len(questions))],
            questions=[question for question, _ in questions],
            passages=passages,
            passage_of=[passage_index[passage] for _, passage in questions],
            answers=None,
        )
        return self.encode(examples)

    def ranked(self, split: Split) -> list[list[Answer]]:
        """Return all answers to the questions of `encode_questions`, as `answer_batch`."""
        return [
            [
                {"answer": "", "score": score, "start": None, "end": None}
                if span is None
                else {"answer": span.text, "score": score, "start": span.begin, "end": span.end}
                for span, score in prediction.ranked(self._threshold)
            ]
            for prediction in self.predict(split)
        ]


class AnswerPredictor(Explains[tuple[str, Any]]):
    """Predictor of answer: the best answer of each request, and all answers in `predictions`."""

    def __init__(self, checkpoint: str, config: BestAnswersConfig) -> None:
        where = placement(config.device, config.precision)
        self._answerer, self._top_k = QuestionAnsweringPipeline(checkpoint, **where), config.top_k
        always = isinstance(config, AnswerConfig) and config.explain
        super().__init__(checkpoint, self._answerer, always)

    def read(self, request: Request) -> tuple[str, Any]:
        return request.text("question"), request.text("passage")

    def encode(self, group: Sequence[tuple[str, Any]]) -> Any:
        return self._answerer.encode_questions(group)

    def answers(self, encoded: Any) -> list[dict[str, Any]]:
        return self.best(self._answerer.ranked(encoded))

    def explain(self, encoded: Any, answers: Sequence[dict[str, Any]]) -> None:
        for number, own in enumerate(answers):
            start, end = own["start"], own["end"]  # "no answer" has no place
            found = start is not None and explain_answer(
                self._answerer, encoded, number, start, end
            )
            own["explanation"] = found or None

    def best(self, ranked: Iterable[Sequence[Answer]]) -> list[dict[str, Any]]:
        """Return the first answer of each ranking, with all that are kept."""
        found = [best_answers(answers, self._top_k) for answers in ranked]
        return [{**own[0], "predictions": own} for own in found]


def best_answers(ranked: Sequence[Answer], top_k: int) -> list[Answer]:
    """Return the first `top_k` answers, and "no answer" if it comes later."""
    return [answer for rank, answer in enumerate(ranked) if rank < top_k or answer["start"] is None]


Entity = dict[str, Any]  # {"text", "type", "start", "end", "score"}


class EncodedTexts(NamedTuple):
    """Texts, the spans of their words, and the split of the texts with words, if there is one."""

    texts: Sequence[str]
    spans: Sequence[Sequence[Span]]
    split: Split | None

    @property
    def filled(self) -> list[int]:
        """Numbers of the texts with words, in the order of the split."""
        return [number for number, spans in enumerate(self.spans) if spans]


class TokenClassificationPipeline(FinetunedModel):
    """Checkpoint of a tagging task, in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no tagging.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, **placement: Unpack[Placement]) -> None:
        super().__init__(path, **placement)
        if not isinstance(self.task, Tagging):
            raise UsageError(
                f"task {self.task.name} of {path} tags no words; name a checkpoint of conll2003, "
                f"wnut17 or tagging"
            )
        self._tagging = self.task

    def tag(self, text: str, *, words: bool = False) -> list[Entity]:
        """Return the entities of a text, see `tag_batch`."""
        return self.tag_batch([text], words=words)[0]

    def tag_batch(self, texts: Sequence[str], *, words: bool = False) -> list[list[Entity]]:
        """Return the entities of each text, by position; long texts have overlapping windows.

        Args:
            words: words and punctuation are already separated by spaces.

        Returns:
            For each text, dicts of "text"; "type", such as PER; "start" and "end", characters, end
            exclusive; "score", the mean probability of its words' tags. With plain labels every
            word is an entity, and its label the type; words of one label in a row are one entity
            if the model was imported.
        """
        return self.entities(self.encode_texts(texts, words=words))

    def encode_texts(self, texts: Sequence[str], *, words: bool = False) -> EncodedTexts:
        """Split texts into words and tokenize them, for `entities`."""
        spans = [(between_spaces if words else words_of)(text) for text in texts]
        sentences = [
            [text[start:end] for start, end in text_spans]
            for text, text_spans in zip(texts, spans, strict=True)
            if text_spans
        ]
        split = self.encode(TaggedWords(words=sentences, where="texts")) if sentences else None
        return EncodedTexts(texts, spans, split)

    def entities(self, encoded: EncodedTexts) -> list[list[Entity]]:
        """Return what `tag_batch` returns for the texts of `encode_texts`."""
        results: list[list[Entity]] = [[] for _ in encoded.texts]
        if encoded.split is None:
            return results
        predictions = self.predict(encoded.split)
        for number, tags, scores in zip(
            encoded.filled, predictions.tags, predictions.scores, strict=True
        ):
            text, spans = encoded.texts[number], encoded.spans[number]
            for kind, first, last in self._tagging.entities(tags):
                start, end = spans[first][0], spans[last][1]
                place = {"text": text[start:end], "type": kind, "start": start, "end": end}
                score = float(scores[first : last + 1].mean())
                results[number].append({**place, "score": score})
        return results


class Tag(Explains[str]):
    """Predictor of tag: the `entities` of each text."""

    def __init__(self, checkpoint: str, config: TagConfig) -> None:
        where = placement(config.device, config.precision)
        self._tagger, self._words = TokenClassificationPipeline(checkpoint, **where), config.words
        super().__init__(checkpoint, self._tagger, config.explain)

    def read(self, request: Request) -> str:
        return request.text("text")

    def encode(self, group: Sequence[str]) -> EncodedTexts:
        return self._tagger.encode_texts(group, words=self._words)

    def answers(self, encoded: EncodedTexts) -> list[dict[str, Any]]:
        return [{"entities": entities} for entities in self._tagger.entities(encoded)]

    def explain(self, encoded: EncodedTexts, answers: Sequence[dict[str, Any]]) -> None:
        """Add the explanation of the tag of each entity's first word."""
        for sentence, number in enumerate(encoded.filled):
            assert encoded.split is not None
            text, spans = encoded.texts[number], encoded.spans[number]
            words = {start: word for word, (start, _) in enumerate(spans)}
            for entity in answers[number]["entities"]:
                place = sentence, text, spans, words[entity["start"]]
                entity["explanation"] = explain_tag(self._tagger, encoded.split, *place)


class Embed(Verb[str]):
    """Predictor of embed: each text with its vector, or all vectors in one file."""

    def __init__(self, checkpoint: str, config: EmbedConfig) -> None:
        self._embedder = EmbeddingPipeline(
            checkpoint,
            pooling=config.pooling,
            normalize=config.normalize,
            max_length=config.max_length,
            layers=config.layers,
            **placement(config.device, config.precision),
        )
        self._words = config.word_vectors
        self._file = config.npy and _VectorFile(config.npy, self._embedder.size)

    def read(self, request: Request) -> str:
        return request.text("text")

    def encode(self, group: Sequence[str]) -> tuple[Sequence[str], TextSamples | None]:
        return group, None if self._words else self._embedder.encode(group)

    def answer(self, encoded: tuple[Sequence[str], TextSamples | None]) -> list[dict[str, Any]]:
        texts, samples = encoded
        if samples is None:
            return [
                {
                    "text": text,
                    "words": [
                        {"text": text[start:end], "start": start, "end": end,
                         "embedding": vector.tolist()}
                        for (start, end), vector in words
                    ],
                }
                for text, words in zip(texts, self._embedder.embed_words(texts), strict=True)
            ]  # fmt: skip
        vectors = self._embedder.embed_encoded([(0, samples)], len(texts))
        if self._file:
            self._file.append(vectors)
            return [{} for _ in texts]
        return [
            {"text": text, "embedding": vector.tolist()}
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def finish(self) -> dict[str, Any]:
        embedder = self._embedder
        if self._file:
            self._file.close()
        return {
            "size": embedder.size,
            "pooling": embedder.pooling,
            "normalize": embedder.normalize,
            "truncated": embedder.truncated,
        }


class _VectorFile:
    """NumPy file of float32 [n, D] that grows by rows; `path` appears when it is closed."""

    def __init__(self, path: str, size: int) -> None:
        directory = None
        if storage.is_local(path):
            directory = os.path.dirname(storage.filesystem(path)[1])
            os.makedirs(directory, exist_ok=True)
        self._path, self._size, self._count = path, size, 0
        self._rows = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115, closed with the process

    def append(self, vectors: Vectors) -> None:
        self._rows.write(np.ascontiguousarray(vectors, "<f4").data)
        self._count += len(vectors)

    def close(self) -> None:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (self._count, self._size)}
        self._rows.seek(0)
        with storage.atomic_output(self._path) as target:
            np.lib.format.write_array_header_1_0(target, shape)
            shutil.copyfileobj(self._rows, target)
        self._rows.close()


class ScoreTexts(Verb[str]):
    """Predictor of score: each sentence's score and its tokens' log-probabilities, in nats."""

    def __init__(self, checkpoint: str, config: ScoreTextsConfig) -> None:
        where = placement(config.device, config.precision)
        self._scorer = SentenceScorer(checkpoint, mask=config.mask, **where)
        self._normalize = config.normalize

    def read(self, request: Request) -> str:
        text = request.text("text")
        with request.blamed():
            self._scorer.check(text)
        return text

    def answer(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "text": text,
                "score": scored.score(self._normalize),
                "pieces": list(scored.pieces),
                "log_probabilities": scored.log_probabilities.tolist(),
            }
            for text, scored in zip(encoded, self._scorer.scored(encoded), strict=True)
        ]
