"""Where an English sentence goes on after an end mark, and where it does not: both sides."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.steps.sentences import split_paragraph

LAST = "It rained."


@pytest.mark.parametrize(
    "answer",
    "he she said asked cried replied and or nor but for".split(),
)
def test_a_question_of_small_words_goes_on_with_who_asked_or_a_conjunction(answer: str) -> None:
    asked = f"Did they come home? {answer} the man."
    assert split_paragraph(f"{asked} {LAST}") == [asked, LAST]
    other = f"{answer}x the man."
    assert split_paragraph(f"Did they come home? {other} {LAST}") == [
        "Did they come home?", other, LAST
    ]  # fmt: skip


@pytest.mark.parametrize(
    "whole",
    [
        "The play Who's Afraid of Virginia Woolf? is long.",  # a title's last word is capitalized
        "What a day! said the man.",
        "It was so … and then it was not.",
        "She came with A. b and went.",
        "They met in 5. of those and left.",
        "The film Help! (film) is old.",
        "The film Help! (film), it is said, is old.",
        "The film Help! (film); others are not.",
        "See approx. 5 km of it.",
        "See fig. (5) of it.",
        "See sect. [5] of it.",
        "See sect. #5 of it.",
        "See pp. §5 of it.",
        "See e.g. the cat.",
    ],
)
def test_what_goes_on(whole: str) -> None:
    assert split_paragraph(f"{whole} {LAST}") == [whole, LAST]


@pytest.mark.parametrize(
    "sentences",
    [
        ["The man came.", "they left."],
        ["i wonder whether you know?", "he said so."],  # a writer without capitals
        ["they all do know it!", "yes and no."],
        ["do you all know it! yes and no."],  # but for sentences of up to twenty characters
        ["He saw Help!", "(It was a film.)"],
        ["He saw Help!", "(It was a film) Then he left."],
        ["They bought a big.", "5 km are far."],
    ],
)
def test_what_ends(sentences: list[str]) -> None:
    assert split_paragraph(" ".join([*sentences, LAST])) == [*sentences, LAST]
