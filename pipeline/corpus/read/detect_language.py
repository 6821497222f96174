"""Detection of the languages of sources that name none, if the config names none either.

A sample gives the main language and its most frequent words. A document with many of these words
is in the main language; only the others are identified, which takes about fifty times as long.
Closely related languages, such as Danish and Norwegian, share these words and count as one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.options import AUTO
from cloze.pipeline.corpus.read.read_and_clean import read_documents
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.sources import PlannedSlice
from cloze.pipeline.corpus.steps.filters import language

SAMPLED_SLICES = 32  # per kind of source
SAMPLED_DOCUMENTS = 40  # per kind of source, at least two per slice
SAMPLE_READ_AHEAD = 64 << 10  # bytes of an object in a store
MINOR_SHARE = 0.02  # languages with a smaller share of the documents do not count
_WORDS = 100  # most frequent words that tell a language
_WORDS_SHARE = 0.2  # of the words of a text; a third in most texts, hardly any in other languages
_PROBABLE = 0.7  # if no document by itself is certain
_CHARACTERS = 300  # examined for these words
_LONGEST_WORD = 12  # mean length; longer "words" are of a script without spaces


@dataclass(frozen=True, slots=True)
class LanguageIdentifier:
    """Identifier of the language of a text in a corpus that is mostly in one."""

    main: str  # language of most documents; empty: unknown
    words: frozenset[str]  # its most frequent words or, in scripts without spaces, characters

    def __call__(self, text: str) -> str:
        """Return the language (ISO 639); empty if it is not certain."""
        words = _words(text)
        if sum(word in self.words for word in words) > _WORDS_SHARE * len(words):
            return self.main
        name, probability = language.identify(text)
        return name if probability >= language.CERTAIN and name != language.UNKNOWN else ""


def _words(text: str) -> list[str]:
    """Return the words in the middle of a text, or the characters if it has no spaces."""
    begin = max(0, (len(text) - _CHARACTERS) // 2)
    piece = text[begin : begin + _CHARACTERS].lower()
    words = piece.split()
    return words if len(piece) < _LONGEST_WORD * len(words) else list("".join(words))


def with_detected_language(slices: Sequence[PlannedSlice], config: CorpusConfig) -> CorpusConfig:
    """Return the config with the sources' main `language` and an identifier of each document's.

    The config is returned unchanged if it sets a language or if the sources name theirs. If a step
    drops other languages, and several have more than MINOR_SHARE, the language becomes `auto`.
    """
    if config.language:
        return config
    texts: list[str] = []
    for _, group in itertools.groupby(slices, lambda planned: planned.slice.kind):
        members = list(group)
        members = members[:: -(-len(members) // SAMPLED_SLICES)]
        for planned in members:
            documents = read_documents(config, ReadCounters(slice=planned.slice, stop=False))
            most = max(2, SAMPLED_DOCUMENTS // len(members))
            # the reading step reports errors
            with contextlib.suppress(DataError), storage.reading_ahead(SAMPLE_READ_AHEAD):
                for document in itertools.islice(documents, most):
                    if document.language:
                        break
                    texts.append(document.text)
                else:
                    continue
                break  # sources of this kind name languages themselves
    if not texts:
        return config
    identify = LanguageIdentifier("", frozenset())
    languages = list(map(identify, texts))
    if not any(languages):  # too short, each by itself
        name, probability = language.identify("\n".join(texts))
        is_known = probability >= _PROBABLE and name != language.UNKNOWN
        languages = [name if is_known else ""] * len(texts)
    counts = Counter(filter(None, languages))
    main = max(counts, key=lambda name: (counts[name], name), default="")
    words = Counter[str]()
    for text, name in zip(texts, languages, strict=True):
        words.update(_words(text) if name == main else ())
    frequent = [word for word, _ in words.most_common(_WORDS)]
    several = sum(count > MINOR_SHARE * counts.total() for count in counts.values()) > 1
    assumed = AUTO if several and config.language_probability else main
    return config.identified_by(
        LanguageIdentifier(main, frozenset(frequent)),
        "" if assumed == config.fallback_language else assumed,
    )
