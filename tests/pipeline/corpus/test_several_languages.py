"""Several languages without `--language`: each document is read by the rules of its own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.read.detect_language import LanguageIdentifier, with_detected_language
from cloze.pipeline.corpus.sources import plan_reading
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make, rows
from tests.pipeline.corpus.steps.test_language import TEXTS

ENGLISH = (
    "The mill by the brook is old and was built in the 19th century. It belongs to Mr. Miller and "
    "his family, who have lived there since No. 7 was sold. People come from far to see it"
)
GERMAN = (
    "Am 3. Oktober 1996 wurde die Mühle am Bach neu eröffnet. Der Müller wohnt mit seiner Familie "
    "in der Str. 5 bzw. Nr. 7 und freut sich über jeden Gast, der im 20. Jahrhundert lebte"
)
FRENCH = (
    "Le moulin est au bord de la rivière et il est très vieux. M. Dupont y habite avec sa famille "
    "depuis que la maison a été vendue, et les gens viennent de loin pour le voir"
)
LOOSE: dict[str, Any] = {"dedup": "none", "minimum_words": 3, "minimum_characters": 10}


def write(path: Path, texts: list[str]) -> str:
    lines = [
        json.dumps({"id": f"{number}", "text": f"{text}, {number} times."}, ensure_ascii=False)
        for number, text in enumerate(texts)
    ]
    path.write_text("\n".join(lines))
    return f"jsonl={path}"


def found(result: Any) -> list[list[str]]:
    return [row["sentences"] for row in sorted(rows(result), key=lambda row: str(row["id"]))]


def starts(result: Any) -> set[str]:
    return {sentence.split()[0] for document in found(result) for sentence in document}


@pytest.mark.parametrize("order", ["blocks", "mixed", "german first"])
def test_each_document_has_its_own_rules(tmp_path: Path, order: str) -> None:
    texts = [ENGLISH] * 60 + [GERMAN] * 60
    if order == "mixed":
        Random(1).shuffle(texts)
    elif order == "german first":
        texts.reverse()
    result = make(tmp_path / "out", write(tmp_path / "a.jsonl", texts), **LOOSE)
    assert starts(result) == {"The", "It", "People", "Am", "Der"}
    headline = STAGE.headline(result.manifest.summary)
    assert "the text is in several (de 60, en 60 documents)" in headline
    assert "set --language auto" in headline
    told = make(tmp_path / "told", write(tmp_path / "b.jsonl", texts), language="auto", **LOOSE)
    assert found(told) == found(result)


def test_one_document_in_fifty_has_its_own_rules_too(tmp_path: Path) -> None:
    texts = [ENGLISH] * 149 + [GERMAN]
    result = make(tmp_path / "out", write(tmp_path / "a.jsonl", texts), **LOOSE)
    assert starts(result) == {"The", "It", "People", "Am", "Der"}
    assert result.manifest.counters["language/de"] == 1
    assert "language" not in STAGE.headline(result.manifest.summary)


def test_files_and_sources_of_several_languages(tmp_path: Path) -> None:
    for language, text in (("en", ENGLISH), ("de", GERMAN), ("fr", FRENCH)):
        (tmp_path / language).mkdir()
        for number in range(3):
            (tmp_path / language / f"{number}.txt").write_text(f"{text}, {number} times.")
    names = [f"text={tmp_path}/{language}" for language in ("en", "de", "fr")]
    first, second = (
        make(tmp_path / f"out{number}", *sources, **LOOSE)
        for number, sources in enumerate((names, names[::-1]))
    )
    assert first.manifest.content_sha256 == second.manifest.content_sha256
    assert starts(first) == {"The", "It", "People", "Am", "Der", "Le", "M."}
    counters = first.manifest.counters
    assert {name: n for name, n in counters.items() if name.startswith("language/")} == {
        "language/en": 3, "language/de": 3, "language/fr": 3,
    }  # fmt: skip


def test_a_filter_by_language_keeps_all_major_ones(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [ENGLISH, GERMAN, FRENCH] * 10)
    result = make(tmp_path / "out", source, language_probability=0.9, **LOOSE)
    assert result.manifest.rows == 30
    minor = write(tmp_path / "b.jsonl", [ENGLISH] * 30)
    (tmp_path / "b.jsonl").write_text(
        f"{(tmp_path / 'b.jsonl').read_text()}\n{json.dumps({'text': GERMAN})}"
    )
    result = make(tmp_path / "minor", minor, language_probability=0.9, **LOOSE)
    dropped = result.manifest.summary["dropped"]
    assert dropped in ({}, {"other_language": 1})  # as the sample has it


def test_nothing_that_can_be_told(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [f"Xyz {n} qrst" for n in range(5)])
    result = make(tmp_path / "out", source, **LOOSE, minimum_letters=0.0)
    headline = STAGE.headline(result.manifest.summary)
    assert "none could be told, so English rules were used; set --language" in headline


@pytest.mark.parametrize("main", TEXTS)
def test_the_frequent_words_tell_the_main_language_only(main: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [TEXTS[main]] * 5)
    kind, path = source.split("=", 1)
    values = {"sources": [{"kind": kind, "path": path}]}
    config = parse_config(CorpusConfig, values, "corpus")
    detected = with_detected_language(plan_reading(config.listed())[0], config)
    assert detected.language == ("" if main == "en" else main)
    identifier = pickle.loads(pickle.dumps(detected)).identify
    assert isinstance(identifier, LanguageIdentifier)
    for language, text in TEXTS.items():
        if {main, language} != {"ja", "zh"}:  # a sample of one topic: most characters are the same
            assert identifier(text) in (language, ""), (main, language)


def test_a_language_that_is_set_is_not_looked_for(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [ENGLISH, GERMAN])
    result = make(tmp_path / "out", source, language="en", **LOOSE)
    assert not [name for name in result.manifest.counters if name.startswith("language/")]
    assert "Oktober" in starts(result)


MILL = (
    "Die Mühle am Bach ist ein altes Bauwerk, das im 19. Jahrhundert errichtet wurde und noch "
    "heute steht. "
    "Am 3. Oktober wird sie von vielen Gästen besucht, die den Müller und seine Familie sehen "
    "wollen. "
)


@pytest.mark.parametrize(
    ("settings", "is_split_at_ordinals", "is_told"),
    [({}, False, True), ({"language": "en"}, True, False), ({"language": "de"}, False, False)],
)
def test_the_language_of_the_text_is_found_where_none_is_given(
    tmp_path, settings, is_split_at_ordinals, is_told
):
    texts = [
        {"id": str(number), "text": f"{MILL} Es ist das {number}. Mal."} for number in range(5)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    result = make(
        tmp_path / "out", f"jsonl={tmp_path / 'a.jsonl'}", dedup="none", minimum_words=5, **settings
    )
    sentences = [sentence for row in rows(result) for sentence in row["sentences"]]
    assert any(sentence.startswith("Oktober") for sentence in sentences) is is_split_at_ordinals
    summary = result.manifest.summary
    assert summary.get("language") == ("de" if is_told else None)
    assert ("--language de" in STAGE.headline(summary)) is is_told
