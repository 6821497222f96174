"""Cleaning: what it takes away, and that it takes nothing else."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import PLACEHOLDER, Document
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.steps.clean import clean, clean_text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a\u00adb", "ab"),
        ("\ufeffa\u200b b", "a b"),
        ("a\x00b\x1fc", "ab c"),
        ("caf\u0065\u0301", "café"),
        (" a \n\t b\u00a0c\u3000d ", "a b c d"),
        ("a\u202eb\u2066c", "abc"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # the non-joiner is part of the word
        (f"x {PLACEHOLDER} y", f"x {PLACEHOLDER} y"),
        ("", ""),
    ],
)
def test_clean_text(raw, expected):
    assert clean_text(raw) == expected


@given(st.text())
def test_clean_text_is_done_after_once(text):
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(c) == "Cc" for c in cleaned)
    assert cleaned == cleaned.strip()
    assert "  " not in cleaned


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"], max_codepoint=0x2FF), min_size=1))
def test_words_are_left_alone(text):
    assert clean_text(text) == unicodedata.normalize("NFC", text)


def test_reads_as_prose():
    assert reads_as_prose("It was a dark night.")
    assert reads_as_prose('He said that "this is it."')
    assert not reads_as_prose("Early life.")
    assert not reads_as_prose("List of the kings of Spain")


def test_empty_paragraphs_go():
    document = Document(id="a", source="s", title=" T\u00ad ", paragraphs=(" ", "x\n y", "\u200b"))
    assert clean(document).document.paragraphs == ("x y",)
    assert clean(document).document.title == "T"
