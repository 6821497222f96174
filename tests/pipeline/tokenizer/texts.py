"""Texts that tokenizers stumble over, text to train small ones on, and a model that SentencePiece
trained.
"""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.corpus.corpora import made_documents

AWKWARD = [
    *(
        "",
        " ",
        "  the  cat ",
        "the\ncat\tsings",
        "cats,sing.",
        "café CAFÉ cafe\u0301",
        "[MASK] the [SEP]",
        "[mask]",
        "中文the中",
    ),
    *(
        "the\u00a0cat",
        "the\u2028cat",
        "the\x1ccat\x00s\x7f",
        "\u200bthe",
        "a\u0301 \u0301b",
        "İSTANBUL ß ﬁ",
        "x" * 300,
        "ΣΑΣ ΣΑΣ.",
        "\ufeffthe",
        "a" * 100 + " b",
    ),
    *("\ud7ff\ue000", "🙂the🙂", "the \u0301cat", "\u1100\u1161 \u11a8", "##ing ##s"),
]
TRAINING = [" ".join(text) for _, text in made_documents(12)] + [
    "Don't stop the café, it's (well) known!"
] * 5
TRAINING += [
    "ba   ba\n\n ba \n  ba\t\t\tba     ba\u00a0\u00a0ba"
] * 50  # runs of white space become pieces
BLANKS = [
    " ",
    "  ",
    "   ",
    "\n",
    " \n",
    "\n ",
    "\t",
    "\u00a0",
    "\u2003",
    "\u2028",
    "\x1c",
    "\x85",
    "\u3000",
    "\ufeff",
    "\u200b",
    "\r\n",
]
MARKS = [
    "\u0301",
    "\u0308\u0301",
    "\u200d",
    "\u0600",
    "\u0903",
    "\ufe0f",
    "🙂",
    "¨",
    "ﬁ",
    "▁",
    "''",
    "``",
    "'s",
    "\u0345",
    "\u1161",
]


def trained_spiece(directory: Path, **options) -> str:
    """A model that SentencePiece trained with ALBERT's options (google-research/albert, README)."""
    import sentencepiece

    (directory / "text.txt").write_text(
        "\n".join([*TRAINING, "9, 9, 19, ① ½ ﬁn"] * 2), encoding="utf-8"
    )
    settings = {
        "vocab_size": 150,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": list('(),"-.–£€'),
        "hard_vocab_limit": False,
        "minloglevel": 2,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(
        input=str(directory / "text.txt"), model_prefix=str(directory / "spiece"), **settings
    )
    return str(directory / "spiece.model")
