"""The chain of steps: order, counters that add up, presets, and that all of it can go
to a worker.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.base import CleaningResult, RemovedText
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from cloze.pipeline.corpus.steps.clean import repair_text

EVERYTHING = TextConfig(preset="web", language="auto", mask_personal_data=("email", "phone", "ip"))
TEXT = (
    "The river bends to the north of the town, and people have walked along it for years.",
    "Home | About | Contact",
    "In the summer of that year the miller had the wheel taken out and mended with new wood.",
    "He told everybody who came by that it would turn better than it had in all the time before.",
    "The children did not believe him, because they have seen the wheel stand still in every "
    "drought.",
)


def document(*paragraphs: str, source: str = "warc") -> Document:
    return Document(id="a", source=source, title="A title", paragraphs=paragraphs)


def test_default_steps():
    assert [name for name, _ in build_steps(TextConfig())] == [
        "repair",
        "clean",
        "too_long",
        "too_short",
        "letters",
        "sentences",
    ]


def test_all_steps_in_order():
    assert [name for name, _ in build_steps(EVERYTHING)] == [
        "repair", "clean", "too_long", "boilerplate", "c4", "repeated", "too_short", "letters",
        "language", "gopher_quality",
        "gopher_repetition", "personal_data", "sentences",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "step"),
    [
        ({"repair_unicode": False}, "repair"),
        ({"boilerplate": False}, "boilerplate"),
        ({"c4": False}, "c4"),
        ({"drop_repeated_lines": False, "drop_repeated_paragraphs": False}, "repeated"),
        ({"language_probability": 0}, "language"),
        ({"gopher_quality": False}, "gopher_quality"),
        ({"gopher_repetition": False}, "gopher_repetition"),
        ({"minimum_letters": 0}, "letters"),
    ],
)
def test_each_step_can_be_turned_off_in_the_preset(option, step):
    names = [
        name for name, _ in build_steps(TextConfig.model_validate({"preset": "web", **option}))
    ]
    assert step not in names
    assert len(names) == 11


def test_the_preset_is_resolved_and_stays_so():
    config = TextConfig(preset="web", c4=False)
    assert (config.c4, config.gopher_quality, config.language_probability) == (False, True, 0.99)
    assert TextConfig.model_validate(config.model_dump(mode="json")) == config


def test_languages_need_auto():
    with pytest.raises(ValidationError, match="language: auto"):
        TextConfig(keep_languages=("de",))
    with pytest.raises(ValidationError, match="ISO 639"):
        TextConfig(language="auto", keep_languages=("German",))


def test_a_config_goes_to_a_worker_and_its_steps_do_the_same():
    steps = build_steps(EVERYTHING)
    again = build_steps(pickle.loads(pickle.dumps(EVERYTHING)))
    assert run_steps(document(*TEXT), again) == run_steps(document(*TEXT), steps)


def test_result_and_observer():
    seen = []
    config = TextConfig(preset="web", minimum_characters=10)
    result = run_steps(
        document(*TEXT, "Share this"), build_steps(config), lambda *told: seen.append(told)
    )
    assert result.document is not None
    assert result.document.paragraphs == (TEXT[0], *TEXT[2:])
    assert result.document.language == "en"
    assert [removed.reason for removed in result.removed] == [
        "boilerplate_navigation",
        "boilerplate_share",
    ]
    assert [name for name, _, _ in seen] == [name for name, _ in build_steps(config)]
    for (_, _, told), (_, before, _) in zip(seen[:-1], seen[1:], strict=True):
        assert told.document == before
    short = run_steps(document("Too short."), build_steps(config))
    assert short == CleaningResult(
        None, "c4_few_sentences", (RemovedText("c4_few_words", "Too short."),)
    )


def test_web_rules_for_some_sources():
    config = TextConfig(preset="web", web_sources=("warc",), minimum_characters=10, minimum_words=2)
    lines = ("Share this", "A heading of some words", "One sentence is all that stands here.")
    kept = run_steps(document(*lines, source="books"), build_steps(config))
    assert kept.document == document(*lines, source="books")
    assert run_steps(document(*lines), build_steps(config)).reason == "c4_few_sentences"


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_text_gives_a_document_or_a_reason(paragraphs):
    config = TextConfig(
        preset="web", minimum_characters=0, minimum_words=0, minimum_letters=0,
        language_probability=0, c4=False,
        gopher_quality=False, mask_personal_data=("email", "phone", "ip"),
    )  # fmt: skip
    result = run_steps(document(*paragraphs), build_steps(config))
    assert (result.document is None) == (result.reason is not None)
    if result.document is not None:
        assert run_steps(result.document, build_steps(config)).reason is None
        assert len(result.document.paragraphs) <= len(paragraphs)
        assert all(text and "\n" not in text for text in result.document.paragraphs)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("donâ€™t", "don’t"),
        ("It\x92s \x93here\x94", "It’s “here”"),
        ("cafÃ©", "café"),
        ("PiÃ¹ Ã¨ perchÃ©", "Più è perché"),
        ("РџСЂРёРІРµС‚ РјРёСЂ", "Привет мир"),
    ],
)
def test_repair(wrong, right):
    assert repair_text(wrong) == right
    assert repair_text(right) == right


@pytest.mark.parametrize(
    "text",
    [
        "naïve Ångström",
        "CAFÉ… “MAÎTRE”",
        "Ã la carte",
        "Россия",
        "日本語",
        "L’été à São Paulo — £5",
        "×½",
    ],
)
def test_text_that_is_right_is_not_repaired(text):
    assert repair_text(text) == text


def test_on_crawled_pages(shared_data):
    steps = build_steps(TextConfig(preset="web", c4_end_marks=True))
    counts: Counter[str | None] = Counter()
    removed: Counter[str] = Counter()
    for path in sorted((shared_data / "web").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                result = run_steps(
                    Document(
                        id=entry["id"],
                        source="jsonl",
                        title="",
                        paragraphs=tuple(entry["text"].split("\n")),
                    ),
                    steps,
                )
                counts[result.reason] += 1
                removed.update(one.reason for one in result.removed)
    assert counts[None] > 15
    assert counts["c4_few_sentences"] >= 1
    assert removed["c4_no_end_mark"] > 10
