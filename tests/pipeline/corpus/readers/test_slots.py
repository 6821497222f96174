"""What a removal leaves in a sentence: slots that are mended, holes that stay, and words that
nobody may touch.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import HOLE_TEMPLATE as T
from cloze.pipeline.corpus.readers.encyclopedia.elements import GAP as S
from cloze.pipeline.corpus.readers.encyclopedia.elements import PHONES as P
from cloze.pipeline.corpus.readers.encyclopedia.elements import close_gaps


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (f"Said ({S}; {S}, {S}; 1935 – 2003) was", "Said (1935 – 2003) was"),
        (f"A ({S}; born 1935 ) b", "A (born 1935) b"),
        (f"the word ({S}) is", "the word is"),
        (f"the word ({S} or {S}).", "the word."),
        (f"a {S} plant{S}, {S} and", "a plant, and"),
        (f"a plant {S}, {S}.", "a plant."),
        (f"A ({S} or, more precisely, a hill) b", "A (more precisely, a hill) b"),
        (f"the ({S} fourth) of", "the (fourth) of"),
        (f"a (b, {S}) c", "a (b) c"),
        (f'he ("{S}"; born) is', "he (born) is"),
        (f'necessary." {S} "The murderer', 'necessary." "The murderer'),
        (f"It costs $5 (${T} in {T} dollars) now.", "It costs $5 now."),
        (f"It costs (5 and {T}) now.", f"It costs (5 and {T}) now."),
        (f"It weighs {T}.", f"It weighs {T}."),
        (f"Arles ({P}; Occitan: Arle) is", "Arles (Occitan: Arle) is"),
        (f"Arles (local {P}) is", "Arles is"),
        (f"The town {P} comes from", "The town comes from"),
        (f"It is pronounced {P} here.", f"It is pronounced {T} here."),
    ],
)
def test_slots_are_closed(raw, expected):
    assert close_gaps(raw) == expected


@pytest.mark.parametrize(
    "text",
    [
        "A mound (or, more precisely, a hill) and a word (and, perhaps, two).",
        "f(x) = [1, 2], main() and [/kæt/] stay",
        "one ... two; a, b, or c; (a, b,) and (; x",
        'He said "" and (,) and ().',
    ],
)
def test_nothing_is_mended_where_nothing_went(text):
    assert close_gaps(text) == text


PIECES = [*'()[];,:." “”«»', "or", "and", "word", "born 1935", "it"]


@given(
    st.lists(st.sampled_from([*PIECES, S, P, T]), max_size=14).map(
        lambda pieces: " ".join("".join(pieces).split())
    )
)
def test_no_slot_is_left_and_no_other_word_goes(text):
    found = close_gaps(text)
    assert S not in found
    assert P not in found
    assert found.count("word") == text.count("word")
    assert found.count("1935") == text.count("1935")


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
def test_without_a_slot_only_blanks_go(text):
    assert close_gaps(text).replace(" ", "") == text.replace(" ", "")
