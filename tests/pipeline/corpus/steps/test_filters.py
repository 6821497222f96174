"""Filters of whole documents give a reason, or none."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.words import count_words, is_mark, split_words
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN, Document
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from cloze.pipeline.corpus.steps.filters.documents import (
    _BLANK,
    _LETTER,
    _OTHER,
    _kinds,
    letter_share,
)

CONFIG = TextConfig(
    minimum_characters=20, minimum_words=5, maximum_characters=100, minimum_letters=0.7
)


def document(*paragraphs: str, source: str = "s", language: str = "") -> Document:
    return Document(id="a", source=source, title="", paragraphs=paragraphs, language=language)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one two three four five six", None),
        ("one two three four", "too_short"),  # words
        ("a b c d e f", "too_short"),  # characters
        ("", "too_short"),
        ("word " * 30, "too_long"),
        ("12 34 56 78 90 a b 12 34 56", "not_prose"),
        ("| - | - | - | word | - | - |", "not_prose"),
        ("один два три четыре пять шесть", None),
        (
            "这座城市位于河岸，约有两万居民。中世纪时它是一个重要的贸易中心。",
            None,
        ),  # words without spaces
        ("เมืองนี้ตั้งอยู่ริมฝั่งแม่น้ำและมีประชากรประมาณสองหมื่นคน", None),
    ],
)
def test_reasons(text, reason):
    assert run_steps(document(text), build_steps(CONFIG)).reason == reason


def test_zeros_turn_filters_off():
    config = TextConfig(
        minimum_characters=0, minimum_words=0, maximum_characters=0, minimum_letters=0
    )
    assert [name for name, _ in build_steps(config)] == ["repair", "clean", "sentences"]
    assert run_steps(document("1"), build_steps(config)).document == document("1")


def test_words_are_counted_over_paragraphs():
    paragraphs = ["three words each"] * 9
    kept = TextConfig(minimum_characters=0, minimum_words=27, minimum_letters=0)
    dropped = TextConfig(minimum_characters=0, minimum_words=28, minimum_letters=0)
    assert run_steps(document(*paragraphs), build_steps(kept)).reason is None
    assert run_steps(document(*paragraphs), build_steps(dropped)).reason == "too_short"


@given(st.text())
def test_letter_share_is_that_of_the_definition(text):
    visible = "".join(PLACEHOLDER_PATTERN.sub("", text).split())
    visible = "".join(
        letter
        for letter in visible
        if not is_mark(letter) and letter not in "\u200c\u200d\u0f0b\u0f0c"
    )
    letters = re.sub(r"[\W\d_]+", "", visible)
    assert letter_share(text) == pytest.approx(len(letters) / len(visible) if visible else 1.0)


def test_kinds_of_characters_are_those_of_python():
    def kind(character):
        if character.isalnum() and not character.isdecimal():
            return _LETTER
        return (
            _BLANK
            if character.isspace() or is_mark(character) or character in "\u200c\u200d\u0f0b\u0f0c"
            else _OTHER
        )

    assert _kinds().tolist() == [kind(chr(code)) for code in range(sys.maxunicode + 1)]


@given(st.text())
def test_words_counted_are_words_split(text):
    assert count_words(text) == len(split_words(text))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("a  b\nc", 3),
        ("中世紀 abc 城市", 4),
        ("한국어 단어", 2),
        ("日本語の単語", 3),
        ("ภาษาไทย", 3),
    ],
)
def test_count_words(text, count):
    assert count_words(text) == count
