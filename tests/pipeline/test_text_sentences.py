"""Sentences: nothing is lost between them, and the cases that mattered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text.document import HOLE
from pipeline.text.sentences import split, split_paragraph

LONG_SPEECH = '"I am the one who did it, and I shall do it again one day. He is gone now. We are sad," she said. Then he left.'


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("Mr. Smith met Dr. J. R. R. Tolkien. They spoke.", ["Mr. Smith met Dr. J. R. R. Tolkien.", "They spoke."]),
        ("It cost 3.14 e.g. in Fig. 2. See eq. (3).", ["It cost 3.14 e.g. in Fig. 2.", "See eq. (3)."]),
        ("Vol. 2 has approx. 5 km. Then it ends.", ["Vol. 2 has approx. 5 km.", "Then it ends."]),
        ("Use torch.nn.Linear here. It works.", ["Use torch.nn.Linear here.", "It works."]),
        ('"Are you sure?" he said. "Yes." She left.', ['"Are you sure?" he said.', '"Yes."', "She left."]),
        ("They wouldn't go. Is it? I can't say. Don't.", ["They wouldn't go.", "Is it?", "I can't say.", "Don't."]),
        (LONG_SPEECH, [LONG_SPEECH[:58], "He is gone now.", 'We are sad," she said.', "Then he left."]),
        ("He waited ... and waited. The U.S. Army came.", ["He waited ... and waited.", "The U.S. Army came."]),
    ],
)
def test_cases(paragraph, expected):
    assert split_paragraph(paragraph) == expected


TEXT = st.lists(
    st.sampled_from(["a", "Bc", "e.g.", "3.5", "No.", '"', "'", "don't", ".", "?", "“", "”", "‘", "’", "(", ")", "\xa0", "é"])
)


@given(TEXT.map(" ".join) | st.text())
def test_only_white_space_is_lost(paragraph):
    sentences = split_paragraph(paragraph)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)


def test_paragraphs_and_holes():
    found = split(["One is. Two is.", f"Here {HOLE} is a hole.", f"Whole. A {HOLE} again.", "Last one."])
    assert found.texts == ["One is.", "Two is.", "Whole.", "Last one."]
    assert found.paragraphs == [0, 2, 3]
    assert found.holes == 2
