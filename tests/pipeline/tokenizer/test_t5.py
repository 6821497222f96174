"""T5's own vocabulary: ids and frames of transformers' T5Tokenizer, and texts without [CLS]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.model.families.registry import config_class
from cloze.model.tasks.encode import encode
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.sentencepiece_model import parse
from tests.pipeline.tokenizer.texts import AWKWARD, TRAINING, trained_spiece

PIECES, SENTINELS = 150, 100
REAL = Path("../shared/data/wikitext-2")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with T5's file alone: <pad>, </s>, <unk>, and pieces of SentencePiece."""
    base = tmp_path_factory.mktemp("t5")
    t5 = {"unk_id": 2, "eos_id": 1, "control_symbols": [], "user_defined_symbols": []}
    path = Path(trained_spiece(base, vocab_size=PIECES, **t5))
    (base / "model").mkdir()
    path.rename(base / "model" / "spiece.model")
    return base / "model"


def texts() -> list[str]:
    lines = [line for path in sorted(REAL.glob("*.txt")) for line in path.open(encoding="utf-8")]
    return [*TRAINING, *AWKWARD, "translate: the <extra_id_0> cat <extra_id_99>", *lines[:500]]


def test_ids_and_frames_are_those_of_transformers(directory: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")
    path = str(directory / "spiece.model")
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    vocab = [(model.id_to_piece(number), model.get_score(number)) for number in range(PIECES)]
    extra = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(SENTINELS))]
    charsmap = parse(Path(path).read_bytes(), path).charsmap
    theirs = transformers.T5Tokenizer(vocab=[*vocab, *extra], _spm_precompiled_charsmap=charsmap)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    pieces = load(str(directory))
    assert pieces.vocab_size == len(theirs) == PIECES + SENTINELS
    pieces.save(str(tmp_path / "saved"))
    saved = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    for own in (pieces, load(str(tmp_path / "theirs")), load(str(tmp_path / "saved"))):
        for text in texts():
            expected = theirs(text).input_ids
            assert own.backend.encode(text).ids == expected, text
            assert saved(text).input_ids == expected
            if "<" not in text and "[" not in text:
                assert own.encode_batch([text])[0] == expected[:-1] == model.encode(text), text
        pair = theirs("the cat", "a dog").input_ids
        framed = encode(["the cat"], ["a dog"], own, 64)
        assert framed.sequences[0].tolist() == pair == own.backend.encode("the cat", "a dog").ids
    assert pieces.backend.token_to_id("<extra_id_0>") == PIECES + SENTINELS - 1


def test_only_models_that_need_no_first_token_read_it(directory: Path) -> None:
    pieces: Any = load(str(directory))
    values = config_class("t5")().vocabulary_values(pieces.vocab_size, pieces.special)
    assert (values["pad_token_id"], values["eos_token_id"]) == (0, 1)
    for family in ("bert", "bart"):
        with pytest.raises(UsageError, match=r"reads \[CLS\] before a text"):
            config_class(family)().vocabulary_values(pieces.vocab_size, pieces.special)
