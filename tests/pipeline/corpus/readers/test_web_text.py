"""The main text of crawled pages: loose text, footnote marks and powers, pages that are hard to read."""

from __future__ import annotations

import re

import pytest

from cloze.pipeline.corpus.readers.raised import without_marks, without_plain_marks
from cloze.pipeline.corpus.readers.web_text import main_text
from tests.growth import is_linear

MILL = (
    "The mill stands by the brook at the end of the town, and it has stood there for some three "
    "hundred years."
)
INN = (
    "Nobody lives there today, but the town shows it to whoever asks for the key at the inn near "
    "the bridge."
)
ONE = "Loose one was written by a careful editor of the paper."
TWO = "Loose two comes after the first paragraph, and stays."
THREE = "Loose three <b>with bold</b> words and <a href=/x>a link</a> in it."
LAYOUTS = {
    "div": f"<div><p>{MILL}</p>{ONE}<p>{INN}</p>{TWO}</div>",
    "article": f"<article>{ONE}<p>{MILL}</p>{TWO}<p>{INN}</p>{THREE}</article>",
    "body": f"{ONE}<p>{MILL}</p>{TWO}<p>{INN}</p>{THREE}",
    "first br": f"<article><p>{MILL}</p>{ONE}<br>{TWO}<br><br>{INN}<br>{THREE}<p>{INN}</p></article>",
    "br alone": f"<article>{ONE}<br>{TWO}<br><br>{MILL}<br>{INN}</article>",
    "span": f"<div><span>{ONE}</span><p>{MILL}</p><b>{TWO}</b> And more.<p>{INN}</p></div>",
    "after heading": f"<div><h2>A</h2>{ONE}<p>{MILL}</p><h2>B</h2>{TWO}<br>{THREE}<p>{INN}</p></div>",
    "after list": f"<article><p>{MILL}</p><ul><li>an item</li></ul>{ONE}<p>{INN}</p></article>",
    "comment": f"<div><p>{MILL}</p><!-- x -->{ONE}<!-- y --><p>{INN}</p></div>",
    "cell": f"<table><tr><td>{ONE}<br>{MILL}<p>{INN}</p>{TWO}</td></tr></table>",
    "quotation": f"<article><p>{MILL}</p><blockquote>{ONE}<p>{TWO}</p>{THREE}</blockquote></article>",
}


def text_of(body: str) -> str:
    page = main_text(
        f"<html><head><title>T</title></head><body>{body}</body></html>", "trafilatura"
    )
    assert not isinstance(page, str)
    return "\n".join(page[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loose_text_between_paragraphs_is_kept_in_order(layout):
    body = LAYOUTS[layout]
    text = text_of(body)
    plain = [re.sub("<.*?>", "", each) for each in (ONE, TWO, THREE, MILL, INN)]
    positions = [text.find(each) for each in plain if each in re.sub("<.*?>", "", body)]
    assert min(positions) >= 0
    words = re.sub("<.*?>", " ", body.replace("<li>an item</li>", "")).split()
    found = [word for word in words if word not in ("A", "B", "x", "y", "--", "<!--", "-->")]
    assert text.replace("an item", "").split() == found


def test_loose_links_are_no_paragraph():
    menu = "<a href=/a>Share</a> <a href=/b>Print</a>"
    text = text_of(f"<article><p>{MILL}</p>{menu}<p>{INN}</p>{menu}</article>")
    assert "Share" not in text


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("the farmer<sup>1</sup> said", "the farmer said"),
        ("the farmer<sup><a href='#fn1'>1</a></sup> said", "the farmer said"),
        ("at <b>XIII</b>.<sup id=r class=reference><a href=\"#n\"><span>[</span>1<span>]</span></a>"
         "</sup> It", "at <b>XIII</b>. It"),
        ("in 1905<sup><a href=#n>2</a></sup> he", "in 1905 he"),
        ("said.<sup>[note 3]</sup> It", "said. It"),
        ("said<sup>[citation needed]</sup> it", "said it"),
        ("said<SUP>*</SUP> it", "said it"),
        ("said <a class=x href='/p#fn2'>[2]</a> it", "said  it"),
        ("10<sup>3</sup> tons", "10^3 tons"),
        ("10<sup>&minus;7</sup> m", "10^−7 m"),
        ("<i>10</i><sup>n</sup>", "<i>10</i>^n"),
        ("5 km<sup>2</sup> and 3 m<sup>3</sup>", "5 km² and 3 m³"),
        ("12 square metres<sup>2</sup>", "12 square metres²"),
        ("on the 1<sup>st</sup> of", "on the 1<sup>st</sup> of"),
        ("f(x)<sup>2</sup> and <sup>14</sup>C", "f(x)^2 and <sup>14</sup>C"),
        ("Mme<sup>lle</sup>", "Mme<sup>lle</sup>"),
        ("see <a href='#top'>the top</a>", "see <a href='#top'>the top</a>"),
        ("array[1] = 2", "array[1] = 2"),
        ("<support>a</support>", "<support>a</support>"),
    ],
)  # fmt: skip
def test_marks_go_and_numbers_stay(html, shown):
    assert without_marks(html) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Louis XIII.[1] He ruled[2][3] long,[4] and died.[12]",
         "Louis XIII. He ruled long, and died."),
        ("array[1] = 2 and list[0](x), m[3][4]", "array[1] = 2 and list[0](x), m[3][4]"),
        ("He said [1] it", "He said [1] it"),
    ],
)  # fmt: skip
def test_marks_in_plain_text(line, shown):
    assert without_plain_marks(line) == shown


COUNT = 50_000
HARD = {
    "end tags of other elements": lambda count: "x</a><b>" * count,
    "unclosed formatting": lambda count: "".join(f"<b id={n}>x " for n in range(count)),
    "options": lambda count: "<select>" + "<option>x" * count,
    "attributes": lambda count: "<p " + " ".join(f"a{n}=1" for n in range(count)) + ">x",
    "attributes with angles": (
        lambda count: "<p " + " ".join(f"<a{n}=1" for n in range(count)) + ">x"
    ),
    "raised": lambda count: "<sup>" * count,
    "links": lambda count: "<a href='#" * count,
    "bracketed links": lambda count: "<a href='#'>[" * count,
}


@pytest.mark.parametrize("kind", HARD)
def test_no_page_takes_quadratic_work(kind):
    """Parsers take 5 to 40 s of CPU for some of these pages as they are, and under 1 s as read."""
    assert is_linear(
        lambda count: main_text(f"<html><body><p>{MILL} {INN}</p>{HARD[kind](count)}", "fast"),
        COUNT,
    )


def test_a_deep_page_is_refused_by_the_fast_extractor():
    assert main_text(f"<p>{MILL}</p>" + "<code>x</a>" * 2000, "fast") == "too_deep"
    assert main_text(f"<p>{MILL}</p>" + "<div><code>x</div>" * 2000, "fast") != "too_deep"


@pytest.mark.parametrize(
    "sentence",
    [
        "He said that the mill <a href=/w>would be opened to the people of the town</a> in May {}.",
        "据报道第{}座磨坊<a href=/w>今年五月将向全镇居民开放参观</a>，届时将有许多人前来观看。",
    ],
)
def test_links_inside_sentences_stay_where_menus_go(sentence):
    """trafilatura's precision mode, which recognizes the menus, removes the links, too."""
    menu = "<ul>" + "".join(f"<li><a href=/{n}>Other news number {n}</a></li>" for n in range(9))
    paragraphs = "".join(f"<p>{sentence.format(n)} {sentence.format(n + 50)}</p>" for n in range(9))
    text = text_of(f"<article>{paragraphs}{menu}</ul>{paragraphs}</article>")
    for number in range(9):
        assert re.sub("<.*?>", "", sentence.format(number)) in text


def test_menus_between_sentences_go():
    teaser = "<p><a href=/{0}><strong>FANS VOTE FOR THE TOWN'S MILL {0}</strong></a></p>"
    told = [f"<p>{MILL} In the year 190{n} it ground {n} tons of corn.</p>" for n in range(8)]
    body = "".join(f"{each}{teaser.format(n)}" for n, each in enumerate(told))
    text = text_of(f"<article>{body}</article>")
    assert "FANS VOTE" not in text
    assert text.count(MILL) == 8
