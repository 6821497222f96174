"""Vocabularies of every script: case goes, and no accent or vowel sign with it; the alphabet is as
large as the text needs.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.backends import albert_backend, bert_backend
from cloze.pipeline.vocab.stage import headline
from tests.pipeline.corpus.corpora import write_corpus
from tests.pipeline.corpus.script_texts import TEXTS
from tests.pipeline.vocab.vocabularies import make, make_with

COMPOSED = {language: unicodedata.normalize("NFC", text) for language, text in TEXTS.items()}
PAIRS = (
    ("fur", "für"),
    ("দশ", "দোশ"),
    ("दवीप", "द्वीप"),
    ("ดวย", "ด้วย"),
    ("まて", "まで"),
    ("כל", "כֻּל"),
    ("αλλα", "ἀλλά"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents = [
        (f"text/{language}/0", [text, " ".join(word for pair in PAIRS for word in pair)])
        for language, text in COMPOSED.items()
    ]
    return write_corpus(tmp_path_factory.mktemp("scripts") / "corpus", documents)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_lowercase_keeps_accents_and_vowel_signs(corpus: str, tmp_path: Path, kind: str) -> None:
    """And the exported tokenizer gives transformers' `AutoTokenizer` the same ids in
    every script.
    """
    made = make(corpus, tmp_path / kind, kind=kind, size=2500, lowercase=True)
    tokenizer = load(made.artifact)
    for without, with_marks in PAIRS:
        assert tokenizer.encode_batch([without]) != tokenizer.encode_batch([with_marks])
    assert tokenizer.encode_batch(["FÜR"]) == tokenizer.encode_batch(["für"])
    assert "lowercase, accents kept, 0.00 % of characters unknown" in headline(
        made.manifest.summary
    )
    theirs = AutoTokenizer.from_pretrained(made.artifact)
    for text in [*COMPOSED.values(), *TEXTS.values()]:
        assert (
            theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch([text])[0]
        )


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_accents_are_removed_where_that_is_asked_for(
    corpus: str, tmp_path: Path, kind: str
) -> None:
    made = make(corpus, tmp_path / kind, kind=kind, size=2500, strip_accents=True)
    tokenizer = load(made.artifact)
    assert tokenizer.encode_batch(["fur"]) == tokenizer.encode_batch(["für"])
    assert "accents and vowel signs removed" in headline(made.manifest.summary)
    theirs = AutoTokenizer.from_pretrained(made.artifact)
    for text in COMPOSED.values():
        assert (
            theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch([text])[0]
        )


def test_an_imported_vocabulary_treats_accents_as_it_was_made(corpus: str, tmp_path: Path) -> None:
    """BERT's uncased release has no piece with an accent, so it removes them; one that has such
    pieces keeps them.
    """
    made = make(corpus, tmp_path / "made", size=2500)
    (tmp_path / "alone.txt").write_bytes((Path(made.artifact) / "vocab.txt").read_bytes())
    alone = make_with({}, tmp_path / "alone", import_path=str(tmp_path / "alone.txt"))
    assert load(alone.artifact).encode_batch(list(COMPOSED.values())) == load(
        made.artifact
    ).encode_batch(list(COMPOSED.values()))
    letters = [
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    ]
    (tmp_path / "bert.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])
    )
    bert = make_with({}, tmp_path / "bert", import_path=str(tmp_path / "bert.txt"))
    assert load(bert.artifact).encode_batch(["Für"]) == load(bert.artifact).encode_batch(["fur"])
    assert "accents and vowel signs removed" in headline(bert.manifest.summary)


def test_the_alphabet_covers_the_text(tmp_path: Path) -> None:
    """Three thousand ideographs, each rarer than the one before: with a thousand of them, 16 % of
    the characters are unknown.
    """
    text = "".join(chr(0x4E00 + rank) * (6000 // (rank + 2) + 1) for rank in range(3000))
    corpus = write_corpus(
        tmp_path / "corpus", [("d", [text[at : at + 500] for at in range(0, len(text), 500)])]
    )
    made = make(corpus, tmp_path / "all", size=12_000)
    assert made.manifest.summary["unknown_characters"] < 0.0002
    cut = make(corpus, tmp_path / "cut", size=12_000, limit_alphabet=1000)
    assert cut.manifest.summary["unknown_characters"] > 0.1
    assert (
        f"{100 * cut.manifest.summary['unknown_characters']:.2f} % of characters unknown"
        in headline(cut.manifest.summary)
    )
    small = make(corpus, tmp_path / "small", size=3600)
    assert sum(len(piece) == 1 for piece in load(small.artifact).backend.get_vocab()) == 1200


@given(st.sampled_from(list(COMPOSED.values())) | st.text(max_size=40))
def test_lowercasing_again_changes_nothing(text: str) -> None:
    """The normalizers are idempotent, and drop no combining mark."""
    for backend in (
        bert_backend({"[UNK]": 0}, True, False),
        albert_backend([("<unk>", 0.0)], 0, True, False),
    ):
        once = backend.normalizer.normalize_str(text)
        assert (
            backend.normalizer.normalize_str(once).split() == once.split()
        )  # BERT's puts blanks around ideographs
        marks = [
            sum(unicodedata.category(letter)[0] == "M" for letter in one) for one in (text, once)
        ]
        assert marks[1] >= marks[0]
