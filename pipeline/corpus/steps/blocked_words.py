"""Corpus stage: documents, or paragraphs of them, that hold words of a list which the user gives, such as one of insults.

A list says nothing of what a word means where it stands: a page on medicine or history goes with the rest. So there is no list of ours, a
few occurrences may be allowed, and what goes is counted.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from pipeline.core import storage
from pipeline.core.config import InputPath
from pipeline.core.errors import DataError
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import Removed, StepFunction, StepKind, StepResult

REASON = "blocked_words"
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_UNSPACED = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class BlockedWordsOptions(CorpusOptions):
    """Words that text must not hold."""

    blocked_words: InputPath | None = None
    """A file of words and phrases, one a line, of any case (lines that begin with # are remarks); what holds them is dropped."""

    blocked_words_unit: Literal["document", "paragraph"] = "document"
    """What is dropped for them: the document, or the paragraphs that they stand in."""

    blocked_words_allowed: int = Field(default=0, ge=0)
    """How many of them a document, or a paragraph, may hold."""

    @model_validator(mode="after")
    def _list_is_named(self) -> Self:
        if self.blocked_words is None and (self.blocked_words_unit != "document" or self.blocked_words_allowed):
            raise ValueError("blocked_words_unit and blocked_words_allowed need blocked_words: a file of words, one a line")
        return self


@dataclass(frozen=True, slots=True)
class WordList:
    """A list, ready to be looked for.

    Attributes:
        phrases: by their first word, what follows it, of each phrase; of a word alone nothing does.
        parts: those of scripts without blanks between words, which are looked for anywhere.
    """

    phrases: dict[str, tuple[tuple[str, ...], ...]]
    parts: tuple[str, ...]

    @classmethod
    def of(cls, lines: list[str]) -> WordList:
        phrases: dict[str, set[tuple[str, ...]]] = {}
        parts = []
        for line in lines:
            text = line.strip().casefold()
            if not text or text.startswith("#"):
                continue
            if _UNSPACED.search(text):
                parts.append(text)
            elif words := _WORD.findall(text):
                phrases.setdefault(words[0], set()).add(tuple(words[1:]))
        return cls({first: tuple(sorted(rest)) for first, rest in phrases.items()}, tuple(sorted(set(parts))))

    def count(self, text: str) -> int:
        """How often its words and phrases stand in a text, whole words alone."""
        folded = text.casefold()
        words = _WORD.findall(folded)
        found = sum(folded.count(part) for part in self.parts)
        for at, word in enumerate(words):
            for rest in self.phrases.get(word, ()):
                found += tuple(words[at + 1 : at + 1 + len(rest)]) == rest
        return found


@functools.lru_cache(maxsize=4)
def read_list(path: str) -> WordList:
    """The list at `path`.

    Raises:
        DataError: it is missing, is no UTF-8, or holds no word.
    """
    try:
        found = WordList.of(storage.read_text(path).splitlines())
    except FileNotFoundError as error:
        raise DataError(f"blocked_words ({path}) does not exist; name a file of words, one a line") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"blocked_words ({path}) cannot be read as UTF-8 ({error}); name a file of words, one a line"
        ) from error
    if not found.phrases and not found.parts:
        raise DataError(f"blocked_words ({path}) holds no word; write one a line, or leave it out")
    return found


def _build(options: BlockedWordsOptions) -> StepFunction | None:
    if options.blocked_words is None:
        return None
    listed, allowed = read_list(options.blocked_words), options.blocked_words_allowed

    def documents(document: Document) -> StepResult:
        return StepResult(None, REASON) if listed.count(document.text) > allowed else StepResult(document)

    def paragraphs(document: Document) -> StepResult:
        bad = [text for text in document.paragraphs if listed.count(text) > allowed]
        if not bad:
            return StepResult(document)
        removed = tuple(Removed(REASON, text) for text in bad)
        kept = tuple(text for text in document.paragraphs if listed.count(text) <= allowed)
        return StepResult(replace(document, paragraphs=kept), None, removed) if kept else StepResult(None, REASON, removed)

    return documents if options.blocked_words_unit == "document" else paragraphs


STEP = StepKind(options=BlockedWordsOptions, build=_build)
