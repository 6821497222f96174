"""A page shows what MediaWiki shows: tags of inclusion and translation, scripts of a language,
raised text, links; no number is glued to another.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.labs.enterprise_html.page import HtmlExtractor, parse
from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

MARKUP = WikitextParser({6: ["file"], 14: ["category"]})
CHINESE = WikitextParser({6: ["file"], 14: ["category"]}, language="zh")


def one(text, markup=MARKUP):
    paragraphs = markup.extract(text).paragraphs
    assert len(paragraphs) == 1, paragraphs
    return paragraphs[0]


@pytest.mark.parametrize(
    "inner",
    [
        "<onlyinclude>1,234</onlyinclude>",
        "<noinclude>1,234</noinclude>",
        "<NOINCLUDE >1,234</NOINCLUDE>",
        "<includeonly>5</includeonly>1,234",
        "<section begin=people />1,234<section end=people />",
        "<translate><!--T:1-->1,234</translate>",
        "<translate><tvar name=1>1,234</tvar></translate>",
        "<translate><tvar|n>1,234</></translate>",
        "<languages/>1,234",
        "1,<nowiki/>234",
        "<nowiki >1,234</nowiki >",
        "<NOWIKI>1,234</NOWIKI>",
        "1,234<ref group=note follow=a>Old.</ref>",
        "1,234<ref name=a\n/>",
    ],
)
def test_tags_of_inclusion_break_no_sentence(inner):
    assert one(f"The town has {inner} people by the river.") == (
        "The town has 1,234 people by the river."
    )


def test_a_tag_of_inclusion_inside_a_word():
    assert one("The <onlyinclude>Mill</onlyinclude>er is old now.") == "The Miller is old now."


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        ("-{zh-hans:软件;zh-hant:軟體}-", "软件"),
        ("-{zh-hans:软件;zh-hant:軟體;}-", "软件"),
        ("-{ zh-cn : 软件 ; zh-tw : 軟體 }-", "软件"),
        ("-{H|zh-cn:软件;zh-tw:軟體}-", ""),
        ("-{H|zh-cn:软件;zh-tw:軟體; ;}-", ""),
        ("-{T|zh-cn:软件;zh-tw:軟體}-", ""),
        ("-{T|软件}-", ""),
        ("-{T;H|zh-cn:软件;zh-tw:軟體}-", ""),
        ("-{ h |zh-cn:软件}-", ""),
        ("-{-|zh-cn:软件;zh-tw:軟體}-", ""),
        ("-{A|zh-cn:软件;zh-tw:軟體}-", "软件"),
        ("-{A|電=>zh-cn:软件;電=>zh-tw:軟體}-", "软件"),
        ("-{R|软件:2}-", "软件:2"),
        ("-{软件}-", "软件"),
        ("-{}-", ""),
        ("-{zh-hans;zh-hant|软件}-", "软件"),
        ("-{zh:Hi -{zh-cn:软;zh-sg:件}-;zh-tw:軟}-", "Hi 软"),
        ("-{R|a -{zh:软;zh-tw:軟}- b}-", "a 软 b"),
        ("-{zh-cn:a&amp;b;zh-tw:c}-", "a&b"),
        ("-{zh-cn:[[水车|软件]];zh-tw:軟體}-", "软件"),
        ("-{D|zh-cn:软件;zh-tw:軟體}-", HOLE_TEMPLATE),
        ("-{N|zh-cn}-", HOLE_TEMPLATE),
    ],
)
def test_words_in_several_scripts(markup, shown):
    for parser in (MARKUP, CHINESE):
        assert (
            one(f"他说这是{markup}就是一个很好的产品。", parser)
            == f"他说这是{shown}就是一个很好的产品。"
        )


def test_flags_inside_an_argument_end_no_template():
    text = one("他说{{lang|zh|-{R|软件}-}}是一个很好的产品。", CHINESE)
    assert text == "他说软件是一个很好的产品。"


SCRIPTS = [
    ("10<sup>&minus;3</sup>", "10^−3"),
    ("10<sup>&#8722;3</sup>", "10^−3"),
    ("10<sup>−3.5</sup>", "10^−3.5"),
    ("2<sup>{{frac|1|2}}</sup>", "2^(1/2)"),
    ("10<sup>''n''</sup>", "10^n"),
    ("10<sup>n</sup>", "10^n"),
    ("10<sup>n−1</sup>", "10^(n−1)"),
    ("10<sup>10<sup>100</sup></sup>", "10^(10^100)"),
    ("x<sup>4</sup>", "x^4"),
    ("10<sup>2</sup>3", "10^(2)3"),
    ("''x''<sup>4</sup>", "x^4"),
    ("'''x'''<sup>2</sup>", "x²"),
    ("''y'' = 2''n''<sub>1</sub><sup>2</sup>", "y = 2n1^2"),
    ("'''''n'''''<sup>−1</sup>", "n^−1"),
    ("5 km<sup>2</sup>", "5 km²"),
    ("SO<sub>4</sub><sup>2−</sup>", "SO4^2−"),
    ("Ca<sup>2+</sup>", "Ca2+"),
    ("H<sub>2</sub>O", "H2O"),
    ("101<sub>2</sub>", "101_2"),
    ("log<sub>2</sub>8", "log_(2)8"),
    ("19<sup>th</sup>", "19th"),
    ("XIX<sup>e</sup>", "XIXe"),
    ("M<sup>me</sup>", "Mme"),
    ("2<SUP CLASS=a>3</SUP>", "2^3"),
    ("10<sup>{{unknown|a|b}}</sup>", f"10{HOLE_TEMPLATE}"),
]


@pytest.mark.parametrize(("markup", "shown"), SCRIPTS)
def test_raised_and_lowered_text(markup, shown):
    assert one(f"It is {markup} of them all.") == f"It is {shown} of them all."


@pytest.mark.parametrize(
    ("markup", "shown"), [pair for pair in SCRIPTS if "{" not in pair[0] and "''" not in pair[0]]
)
def test_the_rendered_page_says_the_same(markup, shown):
    page = HtmlExtractor().extract(parse(f"<p>It is {markup} of them all.</p>"))
    assert page.paragraphs == [f"It is {shown} of them all."]


@given(
    st.from_regex(r"[0-9]{1,4}", fullmatch=True), st.from_regex("[−+-]?[0-9]{1,3}", fullmatch=True)
)
def test_no_raised_number_is_glued(base, exponent):
    for tag in ("sup", "sub"):
        text = one(f"It is {base}<{tag}>{exponent}</{tag}> of them all.")
        assert base in re.findall(r"\d+", text)
        assert f"{base}{exponent}" not in text or not exponent[0].isdigit()


@pytest.mark.parametrize(
    ("markup", "shown"),
    [
        ("[[page#section]]", "page#section"),
        ("[[#Top]]", "#Top"),
        ("[[page#section|label]]", "label"),
        ("[[Bu&#103;462]]", "Bug462"),
        ("[[Lista d''e paise]]", "Lista d''e paise"),
        ("[HttP://x.org the site]", "the site"),
        ("[gopher://x.org the site]", "the site"),
        ("[http://[2404:130::2]/x the site]", "the site"),
        ("[news:a.b the site]", "the site"),
        ("l{{'}}''[[X|Anhalter Bahnhof]]''", "l'Anhalter Bahnhof"),
        ("where x<y and a>b", "where x<y and a>b"),
        ("so if n<k or k>m", "so if n<k or k>m"),
        ("<a href='x'>the</a> <b>old</b> <I class=x>mill</I>", "the old mill"),
        ("AT&T &notit; &copy;", "AT&T &notit; ©"),
    ],
)
def test_links_and_entities(markup, shown):
    assert one(f"It is {markup} that they know.") == f"It is {shown} that they know."


def test_a_blank_label_shows_nothing():
    assert one("The [[lake| ]] mill stands here.") == "The mill stands here."
