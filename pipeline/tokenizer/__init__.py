"""Stage "vocab": from text to a tokenizer, and from a tokenizer's files to one that encodes quickly.

This module is light, so that configs can name the kinds; what is heavy is imported on the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.tokenizer.tokenizer import Tokenizer

# Kind -> `module:function` that trains it, from text to a `tokenizers.Tokenizer`.
TRAINERS = {
    "wordpiece": "pipeline.tokenizer.wordpiece:train",
}


def load(path: str, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer at `path`: a vocab artifact, a `vocab.txt`, a `tokenizer.json`, or a Hugging Face directory.

    Args:
        path: a local path or a URL.
        lowercase: whether text is lowercased (and stripped of accents). None takes what the files say;
            a bare `vocab.txt` says nothing, and is taken as uncased if no piece in it has an upper-case letter.

    Raises:
        DataError: a file is missing or damaged, or the vocabulary is empty or lacks a special token.
        UsageError: `lowercase` is given for a tokenizer whose normalizer has no such switch.
    """
    from pipeline.tokenizer.reading import read

    return read(path, lowercase)
