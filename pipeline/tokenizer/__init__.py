"""From a tokenizer's files to one that encodes quickly, and back to files that transformers opens.

This module is light; what is heavy is imported on the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer


def load(path: str, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer at `path`: a vocab artifact, a Hugging Face directory, or a tokenizer's file.

    A directory holds `tokenizer.json`, `vocab.txt`, `vocab.json` with `merges.txt`, `encoder.json` with `vocab.bpe`, or
    `spiece.model`; the first of them counts. A file is any of these, or a vocabulary under another name: a BPE's lies beside
    its merges (`x_encoder.json` and `x_vocab.bpe`, `x-vocab.json` and `x-merges.txt`). A byte-level BPE without
    special tokens (GPT-2's) gets RoBERTa's; a SentencePiece model must be a unigram one with ALBERT's special tokens.

    Args:
        path: a local path or a URL.
        lowercase: whether text is lowercased (and stripped of accents). None takes what the files say;
            a bare `vocab.txt` says nothing, and is taken as uncased if no piece in it has an upper-case letter.

    Raises:
        DataError: a file is missing or damaged, or the vocabulary is empty or lacks a special token.
        UsageError: `lowercase` is given for a tokenizer.json whose normalizer has no such switch.
    """
    from pipeline.tokenizer.reading import read

    return read(path, lowercase)
