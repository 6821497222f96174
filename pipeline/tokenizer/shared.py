"""One tokenizer a process: workers load it once, and its memory of words lasts from unit to unit."""

from __future__ import annotations

import functools
import os

from pipeline.core.errors import DataError
from pipeline.tokenizer import load
from pipeline.tokenizer.tokenizer import Tokenizer


@functools.lru_cache(maxsize=2)
def shared_tokenizer(path: str, fingerprint: str) -> Tokenizer:
    """The tokenizer at `path`, read once a process. Workers are one core each, so it starts no threads.

    Raises:
        DataError: it is not the one that has `fingerprint`.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load(path)
    if tokenizer.fingerprint != fingerprint:
        raise DataError(f"{path} changed while the stage ran; run it again")
    return tokenizer
