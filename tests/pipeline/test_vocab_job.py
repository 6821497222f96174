"""The vocab stage: the same bytes from every process, and a tokenizer that fits its text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import DataError, UsageError
from pipeline.jobs.vocab import STAGE, VocabConfig
from pipeline.stage import execute, parse_config
from pipeline.tokenizer import load
from tests.pipeline.corpus_fixture import made_documents, write_corpus

GOLDEN = Path(__file__).resolve().parents[1] / "golden.json"
CONFIG = {"size": 300, "sample_bytes": 40_000}

DRIVER = """
import sys
from pipeline.jobs.vocab import STAGE, VocabConfig
from pipeline.stage import execute
result = execute(STAGE, VocabConfig(size=300, sample_bytes=40_000), {"corpus": sys.argv[1]}, sys.argv[2])
print(result.manifest.content_sha256)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents = made_documents()
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, shards=3, heldout=[documents[5][0], documents[9][0]])


def make(corpus: str, out: Path, **settings):
    return execute(STAGE, parse_config(VocabConfig, settings, "vocab"), {"corpus": corpus}, str(out))


@pytest.fixture(scope="module")
def vocab(corpus: str, tmp_path_factory: pytest.TempPathFactory):
    return make(corpus, tmp_path_factory.mktemp("vocab"), **CONFIG)


def test_golden(vocab):
    """If this fails on purpose, raise `VERSION` in pipeline/jobs/vocab.py and write the new hash to golden.json."""
    golden = json.loads(GOLDEN.read_text())["vocab"]
    assert {"version": STAGE.version, "content_sha256": vocab.manifest.content_sha256} == golden


def test_three_processes_give_the_same_bytes(vocab, corpus, tmp_path):
    """Hugging Face's trainer alone does not: its hash maps are seeded anew in every process."""
    for number, threads in enumerate(("1", "2", "4")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true", "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", DRIVER, corpus, str(tmp_path / str(number))]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
        assert found == vocab.manifest.content_sha256


def test_shards_and_their_order_do_not_matter(vocab, tmp_path):
    documents = made_documents()
    other = write_corpus(
        tmp_path / "corpus", documents[::-1], shards=2, heldout=[documents[5][0], documents[9][0]], scrambled=True
    )
    assert make(other, tmp_path / "vocab", **CONFIG).manifest.content_sha256 == vocab.manifest.content_sha256


def test_what_it_holds(vocab):
    tokenizer = load(vocab.artifact)
    lines = (Path(vocab.artifact) / "vocab.txt").read_text().splitlines()
    assert lines[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(lines) == len(set(lines)) == tokenizer.vocab_size == vocab.manifest.summary["size"] == 300
    singles = [line for line in lines[5:] if len(line.removeprefix("##")) == 1]
    assert lines[5 : 5 + len(singles)] == singles == sorted(singles, key=lambda piece: (piece.startswith("##"), piece))
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
    with_held = make(write_corpus(tmp_path / "b", [*documents, held], heldout=[held[0]]), tmp_path / "vb", size=300)
    assert kept.manifest.content_sha256 == with_held.manifest.content_sha256
    assert with_held.manifest.summary["unknown_rate"] > 0  # q, x and k are not in the alphabet


def test_cased(corpus, tmp_path):
    tokenizer = load(make(corpus, tmp_path, size=300, lowercase=False).artifact)
    assert not tokenizer.lowercase
    assert any(piece != piece.lower() for piece in tokenizer.backend.get_vocab() if not piece.startswith("["))


def test_the_alphabet_is_cut_by_frequency_then_code_point(tmp_path):
    text = ["aaaa bbb cc dd " + "".join(chr(0x4E00 + i) for i in range(20))] * 3
    tokenizer = load(make(write_corpus(tmp_path / "c", [("d", text)]), tmp_path / "v", size=40, limit_alphabet=7).artifact)
    singles = {piece for piece in tokenizer.backend.get_vocab() if len(piece) == 1}
    assert singles == {"a", "b", "c", "d", "\u4e00", "\u4e01", "\u4e02"}


def test_too_small_a_size(corpus, tmp_path):
    with pytest.raises(UsageError, match=r"size \(20\) leaves no room .* use at least \d+"):
        make(corpus, tmp_path / "v", size=20)


def test_unknown_kind(corpus, tmp_path):
    with pytest.raises(
        UsageError, match=r"vocab.kind \(found 'wordpeice'\): unknown kind of tokenizer; did you mean 'wordpiece'"
    ):
        make(corpus, tmp_path / "v", kind="wordpeice")


@pytest.mark.parametrize("documents", [[], [("d", [])], [("d", [" ", ""])]])
def test_a_corpus_without_text(tmp_path, documents):
    with pytest.raises(DataError, match="holds no text"):
        make(write_corpus(tmp_path / "c", documents), tmp_path / "v", size=100)


def test_a_damaged_corpus_is_told_by_name(tmp_path):
    corpus = write_corpus(tmp_path / "c", made_documents(3))
    shard = tmp_path / "c/corpus-00000-of-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(DataError, match="corpus-00000-of-00001.arrow is damaged"):
        make(corpus, tmp_path / "v", size=100)
