"""Filter of documents or paragraphs with words of a user's list, such as insults.

A list cannot tell the meaning of a word in context: pages on medicine or history are dropped too.
Therefore no list is included, some occurrences may be allowed, and drops are counted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from cloze.core import storage
from cloze.core.config import InputPath
from cloze.core.errors import DataError
from cloze.core.words import UNSPACED_LETTER, caseless, is_mark, letters_apart
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    drop_if,
    remove_paragraphs,
)

REASON = "blocked_words"


class BlockedWordsOptions(CorpusOptions):
    """Options of the blocked-words filter."""

    main: ClassVar[tuple[str, str]] = ("blocked_words", "a file with one word or phrase per line")

    blocked_words: InputPath | None = None
    """File of blocked words and phrases, one per line, in any case."""

    blocked_words_unit: Literal["document", "paragraph"] = "document"
    """Unit to drop: the document, or the paragraph."""

    blocked_words_allowed: int = Field(default=0, ge=0)
    """Number of occurrences allowed per unit."""


@dataclass(frozen=True, slots=True)
class WordList:
    """A list of blocked words, prepared for searching."""

    # first word of a phrase -> the possible remaining words; () for single words
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    parts: tuple[str, ...]  # texts in scripts without spaces, which match anywhere

    @classmethod
    def of(cls, lines: list[str]) -> WordList:
        phrases: dict[str, set[tuple[str, ...]]] = {}
        parts = []
        for line in lines:
            text = caseless(line.strip())
            if not text or text.startswith("#"):
                continue
            if UNSPACED_LETTER.search(text):
                parts.append(text)
            elif words := _word().findall(text):
                phrases.setdefault(words[0], set()).add(tuple(words[1:]))
        return cls(
            {first: tuple(sorted(rest)) for first, rest in phrases.items()},
            tuple(sorted(set(parts))),
        )

    def count(self, text: str) -> int:
        """Count the occurrences of the words and phrases in a text; only whole words match."""
        folded = caseless(text)
        words = _word().findall(letters_apart(folded))
        # what a combining mark follows is another letter
        rests = (rest for part in self.parts for rest in folded.split(part)[1:])
        total = sum(not is_mark(rest[:1] or " ") for rest in rests)
        for start, word in enumerate(words):
            for rest in self.phrases.get(word, ()):
                total += tuple(words[start + 1 : start + 1 + len(rest)]) == rest
        return total


@functools.cache
def _word() -> Any:
    import regex

    return regex.compile(r"\w+(?:['’-]\w+)*")  # regex's \w has combining marks, re's not


@functools.lru_cache(maxsize=4)
def read_list(path: str) -> WordList:
    """Read the list at `path`.

    Raises:
        DataError: the file is missing, not UTF-8, or empty.
    """
    expected = "blocked_words takes a text file with one word or phrase per line"
    words = WordList.of(storage.read_text(path, expected).removeprefix("\ufeff").splitlines())
    if not words.phrases and not words.parts:
        raise DataError(
            f"blocked_words ({path}) contains no words. Write one per line, or remove the option"
        )
    return words


def _build(options: BlockedWordsOptions) -> StepFunction | None:
    if options.blocked_words is None:
        return None
    listed, allowed = read_list(options.blocked_words), options.blocked_words_allowed

    def reason_of(document: Document) -> str | None:
        return REASON if listed.count(document.text) > allowed else None

    def paragraphs(document: Document) -> CleaningResult:
        result = remove_paragraphs(
            document, lambda text: REASON if listed.count(text) > allowed else None
        )
        if result.document is not None and not result.document.paragraphs:
            return CleaningResult(None, REASON, result.removed)
        return result

    return drop_if(reason_of) if options.blocked_words_unit == "document" else paragraphs


STEP = CleaningStep(
    options=BlockedWordsOptions,
    build=_build,
    settings={REASON: "blocked_words"},
    reasons={REASON: "more blocked words than allowed"},
)
