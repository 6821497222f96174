"""Languages: what is identified, with how much certainty, and what the config makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from py3langid import langid, modelio

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from cloze.pipeline.corpus.steps.filters import language as module
from cloze.pipeline.corpus.steps.filters.language import CERTAIN, SAMPLE, identify, sample

TEXTS = {
    "en": "The city lies on the bank of the river and has about twenty thousand inhabitants. In the "
    "Middle Ages it was an "
    "important place of trade, protected by a wall.",
    "de": "Die Stadt liegt am Ufer des Flusses und hat etwa zwanzigtausend Einwohner. Im Mittelalter "
    "war sie ein bedeutender "
    "Handelsplatz, der durch eine Mauer geschützt wurde.",
    "fr": "La ville est située au bord de la rivière et compte environ vingt mille habitants. Au "
    "Moyen Âge, c'était une place "
    "commerciale importante, protégée par un mur.",
    "es": "La ciudad está situada a orillas del río y tiene unos veinte mil habitantes. En la Edad "
    "Media fue un importante centro "
    "comercial protegido por una muralla.",
    "ru": (
        "Город расположен на берегу реки и насчитывает около двадцати тысяч жителей. В Средние "
        "века это был важный центр."
    ),
    "ja": "この都市は川のほとりに位置し、人口はおよそ二万人である。中世には城壁に守られた重要な交易地であった。",
    "zh": "这座城市位于河岸，约有两万居民。中世纪时它是一个重要的贸易中心，四周有城墙保护。今天它是著名的旅游目的地。",
    "ar": (
        "تقع المدينة على ضفة النهر ويبلغ عدد سكانها حوالي عشرين ألف نسمة. وفي العصور الوسطى كانت "
        "مركزا تجاريا مهما."
    ),
}


@pytest.mark.parametrize("language", TEXTS)
def test_identify(language):
    found, probability = identify(TEXTS[language])
    assert found == language
    assert 0.7 < probability <= 1
    assert probability == round(probability, 3)


@pytest.mark.parametrize("text", ["", "12 34 – 56", "http://www.example.com/the/way", "\ue0ff"])
def test_no_language(text):
    assert identify(text) == ("und", 1.0)


def test_the_sample_is_bounded_and_sees_all_parts():
    text = "a " * 5000 + "b " * 5000 + "c " * 5000
    assert len(sample(text)) <= SAMPLE + 2
    assert set("abc") <= set(sample(text))
    assert sample("short") == "short"
    assert len(sample("x" * 100_000)) <= SAMPLE + 2


def document(language: str) -> Document:
    return Document(id="a", source="jsonl", title="", paragraphs=(TEXTS[language],))


def reason(text: str, **options) -> str | None:
    config = TextConfig(minimum_characters=0, minimum_words=0, **options)
    return run_steps(document(text), build_steps(config)).reason


def test_wanted_language():
    assert reason("en", language_probability=0.9) is None
    assert reason("de", language_probability=0.9) == "other_language"
    assert reason("de", language="de", language_probability=0.9) is None
    assert reason("de") is None  # off by default
    assert reason("zh", language="zh", language_probability=0.999) == "language_uncertain"


def test_every_document_its_own_language():
    config = TextConfig(minimum_characters=0, minimum_words=0, language="auto")
    for language in TEXTS:
        result = run_steps(document(language), build_steps(config))
        assert result.document is not None
        assert result.document.language == language
    assert reason("fr", language="auto", keep_languages=("de", "fr")) is None
    assert reason("es", language="auto", keep_languages=("de", "fr")) == "other_language"


@pytest.mark.parametrize("language", ["", "auto"])
def test_the_probability_is_for_web_sources(language):
    """The other sources keep what is uncertain; with auto, they get a language, too."""
    text = "Sankt Peter Sankt Paul Basel Zürich Montreux de la en" * 4
    config = TextConfig(
        minimum_characters=0, minimum_words=0, minimum_letters=0, language=language,
        keep_languages=[identify(text)[0]] if language else [], language_probability=0.99,
        web_sources=["warc"],
    )  # fmt: skip
    books, warc = (
        run_steps(Document(id="a", source=kind, title="", paragraphs=(text,)), build_steps(config))
        for kind in ("books", "warc")
    )
    assert identify(text)[1] < 0.99
    assert warc.reason in ("language_uncertain", "other_language")
    assert books.document is not None
    assert books.document.language == (identify(text)[0] if language else "")


def test_identification_needs_no_network_and_is_the_same_in_another_process():
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse\n"
        "from cloze.pipeline.corpus.steps.filters.language import identify\n"
        "import sys; print(identify(sys.argv[1]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, TEXTS["fr"]],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "2"},
    ).stdout.strip()
    assert answer == str(identify(TEXTS["fr"]))


def test_most_articles_of_an_english_encyclopedia_are_english(shared_data):
    text = min((shared_data / "wikipedia" / "extracted").iterdir()).read_text(encoding="utf-8")
    articles = [article.split("\n", 2)[-1] for article in text.split("</doc>")]
    found = [identify(article) for article in articles if len(article) > 1000]
    assert len(found) > 50
    assert sum(language == "en" for language, _ in found) > 0.98 * len(found)
    assert sum(
        language == "en" and probability >= 0.99 for language, probability in found
    ) > 0.9 * len(found)


def test_doubt_between_related_languages_is_no_doubt():
    """Indonesian is as probable as Malay, and is certainly none of the others."""
    text = (
        "Mudah-mudahan kita bisa memahami dan mengamalkan Al Quran dan hadits ini. Jangan cuma di "
        "kerongkongan. Jangan lebay dalam mencintai atau membenci sesuatu. "
    )
    name, probability = identify(text)
    assert name in ("id", "ms")
    assert probability >= CERTAIN
    assert identify("12.5 17.3 d. Rockledge Palm Bay 70-44 Tolivert Davis Burgher")[1] < CERTAIN


def test_the_model_in_the_cache_is_the_library_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packed = langid.MODEL_DIR / langid.MODEL_FILE
    expected = modelio.load_model(packed)
    for _ in ("written", "read"):
        for ours, theirs in zip(module._unpacked_model(packed.read_bytes()), expected, strict=True):
            assert type(ours) is type(theirs)
            assert np.array_equal(ours, theirs)
            assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
    (kept,) = (tmp_path / "cloze").iterdir()
    content = kept.read_bytes()
    for damaged in (b"", b"no model", content[: len(content) // 2], content[:-9] + bytes(9)):
        kept.write_bytes(damaged)
        with pytest.raises(module.DAMAGED):
            module._unpacked_model(packed.read_bytes())


@pytest.mark.parametrize("cache", ["damaged", "no directory"])
def test_a_cache_that_cannot_be_used_is_not_needed(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    if cache == "damaged":
        module._unpacked_model((langid.MODEL_DIR / langid.MODEL_FILE).read_bytes())
        next((place / "cloze").iterdir()).write_bytes(b"PK\x03\x04")
    else:
        place.write_text("a file")
    module._identifier.cache_clear()
    assert identify(TEXTS["fr"])[0] == "fr"
    module._identifier.cache_clear()


@pytest.mark.parametrize("stated", ["zh", "la", "vi"])
def test_with_auto_a_source_that_names_its_language_is_believed_and_a_crawl_is_not(
    stated: str,
) -> None:
    """An article that a sample takes for another language would be a language of a mixture."""
    text = TEXTS["de"]
    config = TextConfig(
        minimum_characters=0, minimum_words=0, language="auto", preset="web", c4=False,
        gopher_quality=False, web_sources=["warc"],
    )  # fmt: skip
    for kind, expected in (("wikipedia", stated), ("warc", "de")):
        named = Document(id="a", source=kind, title="", paragraphs=(text,), language=stated)
        result = run_steps(named, build_steps(config))
        assert result.document is not None
        assert result.document.language == expected, kind
