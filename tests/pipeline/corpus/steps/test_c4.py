"""C4's rules: each line rule and each page rule by its own reason."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.filters.c4 import apply_c4

GOOD = (
    "The first sentence of the page is here.",
    'And she asked, "is this the second one?"',
    "Here is a third sentence for you!",
)


def page(*lines: str) -> Document:
    return Document(id="a", source="warc", title="", paragraphs=lines)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A heading without any end mark", "c4_no_end_mark"),
        ("A line that says to be continued...", "c4_no_end_mark"),
        ("It ends in a curly quotation mark.”", "c4_no_end_mark"),
        ("Only four words here.", "c4_few_words"),
        ("Please enable JavaScript in your browser now.", "c4_javascript"),
        ("Read our Privacy Policy before you go on.", "c4_policy"),
        ("This site uses cookies to know you better.", "c4_policy"),
        ("One word is too long here " + "x" * 1001 + ".", "c4_long_word"),
    ],
)
def test_lines(line, reason):
    result = apply_c4(page(*GOOD, line))
    assert result.reason is None
    assert result.document is not None
    assert result.document.paragraphs == GOOD
    assert [(removed.reason, removed.text) for removed in result.removed] == [(reason, line)]


@pytest.mark.parametrize(
    "line",
    [
        "Exactly five words are here.",
        "A word of a thousand characters is allowed " + "x" * 999 + ".",
        "He said it ends in a question, does it?",
    ],
)
def test_lines_that_stay(line):
    result = apply_c4(page(*GOOD, line))
    assert result.document == page(*GOOD, line)
    assert result.removed == ()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((*GOOD, "Then follows Lorem Ipsum and so on."), "c4_lorem_ipsum"),
        ((*GOOD, "The code is if (x) { return 1; } and nothing else."), "c4_bracket"),
        (GOOD[:2], "c4_few_sentences"),
        ((), "c4_few_sentences"),
    ],
)
def test_pages(lines, reason):
    result = apply_c4(page(*lines))
    assert (result.document, result.reason) == (None, reason)


def test_a_bracket_counts_only_in_a_line_that_stays():
    assert apply_c4(page(*GOOD, "function() {")).reason is None


def test_sentences_are_counted_inside_lines():
    assert (
        apply_c4(
            page("One sentence is here. Another one follows it. The third one ends it.")
        ).reason
        is None
    )
    assert (
        apply_c4(page("One sentence is here. Another one, the last, follows it.")).reason
        == "c4_few_sentences"
    )


def test_citations_are_cut_out():
    result = apply_c4(
        page(*GOOD, "It was built in 1900.[3] It fell in 1950 [citation needed].[12][]")
    )
    assert result.document is not None
    assert result.document.paragraphs[-1] == "It was built in 1900. It fell in 1950 ."
    assert result.removed == ()


def test_other_languages_have_their_own_end_marks():
    lines = (
        "这座城市位于河岸，约有两万居民。",
        "中世纪时它是一个重要的贸易中心！",
        "它的城墙今天还在吗？",
    )
    assert apply_c4(page(*lines), language="zh").document == page(*lines)
    assert apply_c4(page(*lines), language="en").reason == "c4_few_sentences"


def test_end_marks_may_be_left_alone():
    result = apply_c4(page(*GOOD, "A heading without any end mark"), end_marks=False)
    assert result.removed == ()
