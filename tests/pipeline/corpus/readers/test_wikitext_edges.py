"""Boxes in italics, links to sounds, names with a prefix, numbers of centuries, items and quotations:
what the page shows stands in the text, or the sentence has a hole.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import HOLE_TEMPLATE, has_hole
from cloze.pipeline.corpus.readers.encyclopedia import mediawiki_names
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import read_names
from cloze.pipeline.corpus.readers.encyclopedia.templates import render
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

PROSE = {
    "en": "The town has many old mills and people there work all day.",
    "de": "Die Stadt hat viele alte Mühlen und die Leute arbeiten dort.",
    "ru": "Город имеет много старых мельниц, и люди там работают.",
    "hy": "Քաղաքը ունի շատ հին ջրաղացներ, և մարդիկ այնտեղ աշխատում են։",
    "vi": "Thành phố có nhiều cối xay cổ và người dân làm việc ở đó.",
    "bn": "শহরটিতে অনেক পুরানো কল আছে এবং লোকেরা সেখানে কাজ করে।",
    "ja": "この町には古い水車が多く、人々はそこで働いている。",
    "ar": "المدينة بها العديد من الطواحين القديمة ويعمل الناس هناك.",
}
REMOVED = ["{{Main|X}}", "{{Unheard of box|X}}", "<ref>X</ref>", "[[File:x.jpg|thumb|X]]"]


def paragraphs(wikitext: str, language: str = "en", project: str = "wikipedia") -> list[str]:
    """The paragraphs of a page."""
    judged = mediawiki_names.PROSE_OR_LISTS
    parser = WikitextParser(
        {10: ["template"]}, language=language, project=project, judged_sections=judged
    )
    return parser.extract(wikitext).paragraphs


@pytest.mark.parametrize("language", PROSE)
@pytest.mark.parametrize("removed", REMOVED)
@given(quotes=st.sampled_from(["''", "'''", "'''''"]))
def test_a_box_in_italics_leaves_no_apostrophe(removed: str, language: str, quotes: str) -> None:
    prose = PROSE[language]
    assert paragraphs(f"{quotes}{removed}{quotes}\n{prose}", language) == [prose]


@pytest.mark.parametrize("name", ["Media", "Medium", "Média", "Медиа", "ميديا", "媒体", "मीडिया"])
def test_a_link_to_a_sound_shows_its_label(name: str) -> None:
    assert paragraphs(f"Hear [[{name}:x.ogg|the old song]] of the millers by the river.") == [
        "Hear the old song of the millers by the river."
    ]
    assert paragraphs(f"The mill ([[{name}:x.ogg|listen]]) stands by the river in town.") == [
        "The mill stands by the river in town."
    ]


@pytest.mark.parametrize("prefix", sorted(read_names("template namespaces")))
def test_a_template_may_be_named_with_its_namespace(prefix: str) -> None:
    assert render(f"{prefix.capitalize()}: nowrap|two mills", line="has ") == "two mills"


def test_no_parser_function_is_a_namespace() -> None:
    for prefix in read_names("template namespaces"):
        assert render(f"{prefix}:no such name|x|y", line="has ") == HOLE_TEMPLATE


# (language, template, text, or None for a hole)
WORDS = [
    ("fr", "XXe siècle", "XXe siècle"),
    ("fr", "Ier siècle av. J.-C.", "Ier siècle av. J.-C."),
    ("fr", "Mme|Dupont", "Mme Dupont"),
    ("fr", "Mgr", "Mgr"),
    ("it", "secolo|XIX", None),
    ("ru", "век|XIX", None),
    ("pl", "wiek|XIX", None),
    ("ru", "num|5,98|24", None),
    ("fr", "unité|12|13", None),
    ("zh", "tsl|en|Mill||磨坊", "磨坊"),
    ("zh", "tsl|en|Mill|水磨", "水磨"),
    ("es", "fecha|5|mayo|1900", "5 de mayo de 1900"),
    ("es", "fecha|5|5|1900", None),
    ("en", "date|2020-05-05", "5 May 2020"),
    ("pl", "data|1900-05-05", None),
    ("en", "formatnum:1234567|NOSEP", "1234567"),
    ("de", "formatnum:1234567|NOSEP", "1234567"),
    ("en", "((", None),
    ("bn", "formatnum:১২৩৪৫৬৭", "১২,৩৪,৫৬৭"),
    ("hi", "formatnum:1234567.5", "12,34,567.5"),
    ("hi", "formatnum:12345", "12,345"),
    ("en", "color|red|two mills", "two mills"),
    ("en", "font color|white|red|two mills", "two mills"),
    ("en", "resize|80%|two mills", "two mills"),
    ("en", "birth-date and age|1941-04-12|12 April 1941", "12 April 1941"),
    ("en", "date|June 8 2018|mdy", "June 8 2018"),
    ("en", "first word|Foo bar baz", None),
    ("en", "Last word|Foo bar baz", None),
    ("en", "digits|12px", None),
    ("en", "YEAR|1 January 1992", None),
    ("en", "music|bassclef", "𝄢"),
]


@pytest.mark.parametrize(("language", "template", "text"), WORDS)
def test_a_template_says_what_the_page_shows(
    language: str, template: str, text: str | None
) -> None:
    assert render(template, language, line="word ") == (HOLE_TEMPLATE if text is None else text)


@pytest.mark.parametrize("line", ["ووزنه ٥ كم و", "עולה ב", "قيمته ل"])
def test_a_number_behind_a_prefix_is_no_note(line: str) -> None:
    assert render("unheard of money|50", line=line) == HOLE_TEMPLATE


@pytest.mark.parametrize(
    "icon", ["{{Unheard of icon}}", "{{Unheard of icon|12|x}}", "{{A}} {{Unheard of icon|x}}"]
)
def test_an_unknown_icon_before_an_item_costs_no_item(icon: str) -> None:
    items = ["It is quiet and has a pond.", "The mayor opened it in 1950.", "It has a mill."]
    listed = "\n".join(f"* {icon} {item}" for item in items)
    text = " ".join(paragraphs(f"The town has three parks:\n{listed}"))
    assert not has_hole(text)
    assert all(item in text for item in items)


def test_an_unknown_template_that_may_be_a_word_keeps_its_hole() -> None:
    assert has_hole(
        paragraphs("町には古い水車が多い。{{年数|1900}}年前に粉屋がこの町に来た。", "ja")[0]
    )
    assert has_hole(paragraphs("* {{不明|x}}ギメル公園には川沿いに水車がある。", "ja")[0])


@pytest.mark.parametrize(
    ("language", "item"),
    [
        ("de", "„Die Mühle mahlt langsam, aber sie mahlt fein.“ - ''Die Mühle'', S. 12"),
        ("en", '"The mill grinds slowly." – Letter to his son'),
        ("fr", "« L'eau est l'amie du meunier.» – Journal"),
        ("ja", "「水は粉屋の友である。」 - 日記"),
    ],
)
def test_a_quotation_with_its_source_behind_it_is_text(language: str, item: str) -> None:
    shown = item.replace("''", "")
    assert paragraphs(f"* {item}\n* {item}", language, "wikiquote") == [shown, shown]


def test_pages_of_a_scanned_book_have_no_headers_and_whole_words() -> None:
    page = (
        "<noinclude><pagequality level=4 />12 THE MILL.</noinclude>{{hwe|ing|walking}} {{di|T}}he "
        "mill stood by the river and the miller was {{hws|talk|talking}} there.<noinclude>13</noinclude>"
    )
    assert paragraphs(page, "en", "wikisource") == [
        "The mill stood by the river and the miller was talking there."
    ]


BOOKS = (
    "Smith, John. ''The Mill''. London: Penguin, 1990.",
    "Miller, Ann (1985). ''Water''. Oxford University Press.",
    "Jones, B. ''History of the Town''. 245 pp.",
)


@pytest.mark.parametrize("heading", ["Literature", "Публикации", "Źródła", "Nguồn", "著作"])
@pytest.mark.parametrize("between", ["\n* ", "\n\n"])
def test_books_are_no_prose_with_or_without_bullets(heading: str, between: str) -> None:
    prose = PROSE["en"]
    page = f"{prose}\n\n== {heading} =={between}{between.join(BOOKS)}"
    assert paragraphs(page, "fr") == [prose]
    assert paragraphs(f"{prose}\n\n== {heading} ==\n{prose}", "fr") == [prose, prose]
