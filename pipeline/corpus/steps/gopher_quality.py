"""Corpus stage: MassiveText's quality filter, from the paper on Gopher.

Rae et al. 2021 (https://arxiv.org/abs/2112.11446), appendix A.1.1, "Quality Filtering". A paragraph of the document is a line
of the page. The paper's rules are for English; in other languages the stop words are that language's own, where they are
known, and the rules about the length of words and about stop words do not apply to scripts without spaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult, only_from
from pipeline.corpus.steps.word_count import UNSPACED, split_words

MINIMUM_WORDS = 50
MAXIMUM_WORDS = 100_000
MINIMUM_MEAN_LENGTH = 3  # characters a word
MAXIMUM_MEAN_LENGTH = 10
MAXIMUM_SYMBOLS = 0.1  # hashes, or ellipses, a word
MAXIMUM_BULLET_LINES = 0.9
MAXIMUM_ELLIPSIS_LINES = 0.3
MINIMUM_ALPHABETIC_WORDS = 0.8
MINIMUM_STOP_WORDS = 2

BULLETS = ("•", "‣", "⁃", "◦", "∙", "·", "●", "○", "■", "□", "▪", "▫", "►", "▶", "➢", "❖", "✓", "*", "- ", "– ", "— ")
_ELLIPSES = ("...", "…")
_ALPHABETIC = re.compile(r"[^\W\d_]")

# English as in the paper, in its order; of other languages eight of the commonest function words.
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
    """MassiveText's quality filter."""

    web: ClassVar[Mapping[str, Any]] = {"gopher_quality": True}

    gopher_quality: bool = False
    """Whether MassiveText's rules on words, symbols, bullets and stop words apply (`gopher_*`)."""


def gopher_quality(document: Document, *, language: str = "en") -> str | None:
    """The first of the paper's rules that the document breaks, in the paper's order; None: it keeps them all.

    `gopher_words`: fewer than 50 words, or more than 100,000. `gopher_word_length`: mean length outside 3 to 10.
    `gopher_symbols`: more than one hash, or one ellipsis, in ten words. `gopher_bullets`: over 90 % of the lines start with a bullet.
    `gopher_ellipsis`: over 30 % end with an ellipsis. `gopher_alphabetic`: under 80 % of the words hold a letter.
    `gopher_stop_words`: fewer than two of the stop words occur.
    """
    text = document.text
    words = split_words(text)
    count = len(words)
    if not MINIMUM_WORDS <= count <= MAXIMUM_WORDS:
        return "gopher_words"
    spaced = language not in UNSPACED
    if spaced and not MINIMUM_MEAN_LENGTH <= sum(map(len, words)) / count <= MAXIMUM_MEAN_LENGTH:
        return "gopher_word_length"
    if max(text.count("#"), sum(map(text.count, _ELLIPSES))) > MAXIMUM_SYMBOLS * count:
        return "gopher_symbols"
    lines = document.paragraphs
    if sum(line.startswith(BULLETS) for line in lines) > MAXIMUM_BULLET_LINES * len(lines):
        return "gopher_bullets"
    if sum(line.endswith(_ELLIPSES) for line in lines) > MAXIMUM_ELLIPSIS_LINES * len(lines):
        return "gopher_ellipsis"
    odd = [word for word in words if not word[0].isalpha()]
    if count - sum(_ALPHABETIC.search(word) is None for word in odd) < MINIMUM_ALPHABETIC_WORDS * count:
        return "gopher_alphabetic"
    if spaced and language in STOP_WORDS:
        known = set(words)
        found = (word in known or word.capitalize() in known or word.upper() in known for word in STOP_WORDS[language])
        if sum(found) < MINIMUM_STOP_WORDS:
            return "gopher_stop_words"
    return None


def _build(options: GopherQualityOptions) -> StepFunction | None:
    fallback = options.fallback_language

    def quality(document: Document) -> StepResult:
        reason = gopher_quality(document, language=document.language or fallback)
        return StepResult(document) if reason is None else StepResult(None, reason)

    return only_from(options.web_sources, quality) if options.gopher_quality else None


STEP = StepKind(options=GopherQualityOptions, build=_build)
