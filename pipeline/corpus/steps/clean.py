"""Character cleaning: NFC, single spaces, and no invisible control characters.

Removed are controls, soft hyphens, zero-width spaces and direction marks.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from functools import partial
from typing import Literal

from cloze.pipeline.corpus.document import Document, is_plain
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, StepFunction

# Cc except white space; soft hyphen; zero-width space, direction marks and embeddings, word joiner
# and invisible operators, byte order mark, interlinear annotations, tags. Joiners (U+200C, U+200D)
# are kept: they have a meaning.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_ASCII_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f]")

Form = Literal["NFC", "NFKC", "none"]


class CleanOptions(CorpusOptions):
    """Options of character cleaning."""

    normalize_unicode: Form = "NFC"
    """Unicode normalization."""

    remove_controls: bool = True
    """Remove control and invisible characters."""

    collapse_whitespace: bool = True
    """Replace runs of blanks by one space."""


def clean_text(
    text: str, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True
) -> str:
    """Return `text` cleaned, on one line and stripped.

    Args:
        text: raw text.
        controls: remove invisible characters.
        form: Unicode normalization: NFC, NFKC (which also folds full-width letters, ligatures and
            superscripts), or none.
        whitespace: replace runs of white space by single spaces; else replace only line breaks.
    """
    if is_plain(text) and "\u034f" not in text:  # U+034F is printable but invisible
        if text.isascii() or form == "none" or unicodedata.is_normalized(form, text):
            return text
        controls = whitespace = False
    if text.isascii():
        text = _ASCII_INVISIBLE.sub("", text) if controls else text
    else:
        text = _INVISIBLE.sub("", text) if controls else text
        if form != "none" and not unicodedata.is_normalized(form, text):
            text = unicodedata.normalize(form, text)
    if whitespace:
        return " ".join(text.split())
    return (
        text
        if text.isprintable() and text.strip() == text
        else " ".join(map(str.strip, text.splitlines())).strip()
    )


def clean(
    document: Document, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True
) -> CleaningResult:
    """Clean title, paragraphs and infobox (`clean_text`); drop paragraphs that become empty."""
    change = partial(clean_text, controls=controls, form=form, whitespace=whitespace)
    cleaned = tuple(filter(None, map(change, document.paragraphs)))
    return CleaningResult(
        replace(
            document,
            title=change(document.title),
            paragraphs=cleaned,
            infobox=document.map_infobox(change),
        )
    )


def _build(options: CleanOptions) -> StepFunction:
    return partial(
        clean,
        controls=options.remove_controls,
        form=options.normalize_unicode,
        whitespace=options.collapse_whitespace,
    )


STEP = CleaningStep(options=CleanOptions, build=_build)
