"""Many languages: the preset's shares by hand, from dumps in five scripts; questions by language."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.flows.graph.config import load
from cloze.model.tasks.table import TASKS, load_task
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.stage import STAGE as CORPUS

SENTENCES = {
    "de": "Der Fluss fließt langsam durch die alte Stadt und mündet hinter Feld {} ins Meer.",
    "ar": "يجري النهر ببطء عبر المدينة القديمة ويصب وراء الحقل {} في البحر الكبير.",
    "hi": "नदी पुराने शहर से होकर धीरे धीरे बहती है और खेत {} के पार समुद्र में मिलती है।",
    "zh": "河流缓缓穿过古老的城市，在第{}块田野后面流入大海，人们每天都在岸边散步和钓鱼。",
    "ru": "Река медленно течёт через старый город и за полем {} впадает в большое море.",
}
PAGES = {"de": 80, "ru": 40, "zh": 40, "ar": 20, "hi": 10}
EXPONENT = 0.7  # google-research/bert, multilingual.md
PAGE = (
    "<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id>"
    "<model>wikitext</model><format>text/x-wiki</format><text>{text}</text></revision></page>\n"
)


def write_dumps(directory: Path) -> None:
    for language, sentence in SENTENCES.items():
        pages = "".join(
            PAGE.format(
                title=f"{language} {page}",
                number=page + 1,
                text=" ".join(sentence.format(100 * page + line) for line in range(6)),
            )
            for page in range(PAGES[language])
        )
        dump = (
            f'<mediawiki xml:lang="{language}"><siteinfo><dbname>{language}wiki</dbname>'
            f"<base>https://{language}.wikipedia.org/wiki/X</base></siteinfo>\n{pages}</mediawiki>"
        )
        path = directory / f"{language}wiki-20260101-pages-articles.xml.bz2"
        path.write_bytes(bz2.compress(dump.encode()))


def test_the_preset_samples_languages_by_their_size_to_the_power_of_bert(tmp_path: Path) -> None:
    write_dumps(tmp_path)
    sources = [{"kind": "wikipedia", "path": f"{tmp_path}/*.bz2"}]
    stages = load("bert-multilingual", {"corpus": {"sources": sources}}).values
    loose = {"dedup": "none", "minimum_words": 3, "minimum_characters": 10, "heldout_fraction": 0.0}
    config = CorpusConfig.model_validate({**stages["corpus"], **loose})
    result = execute(CORPUS, config, {}, str(tmp_path / "out"))
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    rows = {row["name"]: row for row in card["mixture"]}
    assert rows.keys() == PAGES.keys(), "no article is in a language of its own"
    words = {name: row["available_words"] for name, row in rows.items()}
    total = sum(count**EXPONENT for count in words.values())
    taken = sum(row["words"] for row in rows.values())
    for name, row in rows.items():
        document = words[name] / PAGES[name]
        expected = words[name] ** EXPONENT / total
        assert row["words"] == pytest.approx(taken * expected, abs=1.5 * document), name
        assert row["epochs"] <= 4.01
    # the scarcest is read as often as the preset allows, the largest less than half as often
    assert rows["hi"]["epochs"] == pytest.approx(4, rel=0.05)
    assert rows["de"]["epochs"] < 2.5
    assert result.manifest.counters["kept/documents"] > sum(PAGES.values())


def questions(path: Path, texts: list[str]) -> None:
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(number),
                    "question": text[:9],
                    "answers": [{"text": text[:5].strip(), "answer_start": 0}],
                }
            ],
        }
        for number, text in enumerate(texts)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )


@pytest.mark.parametrize("folder", ["xquad", "."])
def test_a_split_of_xquad_is_a_language_and_train_is_squads(folder: str, tmp_path: Path) -> None:
    for language, sentence in SENTENCES.items():
        if language != "ru":
            questions(tmp_path / folder / f"xquad.{language}.json", [sentence.format(1)])
    questions(tmp_path / "squad" / "train-v1.1.json", ["The river flows.", "It is old."])
    task = load_task("xquad")
    assert len(task.read(str(tmp_path), "train", None)) == 2
    for language, sentence in SENTENCES.items():
        if language == "ru":
            with pytest.raises(DataError, match=r"xquad\.ru\.json does not exist"):
                task.read(str(tmp_path), language, None)
            continue
        (found,) = task.read(str(tmp_path), language, None).references()
        assert found == [sentence[:5].strip()]


def test_mlqas_splits_name_the_languages_of_passage_and_question(tmp_path: Path) -> None:
    for part, passage, question in (
        ("test", "de", "de"),
        ("test", "de", "en"),
        ("dev", "hi", "hi"),
    ):
        name = f"{part}-context-{passage}-question-{question}.json"
        questions(tmp_path / "MLQA_V1" / part / name, [f"{part} {passage} {question} text"])
    task = load_task("mlqa")
    expected = {"de": "test de de", "de-en": "test de en", "dev-hi": "dev hi hi"}
    for split, text in expected.items():
        assert task.read(str(tmp_path), split, None).passages == [f"{text} text"]
    with pytest.raises(DataError, match=r"ko is no split of the task \(choose from ar, ar-de"):
        task.read(str(tmp_path), "ko", None)
    files = TASKS["mlqa"].options["files"]
    assert len(files) == 2 + 7 + 7 + 7 * 6
