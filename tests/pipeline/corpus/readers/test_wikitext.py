"""Wikitext to text: by example, on the sample, and on markup that no one would write."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import HOLE_TEMPLATE, PLACEHOLDER
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from tests.growth import is_linear
from tests.pipeline.corpus.reading import options_of

MARKUP = WikitextParser(
    {6: ["file"], 14: ["category"], 10: ["template"], -2: ["media"]},
    dropped_sections=frozenset({"see also", "references"}),
)


def one(text):
    paragraphs = MARKUP.extract(text).paragraphs
    assert len(paragraphs) == 1, paragraphs
    return paragraphs[0]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "'''Bold''' and ''italic'' and '''''both''''' are gone.",
            "Bold and italic and both are gone.",
        ),
        ("It was ''Smith's'' dog's [[house (building)|house]]s.", "It was Smith's dog's houses."),
        (
            "See [[Paris]] and [[Lyon (city)|]] and [[#Top|this]] here.",
            "See Paris and Lyon and this here.",
        ),
        (
            "A [[File:x.jpg|thumb|200px|The [[Seine]] at [[Paris|P]]]]city is here.",
            "A city is here.",
        ),
        ("It is a city.[[Category:Cities]][[fr:Paris]][[zh-yue:X]]", "It is a city."),
        ("See [[:Category:Cities]] and [[wikt:word]] now.", "See Category:Cities and word now."),
        (
            "It is {{convert|12|km|mi|abbr=on}} long and {{convert|5|to|10|ft|m}} wide.",
            "It is 12 km long and 5 to 10 ft wide.",
        ),
        (
            "He is {{convert|6|ft|2|in|m}} or {{cvt|105|sqmi}} big.",
            "He is 6 ft 2 in or 105 sq mi big.",
        ),
        (
            "The {{lang|fr|Île de la Cité}} ({{lang-fr|île}}) is old.",
            "The Île de la Cité (French: île) is old.",
        ),
        ("He (; {{IPAc-en|x}}; born {{circa|1500}}) lived here.", "He (born c. 1500) lived here."),
        (
            "{{As of|2016|5}}, it had {{nowrap|3 people}} in {{frac|1|2}} house.",
            "As of May 2016, it had 3 people in 1/2 house.",
        ),
        ("A {{infobox|a={{b|[[c|d]]}}|e={{{f|g}}}}} town it is now.", "A town it is now."),
        (
            "{| class=x\n|-\n| a || {{b}}\n{| \n| nested\n|}\n|}\nThe table is gone.",
            "The table is gone.",
        ),
        (
            'It is so.<ref name="a/b">Not {{cite|x}}</ref> It is<ref name=b /> here.',
            "It is so. It is here.",
        ),
        (
            'It is<ref name="a" /> so. It is<ref>Old.</ref> here.<ref name="b"/>',
            "It is so. It is here.",
        ),
        ("It is<ref>One <ref>two</ref> so. It is<ref >Old.</REF> here.", "It is so. It is here."),
        ("One<!-- no\n no --> two three four.", "One two three four."),
        ("Write <nowiki>[[x]] or {{y}}</nowiki> to link it.", "Write [[x]] or {{y}} to link it."),
        ("Five &amp; six&nbsp;are &lt; seven&mdash;yes.", "Five & six are < seven—yes."),
        ("See [http://example.org/a b the site] or [https://x.y] now.", "See b the site or now."),
        ("A<br />b <span style='x'>c</span> <small>d e</small>.", "A b c d e."),
        (
            "It is an {{unknown|template|here}} and __NOTOC__ a switch.",
            f"It is an {HOLE_TEMPLATE} and a switch.",
        ),
        ("Take <math>x + y</math> of them for it.", "Take x + y of them for it."),
        ("Take <math>\\frac{1}{2}</math> of them for it.", f"Take {PLACEHOLDER} of them for it."),
        (
            "This has an unclosed {{template and goes on.",
            "This has an unclosed template and goes on.",
        ),
        ("This has an unclosed [[link and goes on.", "This has an unclosed link and goes on."),
        ("This has a closed]] link and }} goes on.", "This has a closed link and goes on."),
        ("{{quote|To be or not to be, it is.}}", "To be or not to be, it is."),
    ],
)
def test_inline(wikitext, text):
    assert one(wikitext) == text


def test_sections_lists_and_headings():
    found = MARKUP.extract(
        "Lead text is here.\n== Life ==\nHe lived a life\nand died of it.\n\n* one\n* This item is "
        "a sentence.\n\nIt is so.\n* This item is one, too.\n"
        "== See also ==\n* [[X]]\n=== More ===\nIt is not wanted here.\n== Later ==\n: It goes on "
        "there.\nA remnant\n"
    )
    assert found.paragraphs == [
        "Lead text is here.",
        "He lived a life and died of it.",
        "It is so.",
        "This item is one, too.",
        "It goes on there.",
    ]
    assert found.dropped == {"heading": 4, "section": 2, "list_item": 2, "fragment": 1}


RESIDUE = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||^\||<ref|thumb\||\( ?;|\(\)")


def test_no_residue_in_the_sample(samples):
    from cloze.pipeline.corpus.readers.base import ReadCounters
    from cloze.pipeline.corpus.readers.encyclopedia.dump import reader

    file_slice = reader.slices(str(samples / "wikipedia"))[0]
    documents = list(
        reader.read(
            file_slice,
            options_of(reader, dropped_sections=["see also"]),
            ReadCounters(slice=file_slice),
        )
    )
    assert len(documents) >= 40
    assert [p for d in documents for p in d.paragraphs if RESIDUE.search(p)] == []


PIECES = st.sampled_from(
    ["{{", "}}", "[[", "]]", "{|", "\n{|", "\n|}", "|", "\n", "\n\n", "word", " ", "File:", "=",
        "==", "'''", "<ref>", "</ref>",
     "<nowiki>", "</nowiki>", "<!--", "-->", "*", "{{{", "}}}", "lang|fr|", "convert|5|", ". ",
     "Is it so?", "<math>", "</math>", "http://a"]
)  # fmt: skip


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "The mill <!-- or <!--> stands here. --> by the Lee.",
            "The mill stands here. --> by the Lee.",
        ),
        ("The mill<REF>Old book.</Ref> stands by the Lee.", "The mill stands by the Lee."),
        (
            "In İzmir the mill<ref>Old.</ref> stands <REF>no</ref> by the Lee.",
            "In İzmir the mill stands by the Lee.",
        ),
        (
            "The [[mill||old mill]] by the [[ river ]] and [[lake|  ]][[sea#north]] [[:file:x]].",
            "The |old mill by the river and sea#north file:x.",
        ),
        ("The mill {|} stands by the Lee.", "The mill } stands by the Lee."),
        (
            "It is 5 m<sup>2</sup><sup>3</sup> and 10<sup>−7</sup> by the <sup>1</sup> river.",
            "It is 5 m²3 and 10^−7 by the 1 river.",
        ),
        (
            "The mill ( old ) stands , as [ they ] say , here .",
            "The mill (old) stands, as [they] say, here.",
        ),
    ],
)
def test_corners_of_the_grammar(wikitext, text):
    assert one(wikitext) == text


@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_markup_gives_text_without_brackets(text):
    for paragraph in MARKUP.extract(text.replace("<nowiki>", "")).paragraphs:
        assert not re.search(r"\{\{|\}\}|\[\[|\]\]", paragraph)
        assert "\n" not in paragraph


@pytest.mark.parametrize(
    "piece",
    [
        "[[",
        "{{",
        "\n{|",
        "}}",
        "<ref>",
        "<nowiki>",
        "(",
        "; ",
        "= ",
        "{{{a",
        "<!--",
        "[http://a ",
        "''",
        "|a=b\n",
    ],
)
def test_time_is_linear_in_hostile_markup(piece):
    assert is_linear(lambda size: MARKUP.extract("(" + piece * (size // len(piece))), 100_000)


@pytest.mark.parametrize("prefix", ["Выява", "Рәсем", "Picha", "Archivu", "Tập_tin"])
@pytest.mark.parametrize(
    "rest",
    [
        "a b.JPG|thumb|200px|злева|The [[tower]] of the town.",
        "x.svg",
        "Tower of stone|miniatur|120x80px|A tower.",
    ],
)
def test_file_links_go_under_any_name_of_their_namespace(prefix, rest):
    text = f"[[{prefix}:{rest}]] The tower is old and grey."
    assert WikitextParser({6: ["file"]}).extract(text).paragraphs == ["The tower is old and grey."]


def test_links_that_only_look_like_files_stay():
    text = (
        "See [[Star Trek: First Contact|the film]], [[:File:x.png|this file]] and [[Node.js]] of "
        "it."
    )
    assert WikitextParser({6: ["file"]}).extract(text).paragraphs == [
        "See the film, this file and Node.js of it."
    ]
