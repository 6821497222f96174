"""Tokenizer files whose meaning the model beside them tells: GPT-2's own, and fairseq's ids of
XLM-RoBERTa and CamemBERT.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from cloze.pipeline.tokenizer import load
from tests.pipeline.tokenizer.texts import TRAINING, trained_spiece

TEXTS = [*TRAINING[:6], "  two  spaces ", "日本 ﬁne ½", "", "the </s> mark"]


@pytest.mark.parametrize(
    ("model_type", "offset", "begin", "end"),
    [("xlm-roberta", 1, 0, 2), ("camembert", 4, 5, 6)],
)
def test_fairseqs_ids_follow_those_of_sentencepiece(
    model_type: str, offset: int, begin: int, end: int, tmp_path: Path
) -> None:
    """transformers, tokenization_xlm_roberta.py and tokenization_camembert.py: an id is
    SentencePiece's plus the offset, an unknown token 3, the mask the last.
    """
    special = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "control_symbols": []}
    path = Path(trained_spiece(tmp_path, **special))
    path.rename(tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    pieces = load(str(tmp_path))
    reference: Any = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "sentencepiece.bpe.model")
    )
    for text in TEXTS[:-1]:  # names of special tokens in text are another matter
        expected = [number + offset if number else 3 for number in reference.encode(text)]
        assert pieces.encode_batch([text])[0] == expected, text
    own = pieces.special
    assert (own.pad, own.unk, own.cls, own.sep) == (1, 3, begin, end)
    assert own.mask == pieces.vocab_size - 1 == reference.get_piece_size() + offset
    assert pieces.backend.encode("a", "a").ids.count(end) == 3
    assert (pieces.pair_frame.separator, pieces.pair_frame.typed) == ((end, end), False)
    pieces.save(str(tmp_path / "saved"))
    assert load(str(tmp_path / "saved")).encode_batch(TEXTS) == pieces.encode_batch(TEXTS)


@pytest.mark.parametrize("model_type", ["gpt2", "roberta", ""])
def test_the_files_of_a_gpt2_keep_their_ids(model_type: str, tmp_path: Path) -> None:
    """Elsewhere they get RoBERTa's tokens."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate([*letters, "th", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\n")
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    pieces = load(str(tmp_path))
    ids = [vocab["th"], vocab["e"], vocab["Ġ"], vocab["x"]]
    if model_type != "gpt2":
        assert pieces.encode_batch(["the x"])[0] == [number + 4 for number in ids]
        return
    end = vocab["<|endoftext|>"]
    assert pieces.encode_batch(["the x"])[0] == ids
    assert set(pieces.special.ids) == {end}
    assert pieces.special.begins == ()
    assert pieces.backend.encode("the x").ids == ids
    pieces.save(str(tmp_path / "saved"))
    again = load(str(tmp_path / "saved"))
    assert (again.special, again.vocab_size) == (pieces.special, pieces.vocab_size)
    assert again.backend.encode("the x").ids == ids
