"""The vocab stage: the same bytes from every process, and a tokenizer that fits its text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from cloze.core.errors import DataError, UsageError
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.special import SpecialTokens
from cloze.pipeline.vocab.stage import STAGE
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.vocab.vocabularies import CONFIG, make, make_with
from tests.slices import few

GOLDEN = Path(__file__).resolve().parents[2] / "golden.json"

DRIVER = """
import sys
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.stage import STAGE
from cloze.core.stages.execute import execute
for kind, size in (("wordpiece", 300), ("bpe", 400), ("unigram", 150)):
    config = VocabConfig(kind=kind, size=size, sample_bytes=40_000)
    print(execute(STAGE, config, {"corpus": sys.argv[1]}, sys.argv[2] + kind).manifest.content_sha256)
"""
SIZES = {"wordpiece": 300, "bpe": 400, "unigram": 150}


def test_golden(vocab, corpus, tmp_path):
    """If this fails on purpose, raise `VERSION` in pipeline/vocab/stage.py and write the new hash
    to golden.json.
    """
    golden = json.loads(GOLDEN.read_text())["vocab"]
    others = {
        kind: make(
            corpus, tmp_path / kind, **{**CONFIG, "kind": kind, "size": SIZES[kind]}
        ).manifest.content_sha256
        for kind in ("bpe", "unigram")
    }
    assert {
        "version": STAGE.version,
        "content_sha256": vocab.manifest.content_sha256,
        **others,
    } == golden


@pytest.mark.parametrize("threads", few(("1", "4"), "4"))
def test_another_process_gives_the_same_bytes(vocab, corpus, tmp_path, threads):
    """Hugging Face's trainers alone do not: their hash maps are seeded per process."""
    here = [
        make(corpus, tmp_path / kind, **{**CONFIG, "kind": kind, "size": size})
        for kind, size in SIZES.items()
    ]
    expected = [result.manifest.content_sha256 for result in here]
    assert expected[0] == vocab.manifest.content_sha256
    environment = {
        **os.environ,
        "RAYON_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONHASHSEED": threads,
    }
    command = [sys.executable, "-c", DRIVER, corpus, str(tmp_path / threads)]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout.split()
    assert found == expected


def test_shards_and_their_order_do_not_matter(vocab, tmp_path):
    documents = made_documents()
    other = write_corpus(
        tmp_path / "corpus",
        documents[::-1],
        shards=2,
        heldout=[documents[5][0], documents[9][0]],
        scrambled=True,
    )
    assert (
        make(other, tmp_path / "vocab", **CONFIG).manifest.content_sha256
        == vocab.manifest.content_sha256
    )


def test_what_it_holds(vocab):
    tokenizer = load(vocab.artifact)
    lines = (Path(vocab.artifact) / "vocab.txt").read_text().splitlines()
    assert lines[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (
        len(lines)
        == len(set(lines))
        == tokenizer.vocab_size
        == vocab.manifest.summary["size"]
        == 300
    )
    singles = [line for line in lines[5:] if len(line.removeprefix("##")) == 1]
    assert (
        lines[5 : 5 + len(singles)]
        == singles
        == sorted(singles, key=lambda piece: (piece.startswith("##"), piece))
    )
    ids, _ = tokenizer.encode_flat([" ".join(text) for _, text in made_documents()])
    assert tokenizer.special.unk not in ids
    assert tokenizer.lowercase


def test_summary(vocab):
    summary = vocab.manifest.summary
    assert set(summary) >= {"size", "kind", "fertility", "unknown_rate", "sample_bytes"}
    assert 1 <= summary["fertility"] < 3
    assert summary["unknown_rate"] == 0
    longest = max(sum(len(sentence.encode()) for sentence in text) for _, text in made_documents())
    assert 40_000 <= summary["sample_bytes"] < 40_000 + longest


def test_held_out_text_teaches_nothing(tmp_path):
    documents = made_documents(12)
    held = ("books/held.txt/0", ["Zyzzyx qwxyk zyzzyx qwxyk."] * 50)
    kept = make(write_corpus(tmp_path / "a", documents), tmp_path / "va", size=300)
    with_held = make(
        write_corpus(tmp_path / "b", [*documents, held], heldout=[held[0]]),
        tmp_path / "vb",
        size=300,
    )
    assert kept.manifest.content_sha256 == with_held.manifest.content_sha256
    assert with_held.manifest.summary["unknown_rate"] > 0  # q, x and k are not in the alphabet


def test_cased(corpus, tmp_path):
    tokenizer = load(make(corpus, tmp_path, size=300, lowercase=False).artifact)
    assert not tokenizer.lowercase
    assert any(
        piece != piece.lower()
        for piece in tokenizer.backend.get_vocab()
        if not piece.startswith("[")
    )


def test_the_alphabet_is_cut_by_frequency_then_code_point(tmp_path):
    text = ["aaaa bbb cc dd " + "".join(chr(0x4E00 + i) for i in range(20))] * 3
    tokenizer = load(
        make(
            write_corpus(tmp_path / "c", [("d", text)]), tmp_path / "v", size=40, limit_alphabet=7
        ).artifact
    )
    singles = {piece for piece in tokenizer.backend.get_vocab() if len(piece) == 1}
    assert singles == {"a", "b", "c", "d", "\u4e00", "\u4e01", "\u4e02"}


def test_too_small_a_size(corpus, tmp_path):
    with pytest.raises(UsageError, match=r"size \(20\) is too small .* use at least \d+"):
        make(corpus, tmp_path / "v", size=20)


def test_roberta_ids_and_an_honest_size(corpus, tmp_path):
    """Text too small for 50,265 pieces: the mask is the last id all the same."""
    result = make(corpus, tmp_path, kind="bpe")
    tokenizer, summary = load(result.artifact), result.manifest.summary
    assert summary["size"] == tokenizer.vocab_size == result.manifest.rows < 50265
    assert tokenizer.special == SpecialTokens(
        cls=0, pad=1, sep=2, unk=3, mask=tokenizer.vocab_size - 1
    )
    assert summary["kind"] == "bpe"
    assert summary["unknown_rate"] == 0
    assert not tokenizer.lowercase
    vocab = tokenizer.backend.get_vocab()
    assert sorted(vocab.values()) == list(range(tokenizer.vocab_size))
    assert sorted(vocab, key=vocab.__getitem__)[4:260] == sorted(ByteLevel.alphabet())


def test_albert_ids(corpus, tmp_path):
    result = make(corpus, tmp_path, kind="unigram", size=200)
    tokenizer = load(result.artifact)
    assert tokenizer.special == SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    assert tokenizer.vocab_size == result.manifest.summary["size"] <= 200
    assert tokenizer.lowercase
    assert tokenizer.encode_batch(["BA co"]) == tokenizer.encode_batch(["ba co"])
    cased = load(
        make(corpus, tmp_path / "cased", kind="unigram", size=200, lowercase=False).artifact
    )
    assert cased.encode_batch(["Ba"]) != cased.encode_batch(["ba"])


@pytest.mark.parametrize(("kind", "size"), [("bpe", 260), ("unigram", 12)])
def test_too_small_a_size_of_any_kind(corpus, tmp_path, kind, size):
    with pytest.raises(UsageError, match=rf"size \({size}\) is too small .* use at least \d+"):
        make(corpus, tmp_path / "v", kind=kind, size=size)


def test_the_unigram_alphabet_is_cut(tmp_path):
    text = ["aaaa bbb cc dd " + "".join(chr(0x4E00 + i) for i in range(20))] * 3
    artifact = make(
        write_corpus(tmp_path / "c", [("d", text)]),
        tmp_path / "v",
        kind="unigram",
        size=40,
        limit_alphabet=7,
    ).artifact
    vocab = load(artifact).backend.get_vocab()
    assert {piece for piece in vocab if len(piece) == 1} == {
        "a",
        "b",
        "c",
        "d",
        "\u4e00",
        "\u4e01",
        "\u4e02",
        "▁",
    }


def test_import(corpus, vocab, tmp_path):
    source = Path(vocab.artifact) / "vocab.txt"
    alone = make_with({}, tmp_path / "a", import_path=str(source))
    assert load(alone.artifact).backend.get_vocab() == load(vocab.artifact).backend.get_vocab()
    whole = make_with({}, tmp_path / "w", import_path=vocab.artifact)
    assert load(whole.artifact).fingerprint == load(vocab.artifact).fingerprint
    assert alone.manifest.summary["fertility"] is None
    measured = make_with(
        {"corpus": corpus}, tmp_path / "b", import_path=str(source), sample_bytes=40_000
    )
    assert measured.manifest.summary["fertility"] == vocab.manifest.summary["fertility"]
    assert (
        "sample/bytes" not in measured.manifest.counters
    )  # what is taken over learns from nothing
    other = tmp_path / "other.txt"
    other.write_bytes(source.read_bytes())
    assert make_with({}, tmp_path / "a", import_path=str(other)).cached  # by content, not by name
    other.write_bytes(source.read_bytes() + b"more\n")
    with pytest.raises(UsageError, match="made from other settings or inputs"):
        make_with({}, tmp_path / "a", import_path=str(other))
    cased = make_with({}, tmp_path / "c", import_path=str(source), lowercase=False)
    assert not load(cased.artifact).lowercase


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "bpe"}, "is trained on text; give a corpus"),
        ({"import_path": "V", "size": 300}, "size and strip_accents are for training"),
        ({"kind": "bpe", "strip_accents": True, "corpus": "C"}, "strip_accents"),
    ],
)
def test_settings_that_do_not_fit(corpus, vocab, tmp_path, settings, says):
    filled = {
        key: {"V": vocab.artifact}.get(value, value) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    inputs = {"corpus": corpus} if filled.pop("corpus", None) else {}
    with pytest.raises(UsageError, match=says):
        make_with(inputs, tmp_path / "v", **filled)


def test_the_report_is_no_part_of_what_follows(vocab):
    entries = {entry.path: entry.data for entry in vocab.manifest.files}
    assert not entries["report.json"]
    report = json.loads((Path(vocab.artifact) / "report.json").read_text())["tokenizer"]
    assert report["fertility"] == vocab.manifest.summary["fertility"]


def test_unknown_kind(corpus, tmp_path):
    with pytest.raises(
        UsageError,
        match=(
            r"vocab.kind \(found 'wordpeice'\): unknown kind of tokenizer; did you mean 'wordpiece'"
        ),
    ):
        make(corpus, tmp_path / "v", kind="wordpeice")


@pytest.mark.parametrize("documents", [[], [("d", [])], [("d", [" ", ""])]])
def test_a_corpus_without_text(tmp_path, documents):
    with pytest.raises(DataError, match="has no text"):
        make(write_corpus(tmp_path / "c", documents), tmp_path / "v", size=100)


def test_a_damaged_corpus_is_told_by_name(tmp_path):
    corpus = write_corpus(tmp_path / "c", made_documents(3))
    shard = tmp_path / "c/corpus-00000-of-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(DataError, match="corpus-00000-of-00001.arrow is damaged"):
        make(corpus, tmp_path / "v", size=100)
