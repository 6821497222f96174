"""Lines of a document: boilerplate, and what stands in it more than once."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.filters.lines import (
    REASONS,
    boilerplate_reason,
    remove_boilerplate,
    remove_repeated,
)


def page(*lines: str) -> Document:
    return Document(id="a", source="warc", title="", paragraphs=lines)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("This website uses cookies to improve your experience.", "cookie"),
        ("By using our site you consent to our use of cookies", "cookie"),
        ("Accept all cookies", "cookie"),
        ("Cookie Policy", "cookie"),
        ("Diese Website verwendet Cookies.", "cookie"),
        ("Ce site utilise des cookies", "cookie"),
        ("Este sitio web utiliza cookies", "cookie"),
        ("Privacy Policy | Terms and Conditions", "policy"),
        ("Read our Privacy Policy.", "policy"),
        ("© 2024 Example Ltd. All rights reserved.", "copyright"),
        ("Copyright © 1999-2005 by the Authors", "copyright"),
        ("Powered by WordPress", "copyright"),
        ("Please enable JavaScript to view the comments.", "javascript"),
        ("*** START OF THIS PROJECT GUTENBERG EBOOK CARMILLA ***", "gutenberg"),
        ("End of the Project Gutenberg EBook of Carmilla", "gutenberg"),
        ("Release Date: November, 2003 [EBook #10007]", "gutenberg"),
        ("Produced by Suzanne Shell and the Online Distributed Proofreading Team", "gutenberg"),
        ("From Wikipedia, the free encyclopedia", "wikipedia"),
        ("Jump to: navigation, search", "wikipedia"),
        ('Retrieved from "http://en.wikipedia.org/wiki/Canal"', "wikipedia"),
        ("This geography-related article is a stub.", "wikipedia"),
        ("Categories: Rivers of France | Canals", "wikipedia"),
        ("[edit]", "wikipedia"),
        ("Main article: History of the canal", "wikipedia"),
        ("Share this on Facebook", "share"),
        ("Facebook | Twitter | Email", "share"),
        ("Click to share on Twitter (Opens in new window)", "share"),
        ("12 Comments", "share"),
        ("Skip to main content", "navigation"),
        ("Home » About us » Contact", "navigation"),
        ("Read more...", "navigation"),
        ("« Older posts", "navigation"),
        ("Page 2 of 9", "navigation"),
        ("Leave a Reply", "form"),
        ("Sign up for our newsletter", "form"),
        ("Your email address will not be published.", "form"),
        ("Log in", "form"),
    ],
)
def test_boilerplate(line, kind):
    assert boilerplate_reason(line) == f"boilerplate_{kind}"


@pytest.mark.parametrize(
    "line",
    [
        "She baked cookies for the whole village, and we ate them all.",
        "The law says how a company must explain its privacy policy to the public before it "
        "collects anything.",
        "He went home.",
        "Home is where the heart is",
        "The next article of the treaty deals with fishing.",
        "Please share your bread with the neighbours who have none.",
        "The printing press was powered by water from the canal.",
        "Copyright law has changed since the treaty was signed.",
        "Project Gutenberg was founded by Michael Hart.",
        "Wikipedia is an encyclopedia that anyone can edit.",
        "This article of clothing is a relic.",
        "He learned to read more quickly than his brother.",
        "JavaScript is a programming language.",
        "The contact between the two plates is not visible at the surface.",
        "See also how the author treats the question of free will in his later works.",
    ],
)
def test_text_stays(line):
    assert boilerplate_reason(line) is None


def test_long_lines_are_text():
    assert boilerplate_reason("This website uses cookies. " + "And it tells a story. " * 20) is None


def test_boilerplate_is_removed_in_order_and_told():
    result = remove_boilerplate(
        page("Home | About", "The story begins here.", "Share this", "© 2024 X")
    )
    assert result.document == page("The story begins here.")
    assert [removed.reason for removed in result.removed] == [
        "boilerplate_navigation",
        "boilerplate_share",
        "boilerplate_copyright",
    ]
    assert all(removed.reason in REASONS for removed in result.removed)
    same = page("The story begins here.")
    assert remove_boilerplate(same).document is same


def test_boilerplate_takes_linear_time():
    for line in (
        "share " * 60,
        "home " * 70,
        "a" * 400,
        "- " * 190 + "cookie",
        "this " * 70 + "article is",
        "we " * 100 + "cookies",
    ):
        boilerplate_reason(line)


PARAGRAPH = "This is a paragraph of running text, which ends as such."


def test_repeated_lines_and_paragraphs():
    result = remove_repeated(
        page("Menu", PARAGRAPH, "menu!", "Page 1 of 9", "page 2 of 9", PARAGRAPH, "End")
    )
    assert result.document == page("Menu", PARAGRAPH, "Page 1 of 9", "End")
    assert [(removed.reason, removed.text) for removed in result.removed] == [
        ("duplicate_line", "menu!"),
        ("duplicate_line", "page 2 of 9"),
        ("duplicate_paragraph", PARAGRAPH),
    ]


def test_each_kind_by_itself():
    document = page("Menu", PARAGRAPH, "Menu", PARAGRAPH)
    assert remove_repeated(document, paragraphs=False).document == page(
        "Menu", PARAGRAPH, PARAGRAPH
    )
    assert remove_repeated(document, lines=False).document == page("Menu", PARAGRAPH, "Menu")


def test_paragraphs_must_be_the_same_altogether():
    first, second = (f"In {year} the mill had to be built again." for year in (1900, 1950))
    assert remove_repeated(page(first, second)).removed == ()
    assert len(remove_repeated(page(first, first)).removed) == 1


def test_lines_without_letters_stay():
    document = page("* * *", "One.", "* * *", "Two.", "1", "2")
    assert remove_repeated(document).document is document
