"""MassiveText's quality filter, from the Gopher paper.

Rae et al. 2021 (https://arxiv.org/abs/2112.11446), appendix A.1.1, "Quality Filtering". A paragraph
of the document is a line of the page. The paper's rules are for English. Other languages use their
own stop words, if known. The rules on word length and stop words do not apply to scripts without
spaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from cloze.core.words import UNSPACED, split_words, width, without_marks
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    restrict_to_sources,
)

MINIMUM_WORDS = 50
MAXIMUM_WORDS = 100_000
MINIMUM_MEAN_LENGTH = 3  # characters per word
MAXIMUM_MEAN_LENGTH = 10
MAXIMUM_SYMBOLS = 0.1  # hashes, or ellipses, per word
MAXIMUM_BULLET_LINES = 0.9
MAXIMUM_ELLIPSIS_LINES = 0.3
MINIMUM_ALPHABETIC_WORDS = 0.8
MINIMUM_STOP_WORDS = 2

BULLETS = (
    "•",
    "‣",
    "⁃",
    "◦",
    "∙",
    "·",
    "●",
    "○",
    "■",
    "□",
    "▪",
    "▫",
    "►",
    "▶",
    "➢",
    "❖",
    "✓",
    "*",
    "- ",
    "– ",
    "— ",
)
_ELLIPSES = ("...", "…")
_ALPHABETIC = re.compile(r"[^\W\d_]")

# English as in the paper, in its order; for other languages eight of the commonest function words.
STOP_WORDS = {
    "en": ("the", "be", "to", "of", "and", "that", "have", "with"),
    "de": ("der", "die", "und", "in", "das", "von", "zu", "ist"),
    "fr": ("de", "la", "le", "et", "les", "des", "en", "est"),
    "es": ("de", "la", "que", "el", "en", "y", "los", "se"),
    "it": ("di", "e", "il", "la", "che", "in", "un", "è"),
    "pt": ("de", "a", "que", "o", "e", "do", "da", "em"),
    "nl": ("de", "van", "het", "een", "en", "in", "is", "dat"),
    "sv": ("och", "i", "att", "det", "som", "en", "är", "av"),
    "da": ("og", "i", "at", "det", "er", "en", "af", "til"),
    "no": ("og", "i", "det", "er", "en", "av", "til", "som"),
    "pl": ("w", "i", "na", "z", "się", "do", "nie", "że"),
    "cs": ("a", "v", "se", "na", "je", "že", "s", "do"),
    "ru": ("и", "в", "на", "не", "с", "что", "по", "как"),
    "uk": ("і", "в", "на", "не", "з", "що", "та", "до"),
    "tr": ("ve", "bir", "bu", "da", "de", "için", "ile", "çok"),
    "ar": ("في", "من", "على", "أن", "إلى", "التي", "عن", "الذي"),
    "el": ("και", "το", "του", "η", "της", "την", "να", "ο"),
    "hu": ("a", "az", "és", "hogy", "nem", "is", "egy", "van"),
    "fi": ("ja", "on", "että", "ei", "se", "oli", "hän", "myös"),
    "ro": ("de", "și", "în", "a", "la", "cu", "pe", "care"),
    "hi": ("के", "में", "की", "है", "और", "से", "का", "को"),
}  # fmt: skip


class GopherQualityOptions(CorpusOptions):
    """Options of MassiveText's quality filter."""

    web: ClassVar[Mapping[str, Any]] = {"gopher_quality": True}

    gopher_quality: bool = False
    """MassiveText rules on words, symbols, bullets and stop words; on with --profile web."""


def gopher_quality(document: Document, *, language: str = "en") -> str | None:
    """Return the first rule that the document breaks, in the paper's order; None if it passes.

    `gopher_words`: fewer than 50 words, or more than 100,000.
    `gopher_word_length`: mean length outside 3 to 10.
    `gopher_symbols`: more than one hash, or one ellipsis, per ten words.
    `gopher_bullets`: more than 90 % of the lines start with a bullet.
    `gopher_ellipsis`: more than 30 % of the lines end with an ellipsis.
    `gopher_alphabetic`: fewer than 80 % of the words contain a letter.
    `gopher_stop_words`: fewer than two of the stop words occur.
    """
    text = document.text
    words = split_words(text)
    count = len(words)
    if not MINIMUM_WORDS <= count <= MAXIMUM_WORDS:
        return "gopher_words"
    spaced = language not in UNSPACED
    if spaced and not _is_word_length(words):
        return "gopher_word_length"
    if max(text.count("#"), sum(map(text.count, _ELLIPSES))) > MAXIMUM_SYMBOLS * count:
        return "gopher_symbols"
    lines = document.paragraphs
    if sum(line.startswith(BULLETS) for line in lines) > MAXIMUM_BULLET_LINES * len(lines):
        return "gopher_bullets"
    if sum(line.endswith(_ELLIPSES) for line in lines) > MAXIMUM_ELLIPSIS_LINES * len(lines):
        return "gopher_ellipsis"
    odd = [word for word in words if not word[0].isalpha()]
    if (
        count - sum(_ALPHABETIC.search(word) is None for word in odd)
        < MINIMUM_ALPHABETIC_WORDS * count
    ):
        return "gopher_alphabetic"
    if spaced and language in STOP_WORDS:
        known = set(words)
        found = (
            word in known or word.capitalize() in known or word.upper() in known
            for word in STOP_WORDS[language]
        )
        if sum(found) < MINIMUM_STOP_WORDS:
            return "gopher_stop_words"
    return None


def _is_word_length(words: list[str]) -> bool:
    """Return True if the mean word length is 3 to 10.

    Lengths are those of English letters: Hangul counts twice, and combining marks do not count.
    """
    mean = sum(map(len, words)) / len(words)
    if mean < MINIMUM_MEAN_LENGTH:
        mean = sum(map(width, words)) / len(words)
    elif mean > MAXIMUM_MEAN_LENGTH:
        mean = sum(len(without_marks(word)) for word in words) / len(words)
    return MINIMUM_MEAN_LENGTH <= mean <= MAXIMUM_MEAN_LENGTH


def _build(options: GopherQualityOptions) -> StepFunction | None:
    fallback = options.fallback_language

    def quality(document: Document) -> CleaningResult:
        reason = gopher_quality(document, language=document.language or fallback)
        return CleaningResult(document) if reason is None else CleaningResult(None, reason)

    return restrict_to_sources(options.web_sources, quality) if options.gopher_quality else None


STEP = CleaningStep(options=GopherQualityOptions, build=_build)
