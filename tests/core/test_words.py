"""Words, marks and widths of every script, at the borders of its blocks."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import words
from cloze.core.words import (
    count_words,
    letters_a_word,
    letters_apart,
    split_words,
    width,
    without_marks,
)

LETTERS = st.text(
    st.sampled_from("ab é.,\n中文カな한글ไทยกິລາမြန်བོད་ខ្មែរ\u200d\ufe0f12") | st.characters(exclude_categories=["Cs"]),
    max_size=30,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n ", []),
        ("It stops.", ["It", "stops."]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("한국어 글", ["한국어", "글"]),  # has spaces
        ("中", ["中"]),
        ("中文", ["中文"]),
        ("中文字", ["中文", "字"]),
        ("中文。字", ["中文。", "字"]),
        ("カタカナ", ["カタ", "カナ"]),
        ("か\u3099き\u3099く", ["か\u3099き\u3099", "く"]),  # marks are no letters
        ("ไทย", ["ไทย"]),
        ("ไทยก", ["ไทย", "ก"]),
        ("บ้านป่า", ["บ้าน", "ป่า"]),
        ("བོད་ཡིག་ད", ["བོད་ཡི", "ག་ད"]),
        ("PC中文is it", ["PC", "中文", "is", "it"]),
        ("中ก", ["中", "ก"]),  # of two scripts
    ],
)
def test_words_by_script(text: str, parts: list[str]) -> None:
    assert split_words(text) == parts
    assert count_words(text) == len(parts)


@settings(max_examples=50)
@given(LETTERS)
def test_a_text_has_as_many_words_as_it_is_cut_into_and_loses_nothing(text: str) -> None:
    found = split_words(text)
    assert len(found) == count_words(text)
    assert "".join(found) == "".join(text.split())


@given(st.text(st.characters(max_codepoint=0x0DFF, exclude_categories=["Cs"])))
def test_scripts_with_spaces_are_cut_at_blanks_alone(text: str) -> None:
    assert split_words(text) == text.split()


@pytest.mark.parametrize(
    ("first", "last", "letters"),
    [
        (0x3005, 0x3007, 2),
        (0x3041, 0x3096, 2),
        (0x30A1, 0x30FA, 2),
        (0x4E00, 0x9FFF, 2),
        (0xA000, 0xA48C, 2),
        (0xFF66, 0xFF9D, 2),
        (0x20000, 0x323AF, 2),
        (0x0E01, 0x0E30, 3),
        (0x1780, 0x17B3, 3),
    ],
)
def test_letters_a_word_at_the_borders(first: int, last: int, letters: int) -> None:
    table = letters_a_word()
    assert table.shape == (0x110000,)
    assert set(table[first : last + 1].tolist()) == {letters}
    for code in (first, last):
        assert words.UNSPACED_LETTER.fullmatch(chr(code))
    for code in (first - 1, last + 1):
        assert bool(words.UNSPACED_LETTER.match(chr(code))) == (table[code] > 1)


@pytest.mark.parametrize("character", "aéяاअ한,1 \u0e31\u1031")
def test_other_letters_and_marks_count_one(character: str) -> None:
    assert letters_a_word()[ord(character)] == 1


def test_the_quick_look_misses_no_letter() -> None:
    """It decides whether a text is looked through at all."""
    codes = np.flatnonzero(letters_a_word() > 1).tolist()
    missed = [code for code in codes if not words.MAY_BE_UNSPACED.match(chr(code))]
    assert missed == []


@pytest.mark.parametrize(
    ("text", "wide"),
    [("", 0), ("abc", 3), ("é", 1), ("中文", 4), ("한글", 4), ("かa", 3), ("！", 2), ("ไทย", 3)],
)
def test_square_characters_are_wide(text: str, wide: int) -> None:
    assert width(text) == wide


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("abc", "abc"),
        ("cafe\u0301", "cafe"),
        ("हिन्दी", "हनद"),
        ("a\u200db\u200cc", "abc"),
        ("葛\U000e0100", "葛"),
        ("שָׁלוֹם", "שלום"),
    ],
)
def test_marks_and_joiners_go(text: str, bare: str) -> None:
    assert without_marks(text) == bare


def test_marks_are_those_of_unicode() -> None:
    codes = set(words.mark_codes())
    assert {code for code in range(0x110000) if unicodedata.category(chr(code))[0] == "M"} == {
        code for code in codes if words.is_mark(chr(code))
    }
    assert codes - {code for code in codes if words.is_mark(chr(code))} == {0x200C, 0x200D}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it's 3 o'clock", ["it", "s", "3", "o", "clock"]),
        ("हिन्दी, में", ["हिन्दी", "में"]),
        ("a\u200db c", ["a\u200db", "c"]),
        ("१२ ½x", ["१२", "½x"]),
    ],
)
def test_a_word_keeps_its_marks(text: str, found: list[str]) -> None:
    assert words.word_pattern().findall(text) == found
    assert words.letters_pattern().findall("a1b २é") == ["a", "b", "é"]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [("CAFE\u0301", "caf\u00e9", True), ("Straße", "STRASSE", True), ("İ", "i", False)],
)
def test_words_that_are_the_same_but_for_case_and_form(one: str, other: str, alike: bool) -> None:
    assert (words.caseless(one) == words.caseless(other)) is alike


@given(st.text() | st.text(alphabet="aé1 .日本がﾊﾞกิ้ကြ\u3099\ufe00\u200dᠠ𠀀", max_size=40))
def test_letters_apart_is_the_substitution(text: str) -> None:
    assert letters_apart(text) == words.UNSPACED_LETTER.sub(r" \g<0> ", text)
