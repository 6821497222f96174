"""Text in every script goes through the corpus stage whole: letters, words, hashes, task texts,
blocked words, warnings.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.words import split_words
from cloze.pipeline.corpus import signatures
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.explain import diff_paragraphs
from cloze.pipeline.corpus.signatures import jaccard, signature
from cloze.pipeline.corpus.stage import headline
from cloze.pipeline.corpus.steps.filters.blocked_words import WordList
from cloze.pipeline.corpus.steps.filters.documents import letter_share
from cloze.pipeline.corpus.steps.filters.gopher import gopher_quality, gopher_repetition
from cloze.pipeline.corpus.steps.filters.lines import remove_repeated
from cloze.pipeline.corpus.steps.task_index import TaskIndex
from tests.pipeline.corpus.corpora import make, rows
from tests.pipeline.corpus.script_texts import TEXTS

LANGUAGES = list(TEXTS)
ANY_TEXT = st.sampled_from(LANGUAGES).map(TEXTS.__getitem__) | st.text(max_size=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for language, text in TEXTS.items():
        (tmp_path / "texts" / f"{language}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def document(*paragraphs: str) -> Document:
    return Document(id="a", source="warc", title="", paragraphs=paragraphs)


def test_every_script_survives_the_default_corpus_stage(folder: Path) -> None:
    """Nothing is dropped, no character is lost, and a text of some fifty words counts as such in
    every script.
    """
    made = make(folder / "corpus", f"text={folder}/texts")
    assert made.manifest.summary["dropped"] == {}
    assert made.manifest.summary["dropped_lines"] == {}
    found = {Path(row["title"] or row["id"]).stem: row["sentences"] for row in rows(made)}
    letters = {name: "".join("".join(sentences).split()) for name, sentences in found.items()}
    expected = {
        name: "".join(unicodedata.normalize("NFC", text).split()) for name, text in TEXTS.items()
    }
    assert sorted(letters.values()) == sorted(expected.values())
    assert 40 * len(TEXTS) < made.manifest.summary["words"] < 75 * len(TEXTS)


def test_the_rules_for_web_pages_keep_every_script() -> None:
    """Gopher's rules, and the removal of repeated lines, leave prose alone."""
    for language, text in TEXTS.items():
        page = document(text, " ".join(text.split()[::-1]) if " " in text[:20] else text[::-1])
        assert (language, gopher_quality(page, language=language)) == (language, None)
        assert (language, gopher_repetition(document(text))) == (language, None)
        assert remove_repeated(page).document == page


def test_lines_that_differ_in_a_vowel_sign_are_two() -> None:
    lines = ("बाल", "बिल", "बुल", "कल", "कील")
    assert remove_repeated(document(*lines)).document.paragraphs == lines


@pytest.mark.parametrize("language", LANGUAGES)
def test_prose_is_letters(language: str) -> None:
    assert letter_share(TEXTS[language]) > 0.85


@given(ANY_TEXT)
def test_composed_or_not_a_text_is_the_same(text: str) -> None:
    """Hashes and n-grams do not depend on Unicode's normalization form."""
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert signatures.normalize_words(composed) == signatures.normalize_words(decomposed)
    assert signature(composed).exact == signature(decomposed).exact


@given(ANY_TEXT)
def test_words_of_words_are_the_same(text: str) -> None:
    """What is normal stays so; every letter and mark of the text is in a word."""
    once = signatures.normalize_words(text)
    assert signatures.normalize_words(once.decode("utf-8", "surrogatepass")) == once


def test_words_of_one_vowel_sign_less_are_other_words() -> None:
    assert len({signature(word).exact for word in ("बाल", "बिल", "बुल", "बल")}) == 4
    assert len({signature(word).exact for word in ("ก้า", "กา", "ก่า")}) == 3
    assert signature("می‌خواهم").exact == signature("میخواهم").exact  # a joiner is no letter


@pytest.mark.parametrize("language", LANGUAGES)
def test_thirteen_words_are_as_much_text_in_every_script(language: str) -> None:
    """An n-gram of thirteen words is 35 to 130 characters; one of five, MinHash's, covers no more
    than a clause.
    """
    words = signatures.WordSequence(signatures.normalize_words(TEXTS[language]))
    length = len(words.text(0, 13).replace(" ", ""))
    square = 2 if language in ("zh", "ja", "ko") else 1
    assert 35 <= square * length <= 130
    assert 40 <= words.count <= 80


@pytest.mark.parametrize("language", LANGUAGES)
def test_task_text_is_found_wherever_a_quotation_begins(language: str) -> None:
    """In the other normalization form, too; text of other tasks in the same script is not found."""
    text = TEXTS[language]
    index = TaskIndex.build([("task", text)])
    cut = text[len(text) // 8 : -len(text) // 8]
    words = cut.split()
    quotation = " ".join(words[1:-1]) if len(words) > 20 else cut
    assert index.find(unicodedata.normalize("NFD", f"— {quotation} —")) is not None
    assert index.find(unicodedata.normalize("NFC", quotation)) is not None
    backwards = " ".join(quotation.split()[::-1]) if len(words) > 20 else quotation[::-1]
    assert index.find(backwards) is None


def test_no_unrelated_text_is_contaminated() -> None:
    """Two texts about other things share function words, and no thirteen words in a row."""
    index = TaskIndex.build([("task", ("นกสีฟ้าตัวหนึ่งบินข้ามภูเขาไปหาอาหารให้ลูกของมันที่รออยู่ในรังบนต้นไม้ใหญ่"))])
    assert index.find(TEXTS["th"]) is None
    assert list(index.tables) == [13]


@pytest.mark.parametrize(
    ("listed", "text", "count"),
    [
        ("बाल", "बिल और बुल", 0),
        ("बाल", "बाल, बाल और बालक", 2),
        ("cafe", unicodedata.normalize("NFD", "Café"), 0),
        (unicodedata.normalize("NFD", "café"), "Ein Café, ein cafe.", 1),
        ("café", unicodedata.normalize("NFD", "Café"), 1),
        ("กา", "ก้าวไปข้างหน้า", 0),
        ("กา", "อีกาดำ", 1),
        ("ก", "กำ ก้อน", 1),
        ("മല", "മലയാളം മല", 1),
        ("မြို", "မြို့", 0),
    ],
)
def test_blocked_words_have_their_marks(listed: str, text: str, count: int) -> None:
    assert WordList.of([listed]).count(text) == count


def test_changes_are_shown_by_whole_words() -> None:
    """`cloze explain` cuts no word at its vowel signs."""
    (change,) = diff_paragraphs(["यह हिन्दी भाषा है"], ["यह हिन्दू भाषा है"])
    assert ("-", "हिन्दी") in change.pieces
    assert ("+", "हिन्दू") in change.pieces


def test_the_last_line_names_the_reason_that_drops_most(folder: Path) -> None:
    """And what to do about it; where no reason drops most, it says nothing."""
    made = make(folder / "corpus", f"text={folder}/texts", minimum_letters=0.0)
    assert "most" not in headline(made.manifest.summary)
    (folder / "texts" / "long.txt").write_text(
        "The river is wide and the town is old, as all the people say. " * 20, encoding="utf-8"
    )
    made = make(folder / "few", f"text={folder}/texts", minimum_words=100)
    told = headline(made.manifest.summary)
    assert f"too_short dropped {len(TEXTS)} of {len(TEXTS) + 1} documents" in told
    assert "corpus.minimum_words" in told


def test_few_rows_are_said_in_the_last_line() -> None:
    from cloze.model.train.stage import headline as of_training
    from cloze.pipeline.dataset.stage import headline as of_dataset

    dataset = {"rows": 12, "tokens": 900, "shards": 1}
    assert "only 12 rows" in of_dataset(dataset)
    assert "only" not in of_dataset({**dataset, "rows": 5000})
    training = {"loss": 1.0, "tokens_per_second": 100.0, "rows": 12, "epochs": 4266.7}
    assert "its 12 rows were read 4,267 times" in of_training(training)
    assert "rows" not in of_training({**training, "epochs": 40.0})


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_changed_word_makes_texts_as_unlike_in_every_script(language: str) -> None:
    """MinHash's similarity of a text of some fifty words and a copy with one other word: (46 - 5) /
    (46 + 5) = .80.
    """
    text = TEXTS[language]
    words = split_words(text)
    middle = words[len(words) // 2]
    assert 0.65 < jaccard(text, text.replace(middle, middle[::-1] + middle[:1], 1)) < 0.95
