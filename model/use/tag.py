"""Fine-tuned checkpoints that tag words, and the command tag.

Named entities in plain text, with a word splitter similar to CoNLL's. Words are separated by
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
from cloze.model.tasks.kinds.tagging import Tagging
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.configs import TagConfig
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
