"""Sections and lists are judged by their place and by all of their lines; what goes is named."""

from __future__ import annotations

import pytest

from cloze.labs.enterprise_html.page import HtmlExtractor, parse
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN
from cloze.pipeline.corpus.readers.encyclopedia.dump import WikipediaOptions
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import APPENDED_SECTIONS
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

NAMES = {6: ["file"], 14: ["category"]}
PROSE = {
    "en": "The town has had poets since the mill was built. They wrote of the river and its people.",
    "uk": "У місті з давніх часів жили поети. Вони писали про річку та про її людей і млини.",
    "sv": "I staden har det alltid funnits diktare. De skrev om floden och om dess folk och kvarnar.",
    "de": "In der Stadt lebten schon immer Dichter. Sie schrieben über den Fluss und seine Mühlen.",
    "fr": "La ville a toujours eu des poètes. Ils ont écrit sur la rivière et sur ses moulins.",
    "ru": "В городе издавна жили поэты. Они писали о реке и о людях, которые жили на её берегах.",
}
BOOKS = (
    "* Roe, Ann. ''The Mill on the River''. Oxford University Press, 1996. ISBN 978-0-19-1.\n"
    "* Doe, John. ''The Wheel of the Mill''. Cambridge University Press, 1990.\n"
)


def extract(text, language="en", **options):
    rules = WikipediaOptions(**options).rules(language)
    return WikitextParser(NAMES, **rules).extract(text)


@pytest.mark.parametrize(
    ("language", "above", "name"),
    [
        ("en", "Culture", "Literature"),
        ("en", "Work", "Publications"),
        ("en", "Course", "Sources"),
        ("en", "Career", "Filmography"),
        ("uk", "Культура", "Література"),
        ("uk", "Течія", "Джерела"),
        ("sv", "Kultur", "Litteratur"),
        ("de", "Kultur", "Literatur"),
        ("de", "Verlauf", "Quellen"),
        ("fr", "Cours", "Sources"),
        ("ru", "Культура", "Литература"),
    ],
)
def test_prose_stays_whatever_its_heading(language, above, name):
    prose = PROSE[language]
    below = f"{prose}\n== {above} ==\n{prose}\n=== {name} ===\n{prose}\n{BOOKS}"
    assert extract(below, language).paragraphs == [prose] * 3
    alone = f"{prose}\n== {name} ==\n{prose}\n"
    assert extract(alone, language).paragraphs == [prose] * 2
    tags = alone.replace(f"== {name} ==", f"<h2>{name}</h2>").replace(prose, f"<p>{prose}</p>")
    rules = WikipediaOptions().rules(language)
    assert HtmlExtractor(**rules).extract(parse(tags)).paragraphs == [prose] * 2


@pytest.mark.parametrize("level", ["==", "==="])
@pytest.mark.parametrize(
    ("language", "name"),
    [("en", "Literature"), ("en", "Publications"), ("uk", "Література"), ("sv", "Litteratur"),
        ("da", "Litteratur"), ("no", "Kilder"), ("el", "Πηγές"), ("hy", "Գրականություն"),
        ("bn", "তথ্যসূত্র"), ("mr", "संदर्भ")],
)  # fmt: skip
def test_a_bibliography_goes_and_is_named(language, name, level):
    prose = PROSE["uk"]
    text = f"{prose}\n{level} {name} {level}\n{BOOKS}"
    found = extract(text, language)
    assert found.paragraphs == [prose]
    assert sum(count for reason, count in found.dropped.items() if reason != "heading") == 2
    assert sum("Roe" in text for _, text in found.removed) == 1


@pytest.mark.parametrize("name", ["References", "See also", "External links", "Notes"])
def test_notes_and_links_go_whatever_they_hold(name):
    assert extract(f"{PROSE['en']}\n== {name} ==\n{PROSE['en']}").paragraphs == [PROSE["en"]]


def test_a_named_section_goes_whatever_it_holds():
    text = f"== Literature ==\n{PROSE['en']}\n== Later ==\n{PROSE['en']}"
    assert extract(text, dropped_sections=["literature"]).paragraphs == [PROSE["en"]]


def test_prose_below_an_introduction_to_a_list_is_no_prose():
    found = extract(f"== Publications ==\nHer works are:\n{BOOKS}\n== Later ==\n{PROSE['en']}")
    assert found.paragraphs == [PROSE["en"]]


def test_headings_known_by_language():
    assert {"el", "da", "no", "hy", "bn", "mr"} <= set(APPENDED_SECTIONS)


# Lists

FILM = (
    "* ''Good Will Hunting'' (Gus Van Sant, 1996). If you're only watching one movie, take this "
    "one. A janitor proves a theorem."
)
CHARACTER = (
    "* '''Old Major''' – An aged prize Middle White boar. He provides the inspiration that fuels "
    "the rebellion in the book."
)
PARK = "* '''Eden Park''' is a park by the river, and it is the largest one of the town."
STEPS = (
    "# Preheat the oven to 200 °C.\n# Mix the flour and the sugar in a large bowl.\n"
    "# Add eggs, and stir well until smooth.\n# In a pan, melt the butter.\n"
    "# Then carefully fold in the egg whites.\n# Do not open the oven before the time is up.\n"
)


@pytest.mark.parametrize("item", [FILM, CHARACTER])
@pytest.mark.parametrize("count", [1, 4, 8, 30])
def test_items_of_several_sentences_are_text(item, count):
    found = extract("\n".join([item] * count))
    assert len(found.paragraphs) == count
    assert found.dropped == {}


def test_steps_of_a_recipe_are_text():
    assert len(extract(STEPS).paragraphs) == 6


@pytest.mark.parametrize("form", ["* {}\n", "# {}\n", "** {}\n", "; Park\n: {}\n", "<li>{}</li>"])
def test_forms_of_lists(form):
    text = "".join(form.format(PARK[2:]) for _ in range(3))
    assert len(extract(text).paragraphs) == 3


@pytest.mark.parametrize(
    ("bad", "lost"),
    [
        ("* {{foobar|12|x}}", 0),
        ("* The park has {{foobar|12|x}} trees and a pond in it.", 0),
        ("* Roe, Ann. The Parks of Eden. Oxford 1990. ISBN 978-0-19-1.", 1),
        ("* [http://x.org]", 0),
        ("* [http://x.org The site of the town]", 0),
        ("* [[File:x.jpg]] – 12", 1),
    ],
)
@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_bad_item_costs_one_item(bad, lost, count):
    found = extract("\n".join([PARK] * (count - 1) + [bad] + [PARK]))
    whole = [text for text in found.paragraphs if not PLACEHOLDER_PATTERN.search(text)]
    assert [text for text in whole if "largest" in text] == [PARK[2:].replace("'''", "")] * count
    assert found.dropped["list_item"] >= lost
    assert all(reason == "list_item" and text for reason, text in found.removed)


@pytest.mark.parametrize("language", ["en", "de", "uk"])
def test_a_bibliography_without_a_heading_goes(language):
    found = extract("\n".join([BOOKS] * 3), language)
    assert found.paragraphs == []
    assert found.dropped == {"list_item": 6}
    assert len(found.removed) == 6


def test_an_item_that_ends_a_sentence_is_not_left_out_of_it():
    text = "It had causes:\n* the fall of prices;\n* the book ISBN 978-0-19-1;\n* bad harvests.\n"
    assert [PLACEHOLDER_PATTERN.sub("…", text) for text in extract(text).paragraphs] == [
        "It had causes: …"
    ]
