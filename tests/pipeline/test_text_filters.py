"""Filters give a reason, or none."""

from __future__ import annotations

import pytest

from pipeline.text.document import Document
from pipeline.text.filters import document_filters, first_reason

FILTERS = document_filters(minimum_characters=20, minimum_words=5, maximum_characters=100, minimum_letters=0.7)


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
    ],
)
def test_reasons(text, reason):
    assert first_reason(Document(id="a", source="s", title="", paragraphs=(text.strip(),)), FILTERS) == reason


def test_zeros_turn_filters_off():
    assert document_filters() == ()
    assert first_reason(Document(id="a", source="s", title="", paragraphs=()), ()) is None
