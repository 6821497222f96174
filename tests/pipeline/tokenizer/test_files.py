"""Importing tokenizers in the formats of the releases, and what is said of those that cannot be
read.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.pipeline.tokenizer import load, loading
from cloze.pipeline.tokenizer.sentencepiece_model import parse
from cloze.pipeline.tokenizer.special import SpecialTokens
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_bpe
from tests.pipeline.tokenizer.texts import TRAINING, trained_spiece


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("roberta")
    Tokenizer.of(
        train_bpe(
            lambda: iter(TRAINING),
            VocabConfig(kind="bpe"),
            size=350,
            lowercase=False,
            strip_accents=False,
        ),
        "x",
    ).save(str(directory))
    return directory


def gpt2_files(directory: Path, roberta: Path, names: tuple[str, str]) -> None:
    """The same pieces as GPT-2 has them: without special tokens."""
    vocab = json.loads((roberta / "vocab.json").read_text())
    pieces = sorted(
        (piece for piece in vocab if not piece.startswith("<") or len(piece) == 1),
        key=vocab.__getitem__,
    )
    (directory / names[0]).write_text(
        json.dumps({piece: number for number, piece in enumerate(pieces)})
    )
    shutil.copy(roberta / "merges.txt", directory / names[1])


def test_vocab_json_and_merges(roberta, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(roberta / name, tmp_path / name)
    original = load(str(roberta))
    assert load(str(tmp_path)).fingerprint == original.fingerprint
    assert load(str(tmp_path / "vocab.json")).fingerprint == original.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load(str(tmp_path)).encode_batch(["the"]) == original.encode_batch([" the"])


@pytest.mark.parametrize(
    "names",
    [
        ("vocab.json", "merges.txt"),
        ("encoder.json", "vocab.bpe"),
        ("x-vocab.json", "x-merges.txt"),
        ("a_bpe_encoder.json", "a_bpe_vocab.bpe"),
    ],
)
def test_gpt2s_files_get_robertas_tokens(roberta, tmp_path, names):
    gpt2_files(tmp_path, roberta, names)
    tokenizer, original = load(str(tmp_path / names[0])), load(str(roberta))
    assert (
        tokenizer.special.cls,
        tokenizer.special.pad,
        tokenizer.special.sep,
        tokenizer.special.unk,
    ) == (0, 1, 2, 3)
    assert tokenizer.special.mask == tokenizer.vocab_size - 1
    assert tokenizer.special.mask % 8 == 0  # fairseq fills the dictionary before the mask
    assert tokenizer.encode_batch(TRAINING) == original.encode_batch(TRAINING)
    if not names[0].startswith(("x", "a")):
        assert load(str(tmp_path)).fingerprint == tokenizer.fingerprint
        shutil.copy(tmp_path / names[0], tmp_path / "other_encoder.json")
        shutil.copy(tmp_path / names[1], tmp_path / "other_vocab.bpe")
        assert loading.fingerprint(str(tmp_path / "other_encoder.json")) == loading.fingerprint(
            str(tmp_path / names[0])
        )


def test_the_real_gpt2(shared_data):
    tokenizer = load(str(shared_data / "vocab/gpt2_bpe_encoder.json"))
    assert tokenizer.vocab_size == 50265
    assert tokenizer.special == SpecialTokens(pad=1, unk=3, cls=0, sep=2, mask=50264)
    ids = tokenizer.encode_batch(["Hello world", " Hello world"])
    assert [[number - 4 for number in row] for row in ids] == [
        [15496, 995],
        [18435, 995],
    ]  # GPT-2's own ids
    assert tokenizer.decode(ids[0]) == "Hello world"


def test_fingerprints_go_by_content(roberta, tmp_path):
    before = loading.fingerprint(str(roberta))
    shutil.copytree(roberta, tmp_path / "copy")
    assert loading.fingerprint(str(tmp_path / "copy")) == before
    (tmp_path / "copy" / "notes.md").write_text("nothing that the tokenizer follows from")
    assert loading.fingerprint(str(tmp_path / "copy")) == before
    config = tmp_path / "copy" / "tokenizer_config.json"
    config.write_text(config.read_text() + "\n")
    assert loading.fingerprint(str(tmp_path / "copy")) != before
    assert not artifact.is_artifact(str(roberta))


def broken(directory: Path, roberta: Path, kind: str) -> Path:
    path = directory / "vocab.json"
    if kind == "alone":
        shutil.copy(roberta / "vocab.json", path)
    elif kind == "directory alone":
        shutil.copy(roberta / "vocab.json", path)
        return directory
    elif kind == "odd name":
        path = directory / "pieces.json"
        shutil.copy(roberta / "vocab.json", path)
    elif kind in ("foreign merges", "torn merges", "merges bytes"):
        shutil.copy(roberta / "vocab.json", path)
        text = {
            "foreign merges": b"#version: 0.2\nzz qq\n",
            "torn merges": b"ab\n",
            "merges bytes": b"\xff \xfe\n",
        }
        (directory / "merges.txt").write_bytes(text[kind])
    elif kind == "no mask":
        vocab = json.loads((roberta / "vocab.json").read_text())
        path.write_text(
            json.dumps({piece: number for piece, number in vocab.items() if piece != "<mask>"})
        )
        shutil.copy(roberta / "merges.txt", directory / "merges.txt")
    elif kind.startswith("model"):
        path = directory / "spiece.model"
        good = Path(
            trained_spiece(directory, **({"model_type": "bpe"} if kind == "model bpe" else {}))
        )
        if kind == "model without mask":
            trained_spiece(directory, control_symbols=["[CLS]", "[SEP]"])
        elif kind == "model cut":
            path.write_bytes(good.read_bytes()[:-7])
        elif kind == "model text":
            path.write_text("this is no model at all")
        elif kind == "model empty":
            path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("alone", "has tokens without merges; put the tokenizer's merges.txt into"),
        ("directory alone", "merges.txt does not exist"),
        ("odd name", "name the vocabulary vocab.json"),
        ("foreign merges", r"line 2 \('zz qq'\) is no merge of two tokens"),
        ("torn merges", "line 1 .* is no merge"),
        ("merges bytes", "is not UTF-8"),
        ("no mask", r"no \[MASK\] token \(nor <mask>\)"),
        ("model bpe", "of type bpe, and only unigram models are supported"),
        ("model without mask", r"no \[MASK\] token"),
        ("model cut", "is no SentencePiece model"),
        ("model text", "is no SentencePiece model"),
        ("model empty", "has no pieces"),
    ],
)
def test_bad_files_are_told_by_name(roberta, tmp_path, kind, says):
    path = broken(tmp_path, roberta, kind)
    with pytest.raises(DataError, match=says) as caught:
        load(str(path))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff",
        b"\x0a\x80" * 40,
        b"\x0b",
        b"\x0a\x05\x0a\x03\xff\xfe\xfd",
        b"\x80" * 20,
        bytes(range(256)),
    ],
)
def test_hostile_models_do_no_harm(data):
    with pytest.raises(DataError, match="is no SentencePiece model"):
        parse(data, "x.model")
