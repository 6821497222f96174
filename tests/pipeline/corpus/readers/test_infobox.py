"""Infoboxes: names and values of the subject, in order and in plain words, from wikitext and from
rendered pages.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloze.labs.enterprise_html.page import HtmlExtractor, content, parse
from cloze.pipeline.corpus.document import InfoboxField
from cloze.pipeline.corpus.readers.encyclopedia.infoboxes import REASON, kind_of
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from tests.pipeline.corpus.corpora import make, rows

PROSE = (
    "The town lies on the river, and it has a mill that the people of the valley built long ago."
)
NAMES = {6: ["file"], 14: ["category"], 10: ["template"], -2: ["media"]}
MARKUP = WikitextParser(NAMES, infoboxes=True)

TOWN = f"""{{{{Infobox settlement
| name               = Mill Town
| image_skyline      = Mill town.jpg <!-- the best that there is -->
| imagesize          = 250px
| image_caption      = The [[mill]] in 1812
| settlement_type    = [[Market town|Market]] town
| population_total   = {{{{formatnum:14570}}}}<ref>{{{{cite web|title=Census|url=http://x.org/a|b}}}}</ref>
| area_total_km2     = 12.5
| elevation_m        = -3
| leader_name        = ''Ann Miller''<br />(since 1990)<br/>Bo Smith
| twin_towns         = {{{{plainlist|
* [[Lyon]]
* [[Turin|Torino]]
}}}}
| motto              = {{{{lang|la|Mola|x=1}}}} & ''corn''
| founded            = {{{{start date|1209|5|1}}}}
| rate               = {{{{unknown rate|of|it}}}} a year
| pushpin_map        = Valley
| bgcolor            = #ffcc00
| website            = http://example.org/mill
| empty              =
| embedded           = {{{{Infobox mill|embed=yes|wheels=4|stones = {{{{nowrap|six, old}}}}}}}}
| label              = left
}}}}
'''Mill Town''' is a town. {PROSE}

{{{{Taxobox|name=Corn|regnum=[[Plantae]]}}}}
"""


def of(wikitext, markup=MARKUP):
    return [(field.name, field.value) for field in markup.extract(wikitext).infobox]


def test_a_box_in_wikitext():
    found = MARKUP.extract(TOWN)
    assert found.paragraphs == [f"Mill Town is a town. {PROSE}"]
    assert found.infobox == [
        InfoboxField("settlement", "name", "Mill Town"),
        InfoboxField("settlement", "settlement type", "Market town"),
        InfoboxField("settlement", "population total", "14,570"),
        InfoboxField("settlement", "area total km2", "12.5"),
        InfoboxField("settlement", "elevation m", "-3"),
        InfoboxField("settlement", "leader name", "Ann Miller (since 1990); Bo Smith"),
        InfoboxField("settlement", "twin towns", "Lyon; Torino"),
        InfoboxField("settlement", "motto", "Mola & corn"),
        InfoboxField("settlement", "founded", "1 May 1209"),
        InfoboxField("mill", "wheels", "4"),
        InfoboxField("mill", "stones", "six, old"),
        InfoboxField("taxobox", "name", "Corn"),
        InfoboxField("taxobox", "regnum", "Plantae"),
    ]
    assert found.dropped[REASON] == 1  # the rate, of which only a server knows what it says


def test_nothing_is_read_unless_it_is_wanted():
    found = WikitextParser(NAMES).extract(TOWN)
    assert (found.infobox, found.dropped[REASON]) == ([], 0)
    assert found.paragraphs == MARKUP.extract(TOWN).paragraphs


@pytest.mark.parametrize(
    ("wikitext", "fields"),
    [
        ("{{Infobox person|name=A|b}} x", [("name", "A")]),
        ("{{Infobox person|born=[[Ulm|]], {{nowrap|in [[Baden]]}}}}", [("born", "Ulm, in Baden")]),
        ("{{Infobox person|formula=a=b}}", [("formula", "a=b")]),
        (
            "{{Infobox person|born={{birth date|1879|3|14}} [[Ulm]]}}",
            [("born", "14 March 1879 Ulm")],
        ),
        ("{{Infobox person|mass=<math>\\frac{a}{b}</math>|name=A}}", [("name", "A")]),
        ("{{Infobox person|name=A|open=[[Ulm|lost}} The end.", [("name", "A"), ("open", "lost")]),
        ("{{Infobox person|name=A", []),
        ("{{Infobox}}", []),
        ("{{infobox_person\n|name=A}}", [("name", "A")]),
        ("{{Navbox|name=A}} {{quote box|text=B}} {{info|x=y}}", []),
        ("{{Infobox x|list=\n* one\n* two (2)\n** three}}", [("list", "one; two (2); three")]),
        (
            "{{Infobox x|place=north\nof the river<br>Army:<br />40,000 men\n\nNavy}}",
            [("place", "north of the river; Army: 40,000 men; Navy")],
        ),
        (
            "{{Infobox x|born={{birth date|1809|2|12|mf=y}}|died={{death date and "
            "age|1865|4|15|1809|2|12}}}}",
            [("born", "February 12, 1809"), ("died", "15 April 1865")],
        ),
        (
            "{{Infobox x|spouse={{ubl|{{marriage|A. B.|()=small|1842|1865}}|[[C]]}}}}",
            [("spouse", "A. B. (m. 1842–1865), C")],
        ),
        (
            "{{Infobox x|pop=145700|latNS=N|shown=n|code=#ffcc00|map_size=40|Map "
            "colour=red|logo=a b.svg}}",
            [("pop", "145700"), ("latNS", "N")],
        ),
        ("{{Infobox x|a={|\n! b\n|-\n| c\n|}|d=e}}", [("d", "e")]),
    ],
)
def test_arguments(wikitext, fields):
    assert of(wikitext) == fields


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("Infobox settlement", "settlement"),
        ("infobox", ""),
        ("Infobox_U.S. state", "u.s. state"),
        ("Info/Cidade", "cidade"),
        ("Ficha de futbolista", "futbolista"),
        ("Карточка игры", "игры"),
        ("Miasto infobox", "miasto"),
        ("Automatic taxobox", "automatic taxobox"),
        ("Navbox", None),
        ("bar box", None),
        ("Informatics", None),
    ],
)
def test_what_wikis_call_them(template, kind):
    assert kind_of(template) == kind


PAGE = f"""<body><div class="mw-parser-output">
<table class="infobox geography vcard" data-mw='{{"parts":[{{"template":{{"target":{{"wt":"Infobox settlement\\n","href":"./T"}}}}}}]}}'>
<tr><th colspan="2" class="infobox-above">Mill Town</th></tr>
<tr><td colspan="2" class="infobox-image"><img src="x.jpg"/><div>The mill in 1812</div></td></tr>
<tr><th scope="row">Country</th><td class="infobox-data"><span class="flagicon"><img/></span><a href="./C">Corn Land</a><sup class="reference">[1]</sup></td></tr>
<tr><th scope="row">Mayors</th><td>Ann
Miller<br/>Bo&#160;Smith <style>.x{{}}</style></td></tr>
<tr><th colspan="2">Population <span>(2011)</span></th></tr>
<tr><th> • Total</th><td>14,570</td></tr>
<tr><th> • Rank</th><td><div class="plainlist"><ul><li>3rd [in the valley]</li><li>9th</li></ul></div></td></tr>
<tr><th>Lowest</th><td>−3 m</td></tr>
<tr><td>Website:</td><td><a class="external free" href="http://x.org">http://x.org</a></td></tr>
<tr><td>one</td><td>two</td><td>three</td></tr>
</table>
<p>{PROSE}</p>
<table class="wikitable"><tr><th>Year</th><td>1812</td></tr></table></div></body>"""


def test_a_box_in_a_rendered_page():
    found = HtmlExtractor(infoboxes=True).extract(content(parse(PAGE)))
    assert found.paragraphs == [PROSE]
    assert found.infobox == [
        InfoboxField("settlement", "Country", "Corn Land"),
        InfoboxField("settlement", "Mayors", "Ann Miller; Bo Smith"),
        InfoboxField("settlement", "Population (2011), Total", "14,570"),
        InfoboxField("settlement", "Population (2011), Rank", "3rd [in the valley]; 9th"),
        InfoboxField("settlement", "Lowest", "−3 m"),
    ]
    assert HtmlExtractor().extract(content(parse(PAGE))).infobox == []


def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.xml"
    text = TOWN.replace("&", "&amp;").replace("<", "&lt;") + "\n\n".join(
        f"{PROSE} It is said {n} times. Write to ann@mill.example." for n in range(3)
    )
    pages = "".join(
        (
            f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>1</"
            f"id><text>{body}</text></revision></page>"
        )
        for number, (title, body) in enumerate(
            (("Mill Town", text.replace("Mola", "ann@mill.example")), ("Corn", PROSE * 3))
        )
    )
    path.write_text(f'<mediawiki xml:lang="en">{pages}</mediawiki>')
    return path


def test_they_land_beside_the_text_and_in_the_card(tmp_path):
    settings = {"minimum_words": 5, "dedup": "none", "mask_personal_data": ["email"]}
    source = f"wikipedia={dump(tmp_path)}"
    found = {
        row["title"]: row
        for row in rows(make(tmp_path / "kept", source, infobox="metadata", **settings))
    }
    fields = found["Mill Town"]["infobox"]
    assert fields[0] == {"box": "settlement", "name": "name", "value": "Mill Town"}
    assert [field["value"] for field in fields if field["name"] == "motto"] == ["<email> & corn"]
    assert found["Corn"]["infobox"] == []
    card = json.loads((tmp_path / "kept" / "card.json").read_text())
    assert card["infoboxes"] == {"documents": 1, "fields": len(fields)}
    assert card["dropped_lines"][REASON] == 1
    assert (
        "Infoboxes in 1 document, with 13 fields in all"
        in (tmp_path / "kept" / "card.html").read_text()
    )

    plain = {row["title"]: row for row in rows(make(tmp_path / "dropped", source, **settings))}
    assert {title: row["sentences"] for title, row in plain.items()} == {
        title: row["sentences"] for title, row in found.items()
    }
    assert [row["infobox"] for row in plain.values()] == [[], []]
