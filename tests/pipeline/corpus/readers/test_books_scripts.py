"""Books in every script and layout: no prose is lost, and what is kept is not counted as dropped."""

from __future__ import annotations

import itertools
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.corpus.readers.base import ReadCounters, Slice
from cloze.pipeline.corpus.readers.books import book_text
from cloze.pipeline.corpus.readers.books.headings import is_heading
from cloze.pipeline.corpus.steps.sentences import split_paragraph
from tests.pipeline.corpus.script_texts import TEXTS
from tests.slices import few

# Sentences of a script; further ones for scripts that script_texts.py lacks.
MORE = {
    "fa": "این شهر کوچک در کنار رودخانه ای پهن جای دارد. هر بامداد بازرگانان دکان های خود را در "
    "بازار باز می کنند. شاگردان از برابر شهرداری می گذرند و به نانوا سلام می دهند.",
    "am": "ትንሿ ከተማ በሰፊ ወንዝ ዳርቻ ትገኛለች። በየማለዳው ነጋዴዎች ሱቆቻቸውን በገበያ ይከፍታሉ። ተማሪዎች ከማዘጋጃ ቤቱ ፊት ያልፋሉ። "
    "ምሽት ላይ ሁሉም እንደገና በወንዙ ዳር ይገናኛሉ።",
    "lo": "ເມືອງນ້ອຍນີ້ຕັ້ງຢູ່ແຄມແມ່ນ້ຳກວ້າງ ເຊິ່ງເມື່ອກ່ອນມີຂົວໄມ້ຂ້າມໄປອີກຝັ່ງ "
    "ທຸກເຊົ້າພໍ່ຄ້າແມ່ຄ້າເປີດຮ້ານໃນຕະຫຼາດ ແລະຂາຍໝາກໄມ້ກັບເຂົ້າຈີ່ໃໝ່",
    "en": "The small town lies on the bank of a wide river. Every morning the merchants open their "
    "stalls on the market square. The pupils walk past the town hall and greet the baker.",
}
SCRIPTS = TEXTS | MORE
SENTENCES = {language: split_paragraph(text, language) for language, text in SCRIPTS.items()}
GLUED = ("zh", "ja")  # no blank between sentences
UNSPACED = (*GLUED, "th", "lo", "km", "my", "bo")
WIDTHS = {"zh": 38, "ja": 38} | dict.fromkeys(("th", "lo", "km", "my", "bo"), 70)


def letters(text: str) -> str:
    return "".join(text.split())


def wrap(paragraph: str, language: str, indent: str = "") -> str:
    """Return the lines of a paragraph as a printer breaks them."""
    if language not in UNSPACED:
        return textwrap.fill(paragraph, 70, initial_indent=indent)
    lines, line = [], indent
    for character in paragraph:
        full = len(line) >= WIDTHS[language]
        breaks = character.isalpha() and (language != "bo" or line[-1:] in "་། ")
        if full and breaks:
            lines.append(line.rstrip())
            line = ""
        line += character
    return "\n".join([*lines, line])


def read_book(text: str) -> tuple[book_text.Book, ReadCounters]:
    tally = ReadCounters(slice=Slice(kind="books", name="a.txt", path="a.txt", size=0), stop=False)
    return book_text.read(text, tally), tally


def read(text: str) -> tuple[list[str], ReadCounters]:
    book, tally = read_book(text)
    return [paragraph for _, paragraphs in book.sections for paragraph in paragraphs], tally


def dropped(tally: ReadCounters) -> int:
    return sum(count for name, count in tally.counters.items() if name.startswith("dropped_lines/"))


def paragraphs_of(language: str, sizes: list[int]) -> list[str]:
    sentences = itertools.cycle(SENTENCES[language])
    joint = "" if language in GLUED else " "
    return [joint.join(itertools.islice(sentences, size)) for size in sizes]


LAYOUTS = ["blank", "none", "indented", "wrapped blank", "wrapped indented", "wrapped"]


def lay_out(paragraphs: list[str], language: str, layout: str) -> str:
    indent = {"zh": "　　", "ja": "　"}.get(language, "    ") if "indented" in layout else ""
    if "wrapped" in layout:
        paragraphs = [wrap(paragraph, language, indent) for paragraph in paragraphs]
    else:
        paragraphs = [indent + paragraph for paragraph in paragraphs]
    return ("\n\n" if "blank" in layout else "\n").join(paragraphs) + "\n"


@pytest.mark.parametrize("language", few(SCRIPTS, "ar", "hi", "ja", "ru", "th", "zh"))
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=4, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=60))
def test_no_prose_is_lost(language: str, layout: str, sizes: list[int]) -> None:
    paragraphs = paragraphs_of(language, sizes)
    kept, tally = read(lay_out(paragraphs, language, layout))
    assert letters("".join(kept)) == letters("".join(paragraphs))
    assert dropped(tally) == 0
    if "wrapped" not in layout:
        assert kept == paragraphs


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize("layout", ["wrapped blank", "wrapped indented"])
def test_wrapped_paragraphs_are_joined(language: str, layout: str) -> None:
    paragraphs = paragraphs_of(language, [4, 3, 4, 2, 4, 3] * 5)
    kept, _ = read(lay_out(paragraphs, language, layout))
    if language in UNSPACED and language not in GLUED:  # a blank at the end of a line is lost
        assert list(map(letters, kept)) == list(map(letters, paragraphs))
    else:
        assert kept == paragraphs


HEADINGS = {
    "zh": ["第一章　河边", "第二章 钟声"], "ja": ["第一章", "二"], "ko": ["제1장", "제 2 장 강가"],
    "ar": ["الفصل الأول", "الفصل الثاني"], "fa": ["فصل ۱", "فصل دوم"], "he": ["פרק א", "פרק שני"],
    "hi": ["अध्याय १", "अध्याय २"], "ta": ["அத்தியாயம் 1", "அத்தியாயம் 2"],
    "th": ["บทที่ ๑", "บทที่ ๒"], "am": ["ምዕራፍ 1", "ምዕራፍ 2"], "ka": ["თავი I", "თავი მეორე"],
    "ru": ["Глава первая", "Глава 2. Колокол"], "el": ["Κεφάλαιο Α", "ΚΕΦΑΛΑΙΟΝ ΔΕΥΤΕΡΟΝ"],
    "de": ["Erstes Kapitel.", "Kapitel II"], "vi": ["Chương 1", "Chương II"],
    "km": ["ជំពូកទី១", "ជំពូកទី២"],
}  # fmt: skip
TITLES = {
    "zh": ["河边小城", "张三 著"],
    "ja": ["川の町", "山田太郎"],
    "ko": ["강가의 마을", "김철수"],
}


@pytest.mark.parametrize("language", HEADINGS)
@pytest.mark.parametrize("layout", LAYOUTS[:5])
def test_kept_and_dropped_lines_are_all_lines(language: str, layout: str) -> None:
    title = TITLES.get(language, [SENTENCES[language][0][:12].strip(), "A N"])
    chapters = [paragraphs_of(language, [4, 2, 3, 1] * 3) for _ in HEADINGS[language]]
    text = "\n\n".join(
        ["\n".join(title), ""]
        + [
            f"{heading}\n\n{lay_out(paragraphs, language, layout)}"
            for heading, paragraphs in zip(HEADINGS[language], chapters, strict=True)
        ]
    )
    kept, tally = read(text)
    assert letters("".join(kept)) == letters("".join(map("".join, chapters)))
    assert tally.counters["dropped_lines/front_matter"] == 2
    assert tally.counters["dropped_lines/heading"] == 2
    assert dropped(tally) == 4


@pytest.mark.parametrize("language", SCRIPTS)
def test_a_short_book_is_not_counted_as_dropped(language: str) -> None:
    """Verse or names without end marks: all is kept, so nothing is dropped."""
    lines = [f"{SCRIPTS[language][:8].strip()} {number}" for number in range(39)]
    kept, tally = read("\n\n".join(lines))
    assert len(kept) == 39
    assert dropped(tally) == 0


@pytest.mark.parametrize(
    "opening",
    [
        ["「好。」", "「走吧！」", "他们一起走出了村子，谁也没有回头看一眼。"],
        ["「はい。」", "「行こう。」", "二人は村を出て、一度も振り返らなかった。"],
        ["»Ja.«", "»Komm.«", "Sie gingen zusammen aus dem Dorf und sahen sich nicht einmal um."],
        ["— Да.", "— Идём.", "Они вместе вышли из деревни и ни разу не оглянулись назад."],
        ["جاء.", "— نعم.", "خرجا معا من القرية ولم يلتفت أحد منهما إلى الوراء."],
    ],
    ids=["zh", "ja", "de", "ru", "ar"],
)
def test_a_book_may_begin_with_speech(opening: list[str]) -> None:
    kept, tally = read("\n\n".join(opening * 4))
    assert kept[-11:] == (opening * 4)[-11:]
    assert len(kept) + dropped(tally) == 12


NUMBERED = {
    "fa": ("فهرست", "فصل {}"),
    "he": ("תוכן העניינים", "פרק {}"),
    "am": ("ማውጫ", "ምዕራፍ {}"),
    "ka": ("სარჩევი", "თავი {}"),
    "hy": ("Բովանդակություն", "Գլուխ {}"),
    "ru": ("Содержание", "Глава {}"),
    "en": ("Contents", "Chapter {}"),
}


@pytest.mark.parametrize("language", NUMBERED)
@pytest.mark.parametrize("page", ["", "  {}"])
@pytest.mark.parametrize("end", ["", "،"])
def test_the_first_numbered_chapter_is_no_entry_of_the_contents(
    language: str, page: str, end: str
) -> None:
    title, heading = NUMBERED[language]
    headings = [heading.format(number) for number in (1, 2, 3)]
    listed = [name + page.format(5 * place) for place, name in enumerate(headings, 1)]
    paragraph = " ".join(SENTENCES.get(language, SENTENCES["en"]) * 2).rstrip(".።։") + end
    body = [f"{name}\n\n{paragraph}\n\n{paragraph}" for name in headings]
    book, _ = read_book("\n\n".join([title, "\n".join(listed), "", *body]))
    assert [name for name, _ in book.sections] == headings
    assert [paragraphs for _, paragraphs in book.sections] == [[paragraph] * 2] * 3


@pytest.mark.parametrize(
    "heading",
    [
        *("1. Kapitel", "12. fejezet", "I. kapitola", "Das erste Kapitel", "Le premier chapitre"),
        *("Het eerste hoofdstuk", "El primer capítulo", "1-тарау", "2 дугаар бүлэг", "Caput I"),
        *("Kapitulli 3", "Биринчи бап", "1 caibidil"),
    ],
)
def test_headings_of_other_languages(heading: str) -> None:
    assert is_heading(heading)


@pytest.mark.parametrize("line", ["in diesem Kapitel.", "от этой главы.", "Bob laughed."])
def test_last_lines_of_paragraphs_are_no_headings(line: str) -> None:
    assert not is_heading(line)


def test_long_paragraphs_are_no_front_matter() -> None:
    """The first paragraphs of a declaration end in commas."""
    clause = "адам баласы үйелменінің барлық мүшелеріне тән қадір-қасиетті және олардың тең " * 3
    paragraphs = [f"{clause}{number}," for number in range(12)]
    kept, tally = read("\n\n".join(["Тақырып", *paragraphs, "Адам тең құқылы болып туады."]))
    assert kept[: len(paragraphs)] == paragraphs
    assert dropped(tally) == 1
