"""Every rule that asks whether a line ends as a sentence does knows the marks of every script."""

from __future__ import annotations

import pytest
import regex

from cloze.pipeline.corpus.document import ELLIPSIS, LATIN, OTHER_SCRIPTS, Document
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.steps.filters.c4 import apply_c4
from cloze.pipeline.corpus.steps.filters.lines import is_paragraph, remove_repeated
from cloze.pipeline.corpus.steps.sentences import split_paragraph

WORDS = "six words and the end mark"


@pytest.mark.parametrize("mark", [*LATIN, ELLIPSIS, *OTHER_SCRIPTS])
def test_a_line_that_ends_in_a_mark_is_running_text(mark):
    assert reads_as_prose(WORDS + mark)
    assert is_paragraph(WORDS + mark)
    assert not reads_as_prose(WORDS)
    assert not is_paragraph(WORDS)


@pytest.mark.parametrize("mark", [*LATIN, *OTHER_SCRIPTS])
def test_c4_keeps_lines_of_other_languages_that_end_in_a_mark(mark):
    lines = tuple(f"{word} {WORDS}{mark}" for word in ("first", "second", "third"))
    page = Document(id="a", source="warc", title="", paragraphs=lines)
    assert apply_c4(page, language="km").document == page


THAI = "เมืองนี้ตั้งอยู่ริมแม่น้ำปิง ห่างจากกรุงเทพฯ 700 กิโลเมตร และมีวัดเก่าแก่มากมาย"


def test_the_table_is_unicodes():
    """Sentence_Terminal of the Basic Multilingual Plane, with Tibetan shads, without a Burmese
    comma and a dot of abbreviations.
    """
    unicode = {mark for mark in map(chr, range(0x10000)) if regex.match(r"\p{STerm}", mark)}
    assert {*LATIN, *OTHER_SCRIPTS} == unicode - {"\u104a", "\u2024"} | set(
        "\u0f0d\u0f0e\u0f0f\u0f10\u0f11"
    )
    assert len(OTHER_SCRIPTS) == len(set(OTHER_SCRIPTS))


def test_scripts_without_end_marks_are_running_text():
    assert reads_as_prose(THAI)
    assert is_paragraph(THAI)
    assert not reads_as_prose("กรุงเทพ เชียงใหม่")
    page = Document(id="a", source="warc", title="", paragraphs=(THAI, f"{THAI} 2", f"{THAI} 3"))
    assert apply_c4(page, language="th").document == page
    numbers = Document(
        id="a", source="warc", title="", paragraphs=(f"มี 1 คน {THAI}", f"มี 2 คน {THAI}")
    )
    assert remove_repeated(numbers).document == numbers  # two paragraphs, which differ in a number


@pytest.mark.parametrize("mark", ["፡፡", "::", "።"])
@pytest.mark.parametrize("language", ["am", "ti"])
def test_two_ethiopic_word_spaces_are_a_full_stop(mark, language):
    first, second = f"ትንሿ ከተማ በወንዝ ዳርቻ ትገኛለች{mark}", f"ተማሪዎች ፊት ያልፋሉ{mark}"
    assert split_paragraph(f"{first} {second}", language) == [first, second]
    assert mark == "::" or reads_as_prose(first)
