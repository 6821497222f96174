"""Pages in HTML become the paragraphs that their wikitext would become."""

from __future__ import annotations

import pytest

from cloze.labs.enterprise_html.page import HtmlExtractor, TooDeep, content, parse
from cloze.pipeline.corpus.document import HOLE_LIST, HOLE_TEMPLATE, PLACEHOLDER

MILL = "The mill was built in 1812 by the people of the town."
SECOND = "It has ground corn for the whole valley since then."


def extract(html, language="en", **how):
    return HtmlExtractor(language=language, **how).extract(content(parse(html)))


def paragraphs(html, language="en", **how):
    return extract(html, language, **how).paragraphs


def test_paragraphs_links_and_entities():
    html = (
        f'<body><section><p>The <b>mill</b> <a href="./Town">of the town</a> stands&nbsp;here &amp;'
        f"amp; there.</p>\n<p>{SECOND}</p></section></body>"
    )
    assert paragraphs(html) == ["The mill of the town stands here &amp; there.", SECOND]


@pytest.mark.parametrize(
    "gone",
    [
        '<sup class="mw-ref reference" typeof="mw:Extension/ref" id="r"><a href="#n"><span '
        'class="mw-reflink-text">[1]</span></a></sup>',
        '<sup class="noprint Inline-Template"><i>[<a href="./C">citation needed</a>]</i></sup>',
        '<span class="mw-editsection">[<a href="/edit">edit</a>]</span>',
        '<style data-mw-deduplicate="x">.a{color:red}</style>',
        '<link rel="mw:PageProp/Category" href="./Category:Mills"/>',
        '<span style="display:none">hidden</span>',
        '<span typeof="mw:File"><a href="./File:X.svg"><img src="x.svg" alt="An image"/></a></'
        "span>",
        '<a rel="mw:ExtLink" class="external autonumber" href="http://x.org">[2]</a>',
        "<del>was not</del>",
    ],
)
def test_what_shows_no_words_of_the_text_goes(gone):
    html = (
        f"<body><p>The mill was built in 1812{gone} by the people.{gone}</p>{gone}<p>{gone}({gone};"
        f" a name) {SECOND}{gone}</p></body>"
    )
    assert paragraphs(html) == ["The mill was built in 1812 by the people.", f"(a name) {SECOND}"]


def test_a_reference_between_two_sentences_leaves_a_blank():
    html = (
        '<p>The mill was built.<sup class="reference">[1]</sup>It has ground corn since then.</p>'
    )
    assert paragraphs(html) == ["The mill was built. It has ground corn since then."]


@pytest.mark.parametrize(
    "box",
    [
        '<table class="infobox vcard"><tr><th>Built</th><td>It was built in 1812.</td></tr></'
        "table>",
        '<div class="hatnote navigation-not-searchable" role="note">For the novel, see The Mill '
        "(novel). It is one.</div>",
        '<div class="navbox" role="navigation"><p>A box of links to mills that nobody reads.</p></'
        "div>",
        '<div class="thumb tright"><div class="thumbinner"><div class="thumbcaption">The mill as '
        "it is seen today.</div></div></div>",
        '<figure typeof="mw:File/Thumb"><img/><figcaption>The mill as it is seen today.</'
        "figcaption></figure>",
        '<div class="bandeau-container homonymie hatnote"><p>Pour les articles homonymes, voir '
        "Moulin.</p></div>",
        '<div id="toc" class="toc"><ul><li>1 History of the mill of the town.</li></ul></div>',
        '<table class="ambox"><tr><td>This article needs more sources for its verification.</td></'
        "tr></table>",
        '<ul class="gallery"><li>A picture of the mill in the winter.</li></ul>',
        '<div class="mw-highlight"><pre>def grind(): return the corn.</pre></div>',
        '<p class="mw-empty-elt"></p>',
        "<nav><p>Home and other places of this site.</p></nav><footer><p>It was last edited on a "
        "day.</p></footer>",
    ],
)
def test_boxes_around_the_text_go(box):
    assert paragraphs(f"<body>{box}<p>{MILL}</p>{box}<p>{SECOND}</p>{box}</body>") == [MILL, SECOND]


def test_sections_that_articles_append_go_with_all_below_them():
    html = (
        f"<body><p>{MILL}</p><h2>History<span class='mw-editsection'>[edit]</span></"
        f"h2><p>{SECOND}</p>"
        f'<div class="mw-heading mw-heading2"><h2 id="See_also">See also</h2></div><p>{MILL}</'
        f"p><h3>More</h3><p>{MILL}</p><h2>Today</h2><p>{SECOND}</p></body>"
    )
    found = extract(html, dropped_sections=frozenset({"see also"}))
    assert found.paragraphs == [MILL, SECOND, SECOND]
    assert dict(found.dropped) == {"heading": 4, "section": 2}
    assert paragraphs(html, kept_sections=frozenset({"", "today"})) == [MILL, SECOND]


def test_a_list_is_kept_whole_or_dropped_whole():
    inventory = (
        "<ul><li>1812: the mill</li><li>1820: the dam</li><li>It was burnt down in 1830.</li></ul>"
    )
    found = extract(f"<body><p>{MILL}</p>{inventory}<p>{SECOND}</p></body>")
    assert (found.paragraphs, dict(found.dropped)) == ([MILL, SECOND], {"list_item": 3})
    text = (
        "<ul><li>The dam was built in 1820.<ul><li>It was made of stone.</li></ul></li><li><p>The "
        "wheel is of wood.</p></li></ul>"
    )
    assert paragraphs(f"<p>{MILL}</p>{text}") == [
        MILL,
        "The dam was built in 1820.",
        "It was made of stone.",
        "The wheel is of wood.",
    ]


def test_a_list_joins_its_lead_in_and_takes_it_along():
    lead = "<p>The mill has three parts:</p>"
    assert paragraphs(
        f"{lead}<style></style><ul><li>the wheel;</li><li>the stones; and</li><li>the house.</li></"
        f"ul>"
    ) == ["The mill has three parts: the wheel; the stones; and the house."]
    assert paragraphs(f"<p>{MILL} Its parts are:</p><ul><li>wheel</li><li>stones</li></ul>") == [
        f"{MILL} Its parts are: {HOLE_LIST}"
    ]
    assert paragraphs(
        f"<p>{MILL} These are the parts:</p><table><tr><td>wheel</td></tr></table>"
    ) == [f"{MILL} These are the parts: {HOLE_LIST}"]


def test_definitions():
    html = (
        "<dl><dt>Wheel</dt><dd>It is driven by the water of the river.</dd><dt>Stones</dt><dd>They "
        "grind the corn to flour.</dd></dl>"
    )
    assert paragraphs(html) == [
        "Wheel: It is driven by the water of the river.",
        "Stones: They grind the corn to flour.",
    ]


TABLE = """<table class="wikitable"><caption>Corn of the mill</caption><tbody><tr><th>Year</th><th>Corn<sup class="reference">[1]</sup></th><th>Flour | meal</th></tr>
<tr><td rowspan="2">1812</td><td>5,000</td><td>{{4}}</td></tr><tr><td colspan="2">none</td></tr></tbody></table>"""


def test_tables():
    assert paragraphs(f"<p>{MILL}</p>{TABLE}") == [MILL]


MATH = (
    '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;'
    '"><math alttext="{{\\displaystyle {0}}}"><semantics>'
    '<mi>{0}</mi><annotation encoding="application/x-tex">{{\\displaystyle {0}}}</annotation></'
    'semantics></math></span><img class="mwe-math-fallback-image-inline" alt="x"/></span>'
)


def test_formulas():
    hard = r"\frac{a}{b}"
    html = (
        f"<p>The area is {MATH.format('a + b')} here. The share is {MATH.format(hard)} of it.</p>"
    )
    assert paragraphs(html) == [f"The area is a + b here. The share is {PLACEHOLDER} of it."]
    assert paragraphs(html, formulas="latex") == [
        rf"The area is a + b here. The share is ${hard}$ of it."
    ]
    parsoid = r"""<p>It is <span typeof="mw:Extension/math" data-mw='{"name":"math","body":{"extsrc":"\\frac{a}{b}"}}'><img alt="b"/></span> of it.</p>"""
    assert paragraphs(parsoid, formulas="latex") == [rf"It is ${hard}$ of it."]


def test_powers_and_fractions():
    html = (
        "<p>It has 10<sup>−7</sup> of 5 km<sup>2</sup> and <sup>14</sup>C, "
        '3<span class="frac"><span class="sr-only">+</span><span class="num">1</span>&frasl;<span '
        'class="den">2</span></span> feet, '
        '<span class="sfrac"><span class="num">2</span><span class="sr-only">/</span><span '
        'class="den">3</span></span> of all.</p>'
    )
    assert paragraphs(html) == ["It has 10^−7 of 5 km² and 14C, 3 1/2 feet, 2/3 of all."]


def test_pronunciations_go_with_their_brackets():
    spoken = '<span class="IPA" lang="en-fonipa">/mɪl/</span>'
    assert paragraphs(f"<p>The Mill ({spoken}; born 1812) is a house.</p>") == [
        "The Mill (born 1812) is a house."
    ]
    assert paragraphs(f"<p>The name is pronounced {spoken} by all.</p>") == [
        f"The name is pronounced {HOLE_TEMPLATE} by all."
    ]
    parts = """<span typeof="mw:Transclusion" about="#t1" data-mw='{"parts":[{"template":{"target":{"wt":"IPA-fr","href":"./T"},"params":{}}}]}'>French pronunciation: </span><i about="#t1">[mulɛ̃]</i>"""
    assert paragraphs(f"<p>The Mill ({parts}) is a house of the town.</p>") == [
        "The Mill is a house of the town."
    ]


def test_a_program_inside_a_sentence_is_a_hole():
    html = (
        '<p>One types <span class="mw-highlight">grind &gt; corn</span> for it. It grinds '
        "<code>corn</code>.</p>"
    )
    assert paragraphs(html) == [f"One types {HOLE_TEMPLATE} for it. It grinds corn."]


def test_the_text_of_other_sites():
    html = (
        "<html><head><title>T</title></head><body><header><p>The site of the mill and its town.</"
        "p></header>"
        f"<main><h1>The mill</h1><p>{MILL}</p><aside><p>It is an aside about the mill.</p></"
        f"aside></main><p>It stands outside of all.</p></body></html>"
    )
    assert paragraphs(html) == [MILL]


def test_a_skin_is_no_text():
    html = (
        f'<body><p>It is the head of the site.</p><div id="mw-content-text"><div '
        f'class="mw-content-ltr mw-parser-output"><p>{MILL}</p></div></div><p>It is the foot.</p></'
        f"body>"
    )
    assert paragraphs(html) == [MILL]


def test_remarks_show_nothing():
    assert paragraphs(
        f"<p><!-- a > b -->The mill<!-- <p> --> was built.<?php x ?> {SECOND}</p>"
    ) == [f"The mill was built. {SECOND}"]


def test_any_depth_and_any_bytes():
    for depth, told in ((1_000, [SECOND, MILL]), (20_000, TooDeep)):
        deep = f"<body><p>{SECOND}</p>{'<div>' * depth}<p>{MILL}</p>{'</div>' * depth}</body>"
        if told is TooDeep:
            with pytest.raises(TooDeep):
                parse(deep)
        else:
            assert paragraphs(deep) == told
    assert paragraphs(f"<p>{MILL}\0 <b>It</b> stands still.<p>{SECOND}</table></p></p></div>") == [
        f"{MILL} It stands still.",
        SECOND,
    ]
    assert paragraphs("<p>") == []


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        ("farmer<sup>1</sup> saw", "farmer saw"),
        ("farmer<sup><a href='#fn1'>1</a></sup> saw", "farmer saw"),
        ("<b>farmer</b><sup>*</sup> saw", "farmer saw"),
        ("farmer<sup>[note 3]</sup> saw", "farmer saw"),
        ("farmer of 1905<sup id=r><a href='#n'>2</a></sup> saw", "farmer of 1905 saw"),
        ("farmer saw 12 km<sup>2</sup> and", "farmer saw 12 km² and"),
        ("farmer saw 10<sup>3</sup> and", "farmer saw 10^3 and"),
        ("farmer saw the 1<sup>st</sup> and", "farmer saw the 1st and"),
    ],
)
def test_footnote_marks_of_other_sites_go(mark, shown):
    html = f"<body><main><p>The {mark} it stand by the brook. {MILL}</p></main></body>"
    assert paragraphs(html) == [f"The {shown} it stand by the brook. {MILL}"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("10 m<sup>2</sup>", "10 m²"),
        ("10 m<sub>2</sub>", "10 m2"),
        ("10 <sup>2</sup>", "10 2"),
        ("10 m<sup>2<del>3</del></sup>", "10 m2"),
        ("10 m<sup>2<span class='mw-editsection'>gone</span></sup>", "10 m2"),
        ("f(x)<sup>a<sub>1</sub></sup>", "f(x)^a1"),
        ("f<sup><i>n</i></sup>", "f^n"),
        ("f<sup>a<br>n</sup>", "fan"),
        (f"m<sup>{'x' * 250}</sup>", f"m{'x' * 250}"),
    ],
)
def test_what_raised_text_becomes_if_something_is_in_it(written, shown):
    end = " is the area of the mill and of the field behind it."
    assert paragraphs(f"<p>It was said that {written}{end}</p>") == [
        f"It was said that {shown}{end}"
    ]


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("One<p>two</p>three", ["One", "two", "three"]),
        ("One<h2>two</h2>three", ["One", "two", "three"]),
        ("One<ul><li>two</li><li>three</li></ul>", ["One", "two", "three"]),
        ("One<br>two<br><br>three", ["One", "two", "three"]),
        ("One <b>two</b>  three", ["One two three"]),
        ("<p> </p>", []),
    ],
)
def test_a_cell_is_lines(cell, lines):
    assert HtmlExtractor().lines(parse(f"<div>{cell}</div>")) == lines
