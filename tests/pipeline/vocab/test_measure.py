"""What is measured of a tokenizer."""

from __future__ import annotations

from cloze.pipeline.tokenizer import load
from cloze.pipeline.vocab.tokenizer_metrics import tokenizer_metrics


def test_measures(tmp_path):
    """By hand: two documents, a vocabulary that knows two words and letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        ".",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    found = tokenizer_metrics(load(str(tmp_path / "vocab.txt")), [["The cat.", "A cats §"], ["ab"]])
    # the cat . | a cat ##s [UNK] | a ##b: 9 pieces; words: The cat . A cats § ab
    assert (found["words"], found["pieces"], found["fertility"]) == (7, 9, round(9 / 7, 4))
    assert found["single_piece_words"] == round(3 / 5, 4)  # The cat A, of The cat A cats ab
    assert found["unknown_rate"] == round(1 / 9, 6)
    assert found["bytes_per_piece"] == round(19 / 9, 3)
    assert found["documents_in_128"] == 1
    assert found["words_in_128"] == round(126 * 7 / 9, 1)
