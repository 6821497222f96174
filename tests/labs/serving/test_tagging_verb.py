"""`cloze tag`: where the words of a text are, and its entities with their places, from the
checkpoint's own predictions.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloze.core.errors import UsageError
from cloze.flows.cli import cloze
from cloze.labs.serving.predictors import TokenClassificationPipeline
from cloze.labs.word_vectors import between_spaces, words_of
from tests.model.tasks.columns import sentences, write_columns
from tests.model.tasks.stages import finetune, settings


@pytest.fixture(scope="module")
def ner(pretrained: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("ner")
    for split, count, seed in (("train", 120, 1), ("dev", 20, 2)):
        write_columns(directory / f"{split}.txt", sentences(count, seed, 12))
    finetune(
        settings(directory, task="tagging", epochs=8, baselines=False),
        pretrained,
        directory / "out",
    )
    return str(directory / "out")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "U.N. official Ekeus heads for Baghdad.",
            ["U.N.", "official", "Ekeus", "heads", "for", "Baghdad", "."],
        ),
        ("(\"Chelsea's\") can't", ["(", '"', "Chelsea", "'s", '"', ")", "ca", "n't"]),
        ("AC-DC, 3,000.5% 1996-08-22", ["AC-DC", ",", "3,000.5", "%", "1996-08-22"]),
        ("@paulwalk #tag @ end...", ["@paulwalk", "#tag", "@", "end", ".", ".", "."]),
        ("北京 in हिन्दी", ["北", "京", "in", "हिन्दी"]),
        (" \t\n", []),
        ("a\u00a0b ---", ["a", "b", "-", "-", "-"]),
    ],
)
def test_words_are_found_with_their_places(text, words):
    assert [text[start:end] for start, end in words_of(text)] == words
    assert [text[start:end] for start, end in between_spaces(text)] == text.split()


def test_entities_stand_where_they_are_said_to_be(ner: str):
    tagger = TokenClassificationPipeline(ner)
    text = "the film,good lovely of bad."
    (first, second), nothing, none = tagger.tag_batch([text.replace(",", ", "), "", "the film"])
    assert (first["text"], first["type"], first["start"], first["end"]) == (
        "good lovely",
        "PER",
        10,
        21,
    )
    assert (second["text"], second["type"]) == ("bad", "LOC")
    assert 0.3 < first["score"] <= 1.0
    assert nothing == []
    assert none == []
    assert [tagger.tag("the bad.", words=words)[0]["text"] for words in (False, True)] == [
        "bad",
        "bad.",
    ]
    long = "the " * 200 + "good lovely " + "film " * 200
    (found,) = tagger.tag(long)
    assert found["text"] == "good lovely"
    assert long[found["start"] : found["end"]] == "good lovely"


@pytest.mark.soak
def test_the_verb_answers_with_json_lines(ner: str, tmp_path: Path):
    file = tmp_path / "texts.txt"
    file.write_text("the good film\n\nthe film\n", encoding="utf-8")
    done = CliRunner().invoke(cloze, ["tag", ner, "--file", str(file), "--json"])
    assert done.exit_code == 0, done.output
    first, second = [json.loads(line) for line in done.output.splitlines()]
    assert first == {
        "index": 0,
        "entities": [{**first["entities"][0], "text": "good", "type": "PER", "start": 4, "end": 8}],
    }
    assert second == {"index": 2, "entities": []}


def test_a_checkpoint_that_tags_nothing_is_refused(pretrained: str):
    with pytest.raises(UsageError, match="was pretrained, not fine-tuned"):
        TokenClassificationPipeline(pretrained)
