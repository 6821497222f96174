"""Numbers of templates: no digit goes, none comes, none changes its place or its script."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import has_hole
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser


def text_of(wikitext: str, language: str = "en") -> str:
    """The one paragraph around a piece of wikitext, without its frame; "" for a hole."""
    parser = WikitextParser({}, language=language)
    (found,) = parser.extract(f"Now {wikitext} it is so.").paragraphs
    return "" if has_hole(found) else found.removeprefix("Now ").removesuffix(" it is so.")


@pytest.mark.parametrize(
    ("language", "wikitext", "text"),
    [
        ("en", "5.98{{e|24}}&nbsp;kg and ~300{{e|9}} kg", "5.98 × 10^24 kg and ~300 × 10^9 kg"),
        ("en", "1.5{{x10^|8}} s, 2{{E|-3}} s, 7 {{e|&minus;4}} s", "1.5 × 10^8 s, 2 × 10^-3 s, 7 × 10^−4 s"),
        ("en", "{{10^|6}} m and {{e|6}} m", "10^6 m and × 10^6 m"),
        ("bn", "১.৩৫{{e|১৮}} মেট্রিক টন", "১.৩৫ × ১০^১৮ মেট্রিক টন"),
        ("fa", "۱٫۵{{e|۸}} متر", "۱٫۵ × ۱۰^۸ متر"),
        ("hi", "१.५{{e|८}} मी", "१.५ × १०^८ मी"),
        ("fr", "le 5{{e}} et le 6{{e|ème}} et 2{{x10^|3}}", "le 5e et le 6ème et 2 × 10^3"),
        ("ru", "5,98{{e|24}} кг", "5,98 × 10^24 кг"),
        ("it", "3{{E|5}} m e {{Exp|1,56|7}} e {{M|5|ul=km}} e {{M|3|k|m}}", "3 × 10^5 m e 1,56 × 10^7 e 5 km e 3 km"),
        ("fr", "4{{exp|2}} et {{formatnum:461.432}} et {{formatnum:51936}}", "4^2 et 461,432 et 51 936"),
        ("en", "1{{sfrac|1|4}} days, 5{{frac|1|2}} m, {{frac|3|4}}", "1 1/4 days, 5 1/2 m, 3/4"),
        ("en", "1{{frac|2|1|4}} and 2{{fraction|1|3}} and 3{{half}}", "1 2 1/4 and 2 1/3 and 3 1/2"),
        ("de", "1{{Bruch|1|4}} Tage", "1 1/4 Tage"),
        ("en", "10{{sup|3}}, m{{sup|2}}, H{{sub|2}}O, 10{{sup|−7}}", "10^3, m², H2O, 10^−7"),
        ("en", "{{val|5.98e24|u=kg}} and {{val|1.5|e=8|u=m}}", "5.98 × 10^24 kg and 1.5 × 10^8 m"),
        ("en", "{{val|12.3|+0.1|-0.2|u=m}} and {{val|1.234|(5)|e=-3}}", "12.3 +0.1 −0.2 m and 1.234(5) × 10^-3"),
        ("en", "{{val|1234567.8912|-|9|u=m}}", "1,234,567.8912–9 m"),
        ("en", "{{convert|0.08|e6km2}}, {{convert|0.08e4|m}} and {{val|0.5e3}}", "0.08 million km², 800 m and 500"),
        ("en", "{{gaps|1|234|567}} and {{gaps|0.123|456|e=9|u=m}}", "1 234 567 and 0.123 456 × 10^9 m"),
        ("en", "{{nts|1234}} and {{num|12345}} and {{ntsh|5}}x", "1,234 and 12,345 and x"),
        ("en", "{{formatnum:1,234|R}} and {{formatnum:1234}}", "1234 and 1,234"),
        ("bn", "{{formatnum:১২৩৪৫৬৭}}", "১২,৩৪,৫৬৭"),
        ("bn", "{{convert|১২৩৪|km|mi}}", "১,২৩৪ km"),
        ("fa", "{{formatnum:۱۲۳۴۵}}", "۱۲٬۳۴۵"),
        ("my", "{{formatnum:၁၂၃၄၅}}", "၁၂,၃၄၅"),
        ("ar", "{{تحويل|١٢٣|km|mi}}", "١٢٣ km"),
        ("fr", "{{euro|77.80}} et {{formatnum:77.8}}", "77,80 € et 77,8"),
        ("de", "{{EUR|1500}} und {{formatnum:1234.5}}", "1500 € und 1234,5"),
        ("en", "{{euro|77.80}} and {{£|5|m}}", "€77.80 and £5 million"),
        ("es", "{{unidad|5.98e24|kg}}", "5,98 × 10^24 kg"),
        ("fr", "{{unité|5.98|e=24|kg}} et {{unité|1.5|kg||e=3}}", "5,98 × 10^24 kg et 1,5 × 10^3 kg"),
        ("fr", "{{unité|5.98|×=24|kg}}", ""),
        ("fr", "{{unité|3|000 habitants}} et {{unité|5|m|2}}", "3 000 habitants et 5 m²"),
        ("es", "{{unidad|5|2 km|km|2}} y {{unidad|5|km|-1}}", "5 2 km km² y 5 km^-1"),
        ("en", "{{chem|H|2|O}} and {{chem|C|6|H|12|O|6}}", "H2O and C6H12O6"),
        ("cs", "{{km|5}} a {{km|5|mil}}", "5 km a 5 mil"),
        ("fr", "{{unité|5|kg/m|3}} et {{unité|3|m|2}}", "5 kg/m³ et 3 m²"),
        ("en", "{{circa|1500}} and {{c.|1500|1520}}", "c. 1500 and c. 1500 – c. 1520"),
        ("nl", "in {{circa|1500}} daar", "in ca. 1500 daar"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_the_page_shows_them(language, wikitext, text):
    assert text_of(wikitext, language) == text


DIGITS = ["0123456789", "০১২৩৪৫৬৭৮৯", "٠١٢٣٤٥٦٧٨٩", "۰۱۲۳۴۵۶۷۸۹", "०१२३४५६७८९", "၀၁၂၃၄၅၆၇၈၉"]
FORMS = [
    "{a}{{{{e|{b}}}}}", "{a} {{{{e|{b}}}}}", "{a}{{{{x10^|{b}}}}}", "{a}{{{{frac|{b}|{c}}}}}",
    "{a}{{{{sfrac|{b}|{c}}}}}", "{{{{frac|{a}|{b}|{c}}}}}", "{a}{{{{sup|{b}}}}}",
    "{{{{val|{a}|e={b}|u=m}}}}", "{{{{val|{a}|{b}|u=kg}}}}", "{{{{gaps|{a}|{b}|{c}}}}}",
    "{{{{convert|{a}|m|ft}}}}", "{{{{convert|{a}|to|{b}|km|mi}}}}", "{{{{num|{a}}}}}",
    "{{{{nts|{a}}}}}", "{{{{formatnum:{a}}}}}", "{{{{circa|{a}}}}}", "{{{{euro|{a}}}}}",
    "{a}{{{{zzunknown|{b}}}}}", "{{{{zzunknown|{a}|{b}}}}}", "{a}{{{{unit|{b}|m}}}}",
    "{a}{{{{esd}}}}km", "{a}{{{{nbsp}}}}{b}", "{{{{nowrap|{a}{{{{e|{b}}}}}}}}}", "{{{{GBP|{a}}}}}",
    "{a}{{{{ordinal|{b}}}}}", "{{{{unité|{a}|km}}}}", "{{{{unidad|{a}|km|{b}}}}}", "{a}{{{{10^|{b}}}}}",
]  # fmt: skip
LANGUAGES = "en de fr es it pt ru uk pl nl sv ja zh bn ar fa hi mr my el hy vi tr cs".split()


@given(
    st.sampled_from(LANGUAGES), st.sampled_from(FORMS), st.sampled_from(DIGITS),
    st.tuples(st.integers(11, 99999), st.integers(1, 999), st.integers(1, 999)), st.booleans(),
)  # fmt: skip
@example("en", FORMS[0], DIGITS[0], (5, 24, 1), False)
def test_digits_are_kept_apart_and_in_order_or_the_sentence_goes(
    language, form, digits, numbers, in_words
):
    values = [str(number).translate(str.maketrans(DIGITS[0], digits)) for number in numbers]
    wikitext = form.format(a=values[0], b=values[1], c=values[2])
    found = text_of(f"of {wikitext} m" if in_words else wikitext, language)
    if not found:
        return  # a hole: the sentence goes, and is counted
    ten = "10".translate(str.maketrans(DIGITS[0], digits))
    groups = re.findall(r"\d+", re.sub(rf"(?<!\d){ten}\^", "^", found))  # without bases of powers
    shown = [value for key, value in zip("abc", values, strict=True) if f"{{{key}}}" in form]
    assert "".join(groups) == "".join(shown)
    if "gaps" not in form:
        assert _ends(shown) <= _ends(groups), found


def _ends(numbers: list[str]) -> set[int]:
    """Where each number ends in their digits: glued numbers have no end between them."""
    return set(itertools.accumulate(map(len, numbers)))


def test_a_date_names_its_month_however_it_is_written() -> None:
    names = "January February March April May June July August September October November December"
    for number, name in enumerate(names.split(), 1):
        for written in (
            f"{number}",
            f"{number:02}",
            name,
            name[:3],
            name.upper(),
            name[:3].lower(),
        ):
            assert text_of(f"{{{{start date|2016|{written}|5}}}}") == f"5 {name} 2016"
            assert text_of(f"{{{{start date|2016|{written}}}}}") == f"{name} 2016"
    for written in ("0", "13", "Sept", "Ja", "Mayo"):  # what is no month stays as it stands
        assert text_of(f"{{{{start date|2016|{written}|5}}}}") == f"2016 {written} 5"
    assert text_of("{{start date|2016|5|x}}") == "2016 5 x"
    assert text_of("{{start date|2016}}") == "2016"
    assert text_of("{{start date|2016|5|07|mf=yes}}") == "May 7, 2016"
    assert text_of("{{as of|2012|June|lc=y}}") == "as of June 2012"
    assert text_of("{{as of|2012|6|30|df=us|since=y}}") == "Since June 30, 2012"
