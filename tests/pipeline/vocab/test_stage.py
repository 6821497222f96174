"""The vocab stage: the same bytes from every process, and a tokenizer that fits its text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from pipeline.core.config import parse_config
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execute import execute
from pipeline.tokenizer import load
from pipeline.tokenizer.special import SpecialTokens
from pipeline.vocab.measure import measure
from pipeline.vocab.stage import STAGE, VocabConfig
from tests.pipeline.corpus.corpora import made_documents, write_corpus

GOLDEN = Path(__file__).resolve().parents[2] / "golden.json"
CONFIG = {"size": 300, "sample_bytes": 40_000}

DRIVER = """
import sys
from pipeline.vocab.stage import STAGE, VocabConfig
from pipeline.core.execute import execute
for kind, size in (("wordpiece", 300), ("bpe", 400), ("unigram", 150)):
    config = VocabConfig(kind=kind, size=size, sample_bytes=40_000)
    print(execute(STAGE, config, {"corpus": sys.argv[1]}, sys.argv[2] + kind).manifest.content_sha256)
"""
SIZES = {"wordpiece": 300, "bpe": 400, "unigram": 150}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents = made_documents()
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, shards=3, heldout=[documents[5][0], documents[9][0]])


def make(corpus: str, out: Path, **settings):
    return execute(STAGE, parse_config(VocabConfig, settings, "vocab"), {"corpus": corpus}, str(out))


def make_with(inputs: dict[str, str], out: Path, **settings):
    return execute(STAGE, parse_config(VocabConfig, settings, "vocab"), inputs, str(out))


@pytest.fixture(scope="module")
def vocab(corpus: str, tmp_path_factory: pytest.TempPathFactory):
    return make(corpus, tmp_path_factory.mktemp("vocab"), **CONFIG)


def test_golden(vocab, corpus, tmp_path):
    """If this fails on purpose, raise `VERSION` in pipeline/vocab/stage.py and write the new hash to golden.json."""
    golden = json.loads(GOLDEN.read_text())["vocab"]
    others = {
        kind: make(corpus, tmp_path / kind, **{**CONFIG, "kind": kind, "size": SIZES[kind]}).manifest.content_sha256
        for kind in ("bpe", "unigram")
    }
    assert {"version": STAGE.version, "content_sha256": vocab.manifest.content_sha256, **others} == golden


def test_three_processes_give_the_same_bytes(vocab, corpus, tmp_path):
    """Hugging Face's trainers alone do not: their hash maps are seeded anew in every process."""
    here = [make(corpus, tmp_path / kind, **{**CONFIG, "kind": kind, "size": size}) for kind, size in SIZES.items()]
    expected = [result.manifest.content_sha256 for result in here]
    assert expected[0] == vocab.manifest.content_sha256
    for number, threads in enumerate(("1", "4")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true", "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", DRIVER, corpus, str(tmp_path / str(number))]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
        assert found == expected


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


def test_roberta_ids_and_an_honest_size(corpus, tmp_path):
    """Text too small for 50,265 pieces: the mask is the last id all the same."""
    result = make(corpus, tmp_path, kind="bpe")
    tokenizer, summary = load(result.artifact), result.manifest.summary
    assert summary["size"] == tokenizer.vocab_size == result.manifest.rows < 50265
    assert tokenizer.special == SpecialTokens(cls=0, pad=1, sep=2, unk=3, mask=tokenizer.vocab_size - 1)
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
    assert tokenizer.encode_batch(["BÁ co"]) == tokenizer.encode_batch(["ba co"])
    cased = load(make(corpus, tmp_path / "cased", kind="unigram", size=200, lowercase=False, strip_accents=False).artifact)
    assert cased.encode_batch(["Ba"]) != cased.encode_batch(["ba"])


@pytest.mark.parametrize(("kind", "size"), [("bpe", 260), ("unigram", 12)])
def test_too_small_a_size_of_any_kind(corpus, tmp_path, kind, size):
    with pytest.raises(UsageError, match=rf"size \({size}\) leaves no room .* use at least \d+"):
        make(corpus, tmp_path / "v", kind=kind, size=size)


def test_the_unigram_alphabet_is_cut(tmp_path):
    text = ["aaaa bbb cc dd " + "".join(chr(0x4E00 + i) for i in range(20))] * 3
    artifact = make(
        write_corpus(tmp_path / "c", [("d", text)]), tmp_path / "v", kind="unigram", size=40, limit_alphabet=7
    ).artifact
    vocab = load(artifact).backend.get_vocab()
    assert {piece for piece in vocab if len(piece) == 1} == {"a", "b", "c", "d", "\u4e00", "\u4e01", "\u4e02", "▁"}


def test_import(corpus, vocab, tmp_path):
    source = Path(vocab.artifact) / "vocab.txt"
    alone = make_with({}, tmp_path / "a", import_path=str(source))
    assert load(alone.artifact).fingerprint == load(vocab.artifact).fingerprint
    assert alone.manifest.summary["fertility"] is None
    measured = make_with({"corpus": corpus}, tmp_path / "b", import_path=str(source), sample_bytes=40_000)
    assert measured.manifest.summary["fertility"] == vocab.manifest.summary["fertility"]
    other = tmp_path / "other.txt"
    other.write_bytes(source.read_bytes())
    assert make_with({}, tmp_path / "a", import_path=str(other)).cached  # by content, not by name
    other.write_bytes(source.read_bytes() + b"more\n")
    with pytest.raises(UsageError, match="made from other settings or inputs"):
        make_with({}, tmp_path / "a", import_path=str(other))
    cased = make_with({}, tmp_path / "c", import_path=str(source), lowercase=False)
    assert not load(cased.artifact).lowercase


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 80), ("bpe", 270), ("unigram", 60)])
def test_extension(corpus, tmp_path, kind, size):
    base = make(corpus, tmp_path / "base", kind=kind, size=size, sample_bytes=40_000, lowercase=True)
    listed = tmp_path / "words.txt"
    listed.write_text("Dehapu\n\nzatove\nzatove\n")
    options = {"extend_path": base.artifact, "add": 12, "words_path": str(listed), "sample_bytes": 40_000}
    result = make(corpus, tmp_path / "more", **options)
    old, new, summary = load(base.artifact), load(result.artifact), result.manifest.summary
    before, after = old.backend.get_vocab(), new.backend.get_vocab()
    assert {piece: after[piece] for piece in before} == before
    assert new.special == old.special
    assert sorted(after.values()) == list(range(new.vocab_size))
    assert summary["added_words"][:2] == ["dehapu", "zatove"]
    assert summary["added"] == len(summary["added_words"]) == 14
    assert summary["added_pieces"] == new.vocab_size - old.vocab_size >= 14
    assert summary["fertility"] < summary["fertility_before"]
    rows = [line.split("\t") for line in (Path(result.artifact) / "added_words.tsv").read_text().splitlines()][1:]
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
    again = make(corpus, tmp_path / "again", **options)
    assert again.manifest.content_sha256 == result.manifest.content_sha256


def test_extension_saves_what_it_promises(corpus, tmp_path):
    """One WordPiece more shortens the text it was chosen from by its score, but for words that begin with it."""
    base = make(corpus, tmp_path / "base", size=60, sample_bytes=10**9)
    result = make(corpus, tmp_path / "more", extend_path=base.artifact, add=1, sample_bytes=10**9)
    [row] = [line.split("\t") for line in (Path(result.artifact) / "added_words.tsv").read_text().splitlines()][1:]
    held = {made_documents()[5][0], made_documents()[9][0]}
    texts = [" ".join(text) for name, text in made_documents() if name not in held]
    old, new = (len(load(path).encode_flat(texts)[0]) for path in (base.artifact, result.artifact))
    assert old - new >= int(row[4]) > 0


def test_words_that_are_none(corpus, vocab, tmp_path):
    listed = tmp_path / "words.txt"
    for line in ("two words", "covid-19", "x", "中文"):
        listed.write_text(f"fine\n{line}\n")
        with pytest.raises(UsageError, match=r"words.txt, line 2 .* is no single word of letters"):
            make(corpus, tmp_path / "v", extend_path=vocab.artifact, words_path=str(listed))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "bpe"}, "is learned from text; give a corpus"),
        ({"extend_path": "V", "add": 3}, "chooses words of a corpus; give one"),
        ({"extend_path": "V"}, "needs words"),
        ({"add": 3}, "need extend_path"),
        ({"extend_path": "V", "import_path": "V", "add": 1}, "exclude each other"),
        ({"import_path": "V", "size": 300}, "size and strip_accents are for training"),
        ({"kind": "bpe", "strip_accents": True, "corpus": "C"}, "strip_accents"),
    ],
)
def test_settings_that_do_not_fit(corpus, vocab, tmp_path, settings, says):
    filled = {
        key: {"V": vocab.artifact}.get(value, value) if isinstance(value, str) else value for key, value in settings.items()
    }
    inputs = {"corpus": corpus} if filled.pop("corpus", None) else {}
    with pytest.raises(UsageError, match=says):
        make_with(inputs, tmp_path / "v", **filled)


def test_the_report_is_no_part_of_what_follows(vocab):
    entries = {entry.path: entry.data for entry in vocab.manifest.files}
    assert not entries["report.json"]
    report = json.loads((Path(vocab.artifact) / "report.json").read_text())["tokenizer"]
    assert report["fertility"] == vocab.manifest.summary["fertility"]


def test_measures(tmp_path):
    """By hand: two documents, a vocabulary that knows two words and letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", ".", *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    figures = measure(load(str(tmp_path / "vocab.txt")), [["The cat.", "A cats §"], ["ab"]])
    # the cat . | a cat ##s [UNK] | a ##b: 9 pieces; words: The cat . A cats § ab
    assert (figures["words"], figures["pieces"], figures["fertility"]) == (7, 9, round(9 / 7, 4))
    assert figures["single_piece_words"] == round(3 / 5, 4)  # The cat A, of The cat A cats ab
    assert figures["unknown_rate"] == round(1 / 9, 6)
    assert figures["bytes_per_piece"] == round(19 / 9, 3)
    assert figures["documents_in_128"] == 1
    assert figures["words_in_128"] == round(126 * 7 / 9, 1)


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


def command(capsys, *arguments: str) -> tuple[int, dict, str]:
    """Run `cloze vocab`; its exit code, its JSON, and what it said."""
    from flows.cli import main

    code = main(["vocab", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if code == 0 and "--json" in arguments else {}, out + err


def test_as_typed(corpus, vocab, tmp_path, capsys):
    code, made, _ = command(
        capsys, "--corpus", corpus, "--kind", "bpe", "--size", "50265", "--out", str(tmp_path / "bpe"), "--json"
    )
    assert code == 0
    assert made["kind"] == "bpe"
    assert made["size"] < 50265
    assert load(made["artifact"]).special.mask == made["size"] - 1
    assert not made["cached"]
    code, again, said = command(
        capsys,
        "--corpus",
        corpus,
        "--kind",
        "bpe",
        "--out",
        str(tmp_path / "bpe"),
        "--against",
        vocab.artifact,
        "--force",
        "--json",
    )
    assert code == 0
    assert [row["tokenizer"] for row in again["report"]] == [again["artifact"], vocab.artifact]
    assert again["report"][0]["fertility"] == again["fertility"]
    assert "fertility (pieces a word)" in said
    code, report, said = command(capsys, "--report", "--corpus", corpus, "--against", vocab.artifact, "--json")
    assert code == 0
    assert set(report) == {"report"}
    assert report["report"][0]["words"] == again["report"][0]["words"]  # the same text for all
    code, imported, _ = command(capsys, "--import", vocab.artifact, "--out", str(tmp_path / "imported"), "--json")
    assert (code, imported["kind"], imported["size"]) == (0, "wordpiece", 300)
    code, longer, _ = command(
        capsys, "--corpus", corpus, "--extend", vocab.artifact, "--add", "5", "--out", str(tmp_path / "x"), "--json"
    )
    assert (code, longer["size"], len(longer["added_words"])) == (0, 305, 5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--report", "--against", "V"], "give --corpus"),
        (["--report", "--corpus", "C"], "given by --against"),
        (["--corpus", "C"], "Missing option '--out'"),
        (["--import", "V", "--kind", "bpe", "--out", "O"], "--kind (bpe) is for training"),
        (["--kind", "bpe", "--out", "O"], "give a corpus"),
        (["--extend", "V", "--out", "O"], "needs words"),
    ],
)
def test_commands_that_do_not_fit(corpus, vocab, tmp_path, capsys, arguments, says):
    places = {"V": vocab.artifact, "C": corpus, "O": str(tmp_path / "o")}
    code, _, said = command(capsys, *(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert says in said
