"""Fine-tuned checkpoints in memory, and the commands answer and tag; `classify.py` has the third.

answer: a request has `question` and `passage`; the answers are ranked spans of the passage or "no
answer".

tag: named entities in plain text, with a word splitter similar to CoNLL's. Words are separated by
spaces; punctuation at their ends is split off: `(Baghdad).` has four words. Punctuation inside
stays (`AC-DC`, `3,000.5`, `1996-08-22`), and so does the final stop of `U.N.`. English `'s` and
`n't` are words (`Chelsea's`), `@` and `#` before a name are not (`@paulwalk`). Each character of a
script without spaces is a word (Chinese, Japanese).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core.errors import UsageError
from cloze.core.words import IDEOGRAPHS
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.kinds.spans import Spans
from cloze.model.tasks.kinds.tagging import Tagging
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.configs import AnswerConfig, TagConfig
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The command answer.

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
        return self.ranked(self.encode_questions(questions), top_k) if questions else []

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

    def ranked(self, split: Split, top_k: int = 5) -> list[list[Answer]]:
        """Return what `answer_batch` returns for the questions of `encode_questions`."""
        return [
            [
                {"answer": "", "score": score, "start": None, "end": None}
                if span is None
                else {"answer": span.text, "score": score, "start": span.begin, "end": span.end}
                for rank, (span, score) in enumerate(prediction.ranked(self._threshold))
                if rank < top_k or span is None
            ]
            for prediction in self.predict(split)
        ]


class AnswerPredictor(Verb[tuple[str, str]]):
    """Predictor of answer: the best answer of each request, and all answers in `predictions`."""

    def __init__(self, checkpoint: str, config: AnswerConfig) -> None:
        where = placement(config.device, config.precision)
        self._answerer = QuestionAnsweringPipeline(checkpoint, **where)
        self._top_k = config.top_k

    def read(self, request: Request) -> tuple[str, str]:
        texts = request.text("question"), request.text("passage")
        for name, text in zip(("question", "passage"), texts, strict=True):
            if not text.strip():
                raise request.error(f"has an empty {name!r}; write something")
        return texts

    def encode(self, group: Sequence[tuple[str, str]]) -> Split:
        return self._answerer.encode_questions(group)

    def answer(self, encoded: Split) -> list[dict[str, Any]]:
        return [
            {**ranked[0], "predictions": ranked}
            for ranked in self._answerer.ranked(encoded, self._top_k)
        ]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._answerer.truncated}


# The command tag.

Span = tuple[int, int]  # (start, end) in characters, end exclusive

BETWEEN = re.compile(r"\S+")
ALONE = re.compile(f"[{IDEOGRAPHS}]")  # written without spaces
CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$", re.IGNORECASE)
SIGNS = "@#"


def words_of(text: str) -> list[Span]:
    """Return the words of a text, in order."""
    return [
        word for match in BETWEEN.finditer(text) for word in _cut(text, match.start(), match.end())
    ]


def between_spaces(text: str) -> list[Span]:
    """Return the words of a text whose punctuation is already separated by spaces."""
    return [match.span() for match in BETWEEN.finditer(text)]


def _cut(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces."""
    begin = start
    for match in ALONE.finditer(text, start, end):
        yield from _peeled(text, begin, match.start())
        yield match.span()
        begin = match.end()
    yield from _peeled(text, begin, end)


def _peeled(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces and ideographs, punctuation split off."""
    trailing: list[Span] = []
    while (
        start < end
        and _is_mark(text[start])
        and not (text[start] in SIGNS and start + 1 < end and text[start + 1].isalnum())
    ):
        if CLITIC.fullmatch(text, start, end):
            break
        yield start, start + 1
        start += 1
    while start < end and _is_mark(text[end - 1]) and not _abbreviates(text[start:end]):
        trailing.append((end - 1, end))
        end -= 1
    clitic = CLITIC.search(text, start, end)
    if clitic and clitic.start() > start:
        yield start, clitic.start()
        start = clitic.start()
    if start < end:
        yield start, end
    yield from reversed(trailing)


def _abbreviates(word: str) -> bool:
    """Return True if the final stop belongs to an abbreviation: the word has another stop."""
    return word.endswith(".") and word[-2:-1].isalnum() and "." in word[:-1]


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"


# The pipeline and the command.

Entity = dict[str, Any]  # {"text", "type", "start", "end", "score"}


class EncodedTexts(NamedTuple):
    """Texts, the spans of their words, and the split of the texts with words, if there is one."""

    texts: Sequence[str]
    spans: Sequence[Sequence[Span]]
    split: Split | None


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
            word is an entity, and its label the type.
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
        if encoded.split is not None:
            predictions = self.predict(encoded.split)
            filled = [number for number, spans in enumerate(encoded.spans) if spans]
            for row, number in enumerate(filled):
                found = self._tagging.entities(predictions.tags[row])
                text, spans = encoded.texts[number], encoded.spans[number]
                results[number] = _entities(text, spans, found, predictions.scores[row])
        return results


class Tag(Verb[str]):
    """Predictor of tag: the `entities` of each text."""

    def __init__(self, checkpoint: str, config: TagConfig) -> None:
        where = placement(config.device, config.precision)
        self._tagger = TokenClassificationPipeline(checkpoint, **where)
        self._words = config.words

    def read(self, request: Request) -> str:
        return request.text("text")

    def encode(self, group: Sequence[str]) -> EncodedTexts:
        return self._tagger.encode_texts(group, words=self._words)

    def answer(self, encoded: EncodedTexts) -> list[dict[str, Any]]:
        return [{"entities": entities} for entities in self._tagger.entities(encoded)]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._tagger.truncated}


def _entities(
    text: str,
    spans: Sequence[Span],
    found: Sequence[tuple[str, int, int]],
    scores: npt.NDArray[np.float32],
) -> list[Entity]:
    return [
        {
            "text": text[spans[first][0] : spans[last][1]],
            "type": kind,
            "start": spans[first][0],
            "end": spans[last][1],
            "score": float(scores[first : last + 1].mean()),
        }
        for kind, first, last in found
    ]
