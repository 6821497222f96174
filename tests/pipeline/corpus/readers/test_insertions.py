"""The measure of words that the page does not show at their place, and what it says of real pages:
dumps beside the repository, where they are, and pages of ten languages by the rules of their wikis.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.insertions import Shown, articles, insertions, measure, of_wikitext, report, tokens
from cloze.pipeline.corpus.document import has_hole
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

PROSE = "The story of the town begins with two brothers. It lies by the cold sea in the north."
_CHARGE = re.compile(r"(?<=[^\W\d_])\d+[−+-]|\)\d*[−+-]")  # raised figures of ions


@pytest.mark.parametrize(
    ("text", "added"),
    [
        (PROSE, 0),
        (f"History of Eden {PROSE}", 3),
        (PROSE.replace("town", "old town"), 1),
        (PROSE.replace("two", "two 24"), 1),
        (PROSE.replace("cold ", ""), 0),
        (PROSE.replace("brothers", "brothers, History of Eden,"), 3),
        ("No word of this line of text stands anywhere there.", 10),
    ],
)
def test_inserted_words_are_counted_at_their_place(text, added):
    page = of_wikitext(f"{{{{zz|History of Eden}}}}\n{PROSE}\n\nThe History of Eden is another.")
    lines = re.split(r"(?<=\.) ", text)
    assert insertions(lines, page).inserted == added
    rendered = Shown.of_text(f"{PROSE}\n\nThe History of Eden is another.")
    assert insertions(lines, rendered).inserted == added


def test_arguments_inside_a_sentence_are_shown_and_boxes_are_not():
    page = of_wikitext(
        "{{zz|Box}}It has {{zz|two|km=5}} {{nowrap|{{a|b}}}} parts<ref>no</ref>.\n"
        "{{Infobox\n|a=c}}\n[[File:x.jpg|thumb|d]] ''{{lang|fr|île}}'' {{zz|box}}"
    )
    assert page.tokens == ["it", "has", "zz", "two", "km", "5", "nowrap", "a", "b", "parts", "lang",
                           "fr", "île", "zz", "box"]  # fmt: skip
    assert tokens("1,234 km² and 算盤") == ["1234", "km", "2", "and", "算", "盤"]


# Head of a section, hatnotes and notes as the wiki writes them, a number, a foreign word.
PAGES = {
    "hy": "{{Հիմնական|Իտալիայի պատմություն}}Իտալիան պետություն է Եվրոպայի հարավում։ Այն ունի "
    "{{formatnum:12345}} գյուղ։",
    "it": "{{Vedi anche|Storia d'Italia}}\nL'Italia è uno Stato del sud dell'Europa.{{Senza fonte}} "
    "Ha 45{{esd}}km di costa e una massa di 1,5{{e|8}} kg.",
    "vi": "{{Bài chi tiết|Lịch sử Ý}}\nNước Ý nằm ở phía nam của châu Âu. Khối lượng là 5,98{{e|24}} kg.",
    "bn": "{{মূল নিবন্ধ|ইতালির ইতিহাস}}\nইতালি দক্ষিণ ইউরোপের একটি দেশ। এর ভর প্রায় ১.৩৫{{e|১৮}} টন।",
    "el": "{{Κύριο|Ιστορία της Ιταλίας}}\nΗ Ιταλία είναι χώρα της νότιας Ευρώπης.{{Πηγή}} Έχει 45 km.",
    "de": "{{Hauptartikel|Geschichte Italiens}}\nItalien liegt im Süden von Europa. Es hat "
    "{{formatnum:12345}} Orte und 1{{Bruch|1|4}} Inseln.",
    "fr": "{{Article détaillé|Histoire de l'Italie}}\nL'Italie est un pays du sud de l'Europe. Elle a "
    "{{unité|45.5|km|2}} de forêts au {{s-|XIX|e}}.",
    "es": "{{AP|Historia de Italia}}\nItalia es un país del sur de Europa.{{Cita requerida}} Tiene 45{{esd}}km.",
    "ru": "{{Основная статья|История Италии}}\nИталия лежит на юге Европы.{{нет АИ}} Её масса 5,98{{e|24}} кг.",
    "uk": "{{Докладніше|Історія Італії}}\nІталія лежить на півдні Європи. Її маса 5,98{{e|24}} кг.",
    "ja": "{{Main|イタリアの歴史}}\nイタリアはヨーロッパの南にある国である。面積は{{convert|45|km2}}である。",
    "zh": "{{主条目|意大利历史}}\n意大利是欧洲南部的一个国家。它有{{formatnum:12345}}个村庄。",
    "ar": "{{مفصلة|تاريخ إيطاليا}}\nإيطاليا دولة في جنوب أوروبا.{{مصدر}} كتلتها ٥٫٩٨{{e|٢٤}} كغم.",
    "fa": "{{اصلی|تاریخ ایتالیا}}\nایتالیا کشوری در جنوب اروپا است.{{مدرک}} جرم آن ۵٫۹۸{{e|۲۴}} کیلوگرم است.",
    "hi": "{{मुख्य|इटली का इतिहास}}\nइटली यूरोप के दक्षिण में एक देश है। इसका भार ५.९८{{e|२४}} किलो है।",
}  # fmt: skip


@pytest.mark.parametrize("language", PAGES)
def test_pages_of_many_wikis_have_no_insertion(language):
    parser = WikitextParser({}, language=language)
    (text,) = parser.extract(PAGES[language]).paragraphs
    assert not has_hole(text)
    found = insertions(
        [text],
        of_wikitext(PAGES[language]),
        frozenset(("10", "১০", "١٠", "۱۰", "१०", "km", "xixe", "siècle")),
    )
    assert found.words > 8
    assert found.inserted == 0, found.examples


def test_real_pages_have_no_insertions_and_no_other_numbers(shared_data, capsys):
    dump = Path(shared_data, "wikipedia/dumps/enwiki-2016-p10p30302.xml.bz2")
    found = {}
    measure(dump, 15, found)
    assert found["en"].pages == 15
    assert found["en"].per_thousand < 0.1, found["en"].examples
    report([dump], pages=2)
    assert "per thousand" in capsys.readouterr().out
    other, count = [], 0
    for (parser, page), _ in zip(articles(dump), range(30), strict=False):
        shown = {token for token in of_wikitext(page.text).tokens if token.isdecimal()}
        for paragraph in parser.extract(page.text).paragraphs:
            numbers = [one for one in tokens(_CHARGE.sub("", paragraph)) if one.isdecimal()]
            count += len(numbers)
            other += [(page.title, one) for one in numbers if one not in shown | {"10"}]
    assert count > 2000
    assert not other
