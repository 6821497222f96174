"""`--explain`: every step that a document went through, told as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.config import parse_config
from pipeline.core.errors import UsageError
from pipeline.corpus.explain import explain
from pipeline.corpus.stage import CorpusConfig
from pipeline.corpus.text_changes import changes
from tests.pipeline.corpus.test_rejects import make, prose, rows


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    texts = {
        "Whole": prose(1) + "\n\nWith a soft\u00adhyphen  and   blanks in it.",
        "Longer": prose(1) + "\n\nWith a soft hyphen and blanks in it.\n\nAnd one line that makes it longer.",
        "Short": "Too short.",
        "Alone": prose(5),
        "Asked": prose(6) + "\n\nHere stands the question of the task that nobody may read in the corpus before it is asked.",
    }
    path = tmp_path_factory.mktemp("explain") / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"id": name.lower(), "title": name, "text": text}) + "\n" for name, text in texts.items())
    )
    return path


def config(source, **settings):
    return parse_config(CorpusConfig, {"sources": [{"kind": "jsonl", "path": str(source)}], **settings}, "corpus")


def test_a_copy_names_what_stays(source):
    found = explain(config(source), "WHOLE")
    assert (found.outcome, found.split) == ("near_duplicate", "")
    assert (found.copy_of.title, found.copy_of.id) == ("Longer", "jsonl/a.jsonl/longer")
    assert found.copy_of.similarity > 0.7
    clean = next(step for step in found.steps if step.name == "clean")
    assert any(sign == "-" and "\u00ad" in text for change in clean.changes for sign, text in change.pieces)
    assert found.sentences[-1] == "With a softhyphen and blanks in it."
    other = explain(config(source), "jsonl/a.jsonl/longer")
    assert (other.outcome, other.copies_in_all, other.copies[0].title) == ("kept", 1, "Whole")


def test_a_drop_names_its_step(source):
    found = explain(config(source), "short")
    assert (found.outcome, found.steps[-1].reason, found.sentences) == ("too_short", "too_short", [])
    kept = explain(config(source, minimum_characters=0, minimum_words=0, dedup="none"), "short")
    assert kept.outcome == "kept"
    assert kept.split in ("train", "heldout")


def test_text_of_a_task_is_shown(source, tmp_path):
    task = tmp_path / "dev.txt"
    task.write_text("Here stands the question of the task that nobody may read in the corpus before it is asked.\n")
    found = explain(config(source, decontaminate=str(task)), "Asked")
    assert found.outcome == "contaminated"
    assert found.steps[-1].name == "decontaminate"
    assert found.steps[-1].detail.startswith("dev.txt: “here stands the question of the task")


def test_it_says_what_the_stage_does(source, tmp_path):
    result = make(tmp_path / "out", f"jsonl={source}")
    kept = {row["title"]: row["sentences"] for row in rows(result)}
    for title in ("Whole", "Longer", "Short", "Alone", "Asked"):
        found = explain(config(source), title)
        assert (found.outcome == "kept") == (title in kept)
        if title in kept:
            assert found.sentences == kept[title]


def test_no_such_document(source):
    with pytest.raises(UsageError, match=r"no document of the title or id 'Longest' among the 5 .*nearest titles: 'Longer'"):
        explain(config(source), "Longest")


@given(st.lists(st.text(alphabet="ab ", max_size=8), max_size=6), st.lists(st.text(alphabet="ab ", max_size=8), max_size=6))
@example(before=[" ", ""], after=["a ", ""])  # all of a paragraph is the end that stayed
def test_changes_tell_every_difference(before, after):
    found = changes(before, after)
    assert (found == []) == (before == after)
    for change in found:
        if change.kind == "changed":
            assert "".join(text for sign, text in change.pieces if sign in "=-") in before[change.paragraph - 1]
            assert any(sign in "+-" for sign, _ in change.pieces)


def test_a_change_is_short():
    long = "word " * 400
    (found,) = changes([long + "here it was." + long], [long + "here it is." + long])
    assert [(sign, text) for sign, text in found.pieces if sign in "+-"] == [("-", "was"), ("+", "is")]
    assert sum(len(text) for _, text in found.pieces) < 150
    (found,) = changes(["x" * 30_000], ["y" * 30_000])
    assert sum(len(text) for _, text in found.pieces) < 150
