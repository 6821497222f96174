"""Words of a list that the user gives: found whole, whatever their case; documents or paragraphs
go, and are counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.filters.blocked_words import (
    REASON,
    STEP,
    BlockedWordsOptions,
    WordList,
    read_list,
)
from tests.pipeline.corpus.corpora import make, rows


@pytest.fixture
def words(tmp_path: Path) -> str:
    (tmp_path / "words.txt").write_text(
        "# a remark\nDarn\nson of a gun\n\nstraße\nばか\n", encoding="utf-8"
    )
    return str(tmp_path / "words.txt")


def step(words: str, **values: Any) -> Any:
    return STEP.build(
        parse_config(BlockedWordsOptions, {"blocked_words": words, **values}, "corpus")
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Well, DARN it, darn.", 2),
        ("Darning socks, undarned.", 0),
        ("A Son of a Gun, and the son of a gunner.", 1),
        ("Die STRASSE war leer.", 1),
        ("おばかさん", 1),
        ("他说darn了", 1),
        ("他说undarn了", 0),
        ("son of他a gun", 0),
        ("a remark # darn-ed", 0),
        ("", 0),
    ],
)
def test_whole_words_and_phrases_are_found(words: str, text: str, count: int) -> None:
    assert WordList.of(Path(words).read_text(encoding="utf-8").splitlines()).count(text) == count


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("darn\n傻瓜\n", encoding="utf-8-sig")
    assert read_list(str(path)).count("Darn!") == 1
    path = tmp_path / "others.txt"
    path.write_text("傻瓜\n", encoding="utf-8-sig")
    assert read_list(str(path)).count("你是傻瓜吗") == 1


def document(*paragraphs: str) -> Document:
    return Document(id="a", source="text", title="", paragraphs=paragraphs)


def test_documents_or_paragraphs_go(words: str) -> None:
    found = document("All is well.", "Darn, it is not.", "Darn, darn.")
    assert step(words)(found).reason == REASON
    assert step(words)(document("All is well.")).document is not None
    assert step(words, blocked_words_allowed=3)(found).document == found
    left = step(words, blocked_words_unit="paragraph")(found)
    assert left.document.paragraphs == ("All is well.",)
    assert [(one.reason, one.text) for one in left.removed] == [
        (REASON, text) for text in found.paragraphs[1:]
    ]
    assert (
        step(words, blocked_words_unit="paragraph", blocked_words_allowed=1)(
            found
        ).document.paragraphs
        == found.paragraphs[:2]
    )
    assert step(words, blocked_words_unit="paragraph")(document("Darn.")).reason == REASON


def test_the_list_is_part_of_the_corpus(words: str, tmp_path: Path) -> None:
    for name, text in (
        ("good", ("This is a fine day for a walk in the park, and nobody minds the rain at all.")),
        (
            "bad",
            ("This darn day was no good for a walk in the park, and everybody minded the rain."),
        ),
    ):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(" ".join([text] * 4))
    made = make(
        tmp_path / "one",
        f"text={tmp_path}/texts",
        blocked_words=words,
        minimum_characters=10,
        minimum_words=3,
    )
    assert ["good" in one["id"] for one in rows(made)] == [True]
    assert made.manifest.counters["dropped/blocked_words"] == 1
    (tmp_path / "other.txt").write_text("nothing\n")
    other = make(
        tmp_path / "two",
        f"text={tmp_path}/texts",
        blocked_words=str(tmp_path / "other.txt"),
        minimum_characters=10,
        minimum_words=3,
    )
    assert len(rows(other)) == 2
    assert other.manifest.fingerprint != made.manifest.fingerprint


def test_a_bad_list_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    for name, sentence in (
        ("empty.txt", "contains no words"),
        ("bytes.txt", r"bytes\.txt is not UTF-8 at byte 0; blocked_words takes"),
        ("no.txt", "does not exist"),
    ):
        with pytest.raises(DataError, match=sentence):
            step(str(tmp_path / name))
    with pytest.raises(UsageError, match="need blocked_words"):
        parse_config(BlockedWordsOptions, {"blocked_words_allowed": 2}, "corpus")
