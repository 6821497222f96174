"""Corpus stage: raw paragraphs in, paragraphs of plain text out.

Unicode in NFC, one space between words, and none of the characters that only steer a screen: controls, soft
hyphens, zero-width spaces, direction marks.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from functools import partial
from typing import Literal

from pipeline.corpus.document import Document, is_plain
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult

# Cc but white space; soft hyphen; zero width space, direction marks and embeddings, word joiner and the
# invisible operators, byte order mark, interlinear annotations, tags. Joiners (U+200C, U+200D) have a meaning.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_ASCII_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f]")

Form = Literal["NFC", "NFKC", "none"]


class CleanOptions(CorpusOptions):
    """Characters that stay, and those that do not."""

    normalize_unicode: Form = "NFC"
    """Unicode normalization: NFC, NFKC (also folds full-width letters, ligatures and superscripts) or none."""

    remove_controls: bool = True
    """Whether control characters and invisible ones are taken out."""

    collapse_whitespace: bool = True
    """Whether runs of blanks become one space; else tabs and runs inside a line stay."""


def clean_text(text: str, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True) -> str:
    """`text` on one line, its ends stripped.

    Args:
        text: of any kind.
        controls: take out the characters that nobody sees.
        form: of Unicode normalization: NFC, NFKC (which also folds full-width letters, ligatures and superscripts), or
            none.
        whitespace: make runs of white space single spaces; else only what breaks a line becomes a space.
    """
    if is_plain(text) and "\u034f" not in text:  # which prints, and nobody sees it
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
    return text if text.isprintable() and text.strip() == text else " ".join(map(str.strip, text.splitlines())).strip()


def clean(document: Document, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True) -> StepResult:
    """The document with title, paragraphs and infobox cleaned (`clean_text`), without the paragraphs that were nothing but blanks."""
    change = partial(clean_text, controls=controls, form=form, whitespace=whitespace)
    cleaned = tuple(filter(None, map(change, document.paragraphs)))
    return StepResult(replace(document, title=change(document.title), paragraphs=cleaned, infobox=document.infobox_by(change)))


def _build(options: CleanOptions) -> StepFunction:
    return partial(
        clean, controls=options.remove_controls, form=options.normalize_unicode, whitespace=options.collapse_whitespace
    )


STEP = StepKind(options=CleanOptions, build=_build)
