"""Tokenizers side by side, on the held-out text of a corpus: what `cloze vocab --report` and `--against` show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline import tokenizer
from pipeline.corpus.shards import CorpusShards
from pipeline.vocab.measure import measure
from pipeline.vocab.sample import heldout_sample


def compare(corpus: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """What `pipeline.vocab.measure` says of each tokenizer, and its path as `tokenizer`.

    Args:
        corpus: a corpus artifact.
        paths: of tokenizers, as `pipeline.tokenizer.load` takes them.

    Raises:
        DataError: the corpus or a tokenizer is missing or damaged, or the corpus holds no text.
    """
    loaded = [tokenizer.load(path) for path in paths]
    documents = list(heldout_sample(CorpusShards.open(corpus)).sentences())
    return [{"tokenizer": path, **measure(found, documents)} for path, found in zip(paths, loaded, strict=True)]
