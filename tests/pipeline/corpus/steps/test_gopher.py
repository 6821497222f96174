"""MassiveText's rules: each by its own reason, at its threshold; and a slow, plain reading of the
paper to compare with.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.filters.gopher import (
    MAXIMUM_DUPLICATE,
    MAXIMUM_TOP,
    gopher_quality,
    gopher_repetition,
)

# 17 words
SENTENCE = "the river bends to the north of town and people have walked along with it for years"


def page(*lines: str, language: str = "") -> Document:
    return Document(id="a", source="warc", title="", paragraphs=lines, language=language)


def different(count: int, start: int = 0) -> str:
    """`count` words that are all different, none a stop word."""
    return " ".join(
        f"we{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}{'x' * (n // 676)}"
        for n in range(start, start + count)
    )


PROSE = f"The mill and {different(60)} to be"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((PROSE,), None),
        ((f"the and {different(47)}",), "gopher_words"),
        ((f"the and {different(48)}",), None),
        (("the and " + "a " * 100,), "gopher_word_length"),
        (("the and " + "internationalization " * 60,), "gopher_word_length"),
        ((PROSE + " #" * 8,), "gopher_symbols"),
        ((PROSE + " #" * 5,), None),
        ((PROSE + " so..." * 9,), "gopher_symbols"),
        (tuple(f"• the item and {different(4, n)}" for n in range(0, 80, 4)), "gopher_bullets"),
        (
            (PROSE, *(f"- the item and {different(4, n)}" for n in range(0, 32, 4))),
            None,
        ),  # 8 of 9 lines
        ((PROSE, f"{different(9)} and so…", f"{different(9)} end"), "gopher_ellipsis"),
        ((PROSE, f"{different(9)} and so…", "one", "two", "three"), None),
        ((PROSE + " 1234" * 20,), "gopher_alphabetic"),
        ((PROSE + " 1234" * 12,), None),
        ((different(80),), "gopher_stop_words"),
        ((different(80) + " the the",), "gopher_stop_words"),  # one of them, twice
        ((different(80) + " The WITH",), None),
    ],
)
def test_quality(lines, reason):
    assert gopher_quality(page(*lines)) == reason


def test_too_many_words():
    assert gopher_quality(page("the and " + "word " * 99_998)) is None
    assert gopher_quality(page("the and " + "word " * 99_999)) == "gopher_words"


def test_other_languages():
    german = "Die Stadt liegt am Ufer des Flusses und hat in der Mitte einen Markt. " * 5
    assert gopher_quality(page(german), language="de") is None
    assert gopher_quality(page(german), language="fr") == "gopher_stop_words"
    assert gopher_quality(page(german), language="xx") is None  # no list, no rule
    assert gopher_quality(page("这座城市位于河岸，约有两万居民。" * 8), language="zh") is None


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((SENTENCE,), None),
        (("same line here", "same line here", different(40)), "gopher_duplicate_lines"),
        (("same line here", "same line here", *(different(9, n) for n in range(0, 90, 9))), None),
        (
            (*(different(2, n) for n in range(0, 20, 2)), different(20, 200), different(20, 200)),
            "gopher_duplicate_line_characters",
        ),
        (("ha " * 40,), "gopher_top_2gram"),
        ((" ".join(f"{word} new york" for word in different(14).split()),), "gopher_top_2gram"),
        (
            (
                f"{different(40)} one two three four five six {different(20, 50)} one two three "
                f"four five six",
            ),
            None,
        ),
        (
            (f"{different(30)} {different(12, 100)} {different(5, 50)} {different(12, 100)}",),
            "gopher_duplicate_5gram",
        ),
    ],
)
def test_repetition(lines, reason):
    assert gopher_repetition(page(*lines)) == reason


def plain(words: list[str]) -> str | None:
    """The n-gram rules of Table A1 as one would write them for a single page."""
    total = sum(map(len, words))
    for n in range(2, 11):
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        counts = Counter(grams)
        if not counts or max(counts.values()) < 2:
            continue
        if n in MAXIMUM_TOP:
            top = max(counts.values())
            longest = max(sum(map(len, gram)) for gram, count in counts.items() if count == top)
            shares = set()
            for gram, count in counts.items():
                if count == top and sum(map(len, gram)) == longest:
                    inside = {i + k for i, g in enumerate(grams) if g == gram for k in range(n)}
                    shares.add(sum(len(words[i]) for i in inside) > MAXIMUM_TOP[n] * total)
            if shares == {True}:
                return f"gopher_top_{n}gram"
            if True in shares:
                return "either"
        if n in MAXIMUM_DUPLICATE:
            seen: set[tuple[str, ...]] = set()
            inside = set()
            for i, gram in enumerate(grams):
                if gram in seen:
                    inside |= set(range(i, i + n))
                seen.add(gram)
            if sum(len(words[i]) for i in inside) > MAXIMUM_DUPLICATE[n] * total:
                return f"gopher_duplicate_{n}gram"
    return None


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.integers(0, 400).map(lambda n: "abcdefghij"[n % 10] * (1 + n % 3) + str(n // 5)),
        max_size=120,
    ),
    st.integers(0, 40),
)
def test_repetition_is_that_of_the_plain_reading(words, copied):
    words = words + words[:copied]
    expected = plain(words)
    if expected != "either":
        assert gopher_repetition(page(" ".join(words))) == expected


def test_thresholds_are_those_of_table_a1():
    assert MAXIMUM_TOP == {2: 0.20, 3: 0.18, 4: 0.16}
    assert MAXIMUM_DUPLICATE == {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@pytest.mark.parametrize(
    ("copied", "n"), [(19, None), (21, 10), (23, 9), (25, 8), (27, 7), (29, 6), (31, 5)]
)
def test_share_of_copied_words_decides_which_rule_is_broken(copied, n):
    words = different(200 - copied).split()
    expected = None if n is None else f"gopher_duplicate_{n}gram"
    assert gopher_repetition(page(" ".join(words), " ".join(words[:copied]))) == expected
