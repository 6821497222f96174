"""A heading takes its subtitle, unless it is so long that it is none."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.readers.books import book_text


@pytest.mark.parametrize(("length", "joined"), [(1, True), (200, True), (201, False)])
def test_a_heading_of_more_than_two_hundred_characters_has_no_subtitle(
    length: int, joined: bool
) -> None:
    heading = "x" * length
    assert book_text._joined(heading, "The End") == (f"{heading} The End" if joined else heading)
    assert book_text._joined(heading, "") == heading
    assert book_text._joined("", "The End") == "The End"
