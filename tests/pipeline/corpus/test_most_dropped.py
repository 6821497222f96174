"""One reason that drops most of a corpus is told with the setting that decides it."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.stage import SETTINGS, most_dropped


@pytest.mark.parametrize(
    ("dropped", "retained", "is_told"),
    [
        ({}, 0, False),
        ({}, 5, False),
        ({"too_short": 5}, 5, False),  # half
        ({"too_short": 6}, 5, True),
        ({"too_short": 6, "too_long": 1}, 5, False),  # what else was dropped counts as read
        ({"too_short": 5, "too_long": 5}, 0, False),
        ({"redirect": 99}, 1, False),  # no setting would keep it
        ({"redirect": 99, "too_short": 2}, 1, True),  # nor is it read
    ],
)
def test_more_than_half_is_told(dropped: dict[str, int], retained: int, is_told: bool) -> None:
    assert bool(most_dropped(dropped, retained)) is is_told


def test_the_sentence() -> None:
    assert most_dropped({"too_short": 6000, "too_long": 1000}, 1000) == (
        "too_short dropped 6,000 of 8,000 documents (75 %): if they are good text, change "
        "corpus.minimum_characters and corpus.minimum_words; card.html shows some of them"
    )


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("not_prose", "minimum_letters"),
        ("too_short", "minimum_characters and corpus.minimum_words"),
        ("too_long", "maximum_characters"),
        ("other_language", "language"),
        ("language_uncertain", "language_probability"),
        ("other_licence", "licences"),
        ("low_quality", "quality_filter_loss"),
        ("blocked_words", "blocked_words"),
        ("personal_data", "personal_data_allowed"),
        ("contaminated", "decontaminate"),
        ("exact_duplicate", "dedup"),
        ("near_duplicate", "dedup_similarity"),
        ("c4_curly_bracket", "c4"),
        ("gopher_top_2_gram", "gopher_repetition"),
        ("gopher_duplicate_lines", "gopher_repetition"),
        ("gopher_words", "gopher_quality"),
    ],
)
def test_each_reason_has_its_setting(reason: str, setting: str) -> None:
    assert f"change corpus.{setting};" in most_dropped({reason: 9}, 0)
    assert any(reason.startswith(name) for name in SETTINGS)


def test_the_settings_are_options_of_a_corpus() -> None:
    for settings in SETTINGS.values():
        for name in settings.replace("corpus.", "").split(" and "):
            assert name in CorpusConfig.model_fields
