"""Corpus stage: raw paragraphs in, paragraphs of plain text out.

Unicode in NFC, one space between words, and none of the characters that only steer a screen: controls, soft
hyphens, zero-width spaces, direction marks. `tidy` mends what readers leave where they take markup away.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Literal

from pipeline.corpus.document import Document

# Cc but white space; soft hyphen; zero width space, direction marks and embeddings, word joiner and the
# invisible operators, byte order mark, interlinear annotations, tags. Joiners (U+200C, U+200D) have a meaning.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_ASCII_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f]")

Form = Literal["NFC", "NFKC", "none"]

_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*")
_ROUNDS = 4
_EMPTY = re.compile(r"\(\s*\)|\[\s*\]|\"\s*\"|“\s*”|«\s*»")
_AFTER_OPENING = re.compile(r"([(\[])(?:\s*(?:[;,:]|(?:or|and)\b(?=\s*[;,)]))){1,8}\s*")
_BEFORE_CLOSING = re.compile(r"(?:\s*[;,:]){1,8}\s*([)\]])")
_DOUBLED = re.compile(r"([,;:])(?:\s{0,4}[,;])+")
_PADDED = re.compile(r"([(\[])\s+|\s+([)\]])")
_SPACE_BEFORE = re.compile(r"[ \t\n]+([,;:.!?])(?=[\s)\]\"”’]|$)")


def clean_text(text: str, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True) -> str:
    """`text` on one line, its ends stripped.

    Args:
        text: of any kind.
        controls: take out the characters that nobody sees.
        form: of Unicode normalization: NFC, NFKC (which also folds full-width letters, ligatures and superscripts), or
            none.
        whitespace: make runs of white space single spaces; else only what breaks a line becomes a space.
    """
    if text.isprintable() and "\u034f" not in text:  # nothing invisible, and no white space but single blanks
        controls = False
        whitespace = whitespace and ("  " in text or text[:1] == " " or text[-1:] == " ")
    if text.isascii():
        text = _ASCII_INVISIBLE.sub("", text) if controls else text
    else:
        text = _INVISIBLE.sub("", text) if controls else text
        if form != "none" and not unicodedata.is_normalized(form, text):
            text = unicodedata.normalize(form, text)
    if whitespace:
        return " ".join(text.split())
    return text if text.isprintable() and text.strip() == text else " ".join(map(str.strip, text.splitlines())).strip()


def tidy(text: str) -> str:
    """Take away the punctuation that lost its words: `( ; born 1935)` is `(born 1935)`, `()` is nothing."""
    text = _DOUBLED.sub(r"\1", text)
    if "(" in text or "[" in text or '"' in text or "“" in text or "«" in text:
        for _ in range(_ROUNDS):  # one may uncover another
            before = text
            text = _BEFORE_CLOSING.sub(r"\1", _AFTER_OPENING.sub(r"\1", _EMPTY.sub("", text)))
            if text == before:
                break
        text = _PADDED.sub(r"\1\2", text)
    return _SPACE_BEFORE.sub(r"\1", text)


def reads_as_prose(text: str) -> bool:
    """Whether a line of its own (a list's item, a remnant of a table) is a sentence: four words, and the end of one."""
    if len(text.split(maxsplit=4)) < 4:
        return False
    return bool(_SENTENCE_END.search(text[-4:])) or (len(text) > 120 and ". " in text)


def clean(document: Document, *, controls: bool = True, form: Form = "NFC", whitespace: bool = True) -> Document:
    """The document with title and paragraphs cleaned (`clean_text`), without the paragraphs that were nothing but blanks."""
    cleaned = (clean_text(text, controls=controls, form=form, whitespace=whitespace) for text in document.paragraphs)
    title = clean_text(document.title, controls=controls, form=form, whitespace=whitespace)
    return replace(document, title=title, paragraphs=tuple(filter(None, cleaned)))
