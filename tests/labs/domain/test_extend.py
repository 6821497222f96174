"""Vocabularies extended by words: old ids stay, new pieces shorten the text, transformers reads
them alike.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.labs.domain.extend import parse_words
from cloze.labs.domain.extend_vocab import STAGE, ExtendConfig
from cloze.pipeline.tokenizer import load
from tests.flows.commands.test_vocab import command
from tests.pipeline.corpus.corpora import made_documents
from tests.pipeline.vocab.vocabularies import CONFIG, make, write_sample_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_sample_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def vocab(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(corpus, tmp_path_factory.mktemp("vocab"), **CONFIG)


def extend(corpus: str, out: Path, **settings: object) -> BuildResult:
    config = parse_config(ExtendConfig, settings, "extend-vocab")
    return execute(STAGE, config, {"corpus": corpus} if corpus else {}, str(out))


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 80), ("bpe", 270), ("unigram", 60)])
def test_extension(corpus, tmp_path, kind, size):
    base = make(
        corpus, tmp_path / "base", kind=kind, size=size, sample_bytes=40_000, lowercase=True
    )
    listed = tmp_path / "words.txt"
    listed.write_text("Dehapu\n\nzatove\nzatove\n")
    options = {
        "base": base.artifact,
        "add": 12,
        "words_file": str(listed),
        "sample_bytes": 40_000,
    }
    result = extend(corpus, tmp_path / "more", **options)
    old, new, summary = load(base.artifact), load(result.artifact), result.manifest.summary
    before, after = old.backend.get_vocab(), new.backend.get_vocab()
    assert {piece: after[piece] for piece in before} == before
    assert new.special == old.special
    assert sorted(after.values()) == list(range(new.vocab_size))
    assert summary["added_words"][:2] == ["dehapu", "zatove"]
    assert summary["added"] == len(summary["added_words"]) == 14
    assert summary["added_pieces"] == new.vocab_size - old.vocab_size >= 14
    assert summary["fertility"] < summary["fertility_before"]
    rows = [
        line.split("\t")
        for line in (Path(result.artifact) / "added_words.tsv").read_text().splitlines()
    ][1:]
    scores = [int(row[4]) for row in rows[2:]]
    assert scores == sorted(scores, reverse=True)
    for word, number, count, pieces, score in rows:
        assert new.encode_batch([f", {word} ,"])[0].count(int(number)) == 1
        [[*parts]] = [old.encode_flat([word], np.array([True]))[0].tolist()]
        assert (len(parts), int(score)) == (int(pieces), int(count) * (int(pieces) - 1))
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(result.artifact)
    texts = [" ".join(text) for _, text in made_documents(6)]
    assert theirs(texts, add_special_tokens=False)["input_ids"] == new.encode_batch(texts)
    again = extend(corpus, tmp_path / "again", **options)
    assert again.manifest.content_sha256 == result.manifest.content_sha256


def test_extension_saves_what_it_promises(corpus, tmp_path):
    """One WordPiece more shortens the text it was chosen from by its score, but for words that
    begin with it.
    """
    base = make(corpus, tmp_path / "base", size=60, sample_bytes=10**9)
    result = extend(corpus, tmp_path / "more", base=base.artifact, add=1, sample_bytes=10**9)
    [row] = [
        line.split("\t")
        for line in (Path(result.artifact) / "added_words.tsv").read_text().splitlines()
    ][1:]
    held = {made_documents()[5][0], made_documents()[9][0]}
    texts = [" ".join(text) for name, text in made_documents() if name not in held]
    old, new = (len(load(path).encode_flat(texts)[0]) for path in (base.artifact, result.artifact))
    assert old - new >= int(row[4]) > 0


def test_words_that_are_none(corpus, vocab, tmp_path):
    tokenizer = load(vocab.artifact)
    for line in ("two words", "covid-19", "x", "中文", "123", "a.b"):
        with pytest.raises(UsageError) as caught:
            parse_words(tokenizer, ["fine", "", line], "words.txt")
        assert str(caught.value) == (
            f"words.txt, line 3 ({line!r}) is not a single word of letters; correct or remove the "
            f"line"
        )
    assert parse_words(tokenizer, ["fine", " ", " other\n", "fine"], "words.txt") == [
        "fine",
        "other",
    ]
    assert parse_words(tokenizer, [], "words.txt") == []
    listed = tmp_path / "words.txt"
    listed.write_text("fine\ntwo words\n")
    with pytest.raises(UsageError, match=r"words.txt, line 2 .* is not a single word of letters"):
        extend(corpus, tmp_path / "v", base=vocab.artifact, words_file=str(listed))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"add": 3}, "chooses words of a corpus; give one"),
        ({}, "nothing is added: set add"),
    ],
)
def test_settings_that_do_not_fit(vocab, tmp_path, settings, says):
    with pytest.raises(UsageError, match=says):
        extend("", tmp_path / "v", base=vocab.artifact, **settings)


def test_words_that_are_missing_are_said(corpus, vocab, tmp_path, capsys):
    words = ["--corpus", corpus, "--base", vocab.artifact, "--out", str(tmp_path / "all")]
    code, made, _ = command(capsys, *words, "--add", "100000", "--json", name="extend-vocab")
    assert (code, made["added"] + made["missing"]) == (0, 100_000)
    assert STAGE.headline(made).startswith(
        f"{made['added']:,} words added, {made['missing']:,} fewer"
    )
    (tmp_path / "words.txt").write_text("\n \n")
    with pytest.raises(UsageError, match=r"words_file \(.*words.txt\) has no words"):
        extend("", tmp_path / "v", base=vocab.artifact, words_file=str(tmp_path / "words.txt"))


def test_the_command_and_what_follows_take_the_longer_vocabulary(corpus, vocab, tmp_path, capsys):
    longer, data = str(tmp_path / "longer"), str(tmp_path / "data")
    words = ["--corpus", corpus, "--base", vocab.artifact, "--add", "5", "--out", longer]
    code, made, _ = command(capsys, *words, "--json", name="extend-vocab")
    assert (code, made["size"], len(made["added_words"])) == (0, 305, 5)
    rows = ["--corpus", corpus, "--tokenizer", longer, "--length", "32", "--out", data]
    code, dataset, _ = command(capsys, *rows, "--json", name="dataset")
    assert (code, dataset["vocab_size"]) == (0, 305)
    code, _, said = command(capsys, *words[2:4], "--out", data, name="extend-vocab")
    assert code == 2
    assert "nothing is added" in said
