"""The command tag: named entities in plain text, with a word splitter similar to CoNLL's.

Words are separated by spaces; punctuation at their ends is split off: `(Baghdad).` has four words.
Punctuation inside stays (`AC-DC`, `3,000.5`, `1996-08-22`), and so does the final stop of `U.N.`.
English `'s` and `n't` are words (`Chelsea's`), `@` and `#` before a name are not (`@paulwalk`).
Each character of a script without spaces is a word (Chinese, Japanese).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from cloze.core.errors import UsageError
from cloze.core.words import IDEOGRAPHS
from cloze.model.tasks.formats.columns import TaggedWords, entities
from cloze.model.tasks.kinds.tagging import Tagging, Tags
from cloze.model.use.configs import TagConfig
from cloze.model.use.requests import Request
from cloze.model.use.tuned import FinetunedModel
from cloze.model.use.verb import Verb

Span = tuple[int, int]  # (start, end) in characters, end exclusive

BETWEEN = re.compile(r"\S+")
ALONE = re.compile(f"[{IDEOGRAPHS}]")  # written without spaces
CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$", re.IGNORECASE)
SIGNS = "@#"


def words_of(text: str) -> list[Span]:
    """Return the words of a text, in order."""
    return [
        word for found in BETWEEN.finditer(text) for word in _cut(text, found.start(), found.end())
    ]


def between_spaces(text: str) -> list[Span]:
    """Return the words of a text whose punctuation is already separated by spaces."""
    return [found.span() for found in BETWEEN.finditer(text)]


def _cut(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces."""
    here = start
    for found in ALONE.finditer(text, start, end):
        yield from _peeled(text, here, found.start())
        yield found.span()
        here = found.end()
    yield from _peeled(text, here, end)


def _peeled(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces and ideographs, punctuation split off."""
    after: list[Span] = []
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
        after.append((end - 1, end))
        end -= 1
    clitic = CLITIC.search(text, start, end)
    if clitic and clitic.start() > start:
        yield start, clitic.start()
        start = clitic.start()
    if start < end:
        yield start, end
    yield from reversed(after)


def _abbreviates(word: str) -> bool:
    """Return True if the final stop belongs to an abbreviation: the word has another stop."""
    return word.endswith(".") and word[-2:-1].isalnum() and "." in word[:-1]


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"


# The pipeline and the command.

Found = dict[str, Any]  # {"text", "type", "start", "end", "score"}


class TokenClassificationPipeline:
    """Checkpoint of a tagging task, in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no tagging.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str) -> None:
        self._tuned = FinetunedModel(path)
        if not isinstance(self._tuned.task, Tagging):
            raise UsageError(
                f"task {self._tuned.task.name} of {path} tags no words; name a checkpoint of "
                f"conll2003, wnut17 or tagging"
            )

    @property
    def truncated(self) -> int:
        """Number of texts with a truncated word since loading."""
        return self._tuned.truncated

    def tag(self, text: str, *, words: bool = False) -> list[Found]:
        """Return the entities of a text, see `tag_batch`."""
        return self.tag_batch([text], words=words)[0]

    def tag_batch(self, texts: Sequence[str], *, words: bool = False) -> list[list[Found]]:
        """Return the entities of each text, by position; long texts have overlapping windows.

        Args:
            words: words and punctuation are already separated by spaces.

        Returns:
            For each text, dicts of "text"; "type", such as PER; "start" and "end", characters, end
            exclusive; "score", the mean probability of its words' tags.
        """
        spans = [(between_spaces if words else words_of)(text) for text in texts]
        filled = [number for number, own in enumerate(spans) if own]
        found: list[list[Found]] = [[] for _ in texts]
        if filled:
            sentences = [
                [texts[number][start:end] for start, end in spans[number]] for number in filled
            ]
            predictions = self._tuned.predictions(TaggedWords(words=sentences, where="texts"))
            for row, number in enumerate(filled):
                found[number] = _entities(texts[number], spans[number], predictions, row)
        return found


class Tag(Verb[str]):
    """Predictor of tag: the `entities` of each text."""

    def __init__(self, checkpoint: str, config: TagConfig) -> None:
        self._tagger, self._words = TokenClassificationPipeline(checkpoint), config.words

    def read(self, request: Request) -> str:
        return request.text("text")

    def answer(self, group: Sequence[str]) -> list[dict[str, Any]]:
        return [{"entities": found} for found in self._tagger.tag_batch(group, words=self._words)]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._tagger.truncated}


def _entities(text: str, spans: Sequence[Span], predictions: Tags, row: int) -> list[Found]:
    scores = predictions.scores[row]
    found = []
    for kind, first, last in entities(predictions.tags[row]):
        start, end = spans[first][0], spans[last][1]
        score = float(scores[first : last + 1].mean())
        found.append(
            {"text": text[start:end], "type": kind, "start": start, "end": end, "score": score}
        )
    return found
