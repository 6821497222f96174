"""Tokenizers: load files of several formats, encode fast, save files that transformers opens.

This module is light; heavy imports happen on the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer


def load(path: str, lowercase: bool | None = None) -> Tokenizer:
    """Load the tokenizer at `path`: a vocab artifact, a Hugging Face directory, or a file.

    A directory has `tokenizer.json`, `vocab.txt`, `vocab.json` with `merges.txt`, `encoder.json`
    with `vocab.bpe`, or `spiece.model`; the first of them is used. A file is any of these, or a
    vocabulary with another name; the merges of a BPE are next to it (`x_encoder.json` and
    `x_vocab.bpe`, `x-vocab.json` and `x-merges.txt`). A byte-level BPE without special tokens
    (GPT-2's) gets RoBERTa's. A SentencePiece model must be a unigram model with ALBERT's special
    tokens or T5's.

    Args:
        path: local path or URL.
        lowercase: lowercase the text and strip accents. None: as the files say; a bare `vocab.txt`
            counts as uncased if no token has an upper-case letter.

    Raises:
        DataError: a file is missing or damaged, or the vocabulary is empty or lacks a special
            token.
        UsageError: `lowercase` is given for a tokenizer.json whose normalizer has no such switch.
    """
    from cloze.pipeline.tokenizer.loading import read

    return read(path, lowercase)
