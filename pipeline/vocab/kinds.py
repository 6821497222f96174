"""Kinds of vocabularies: their trainers and defaults. Light, because configs import it."""

from __future__ import annotations

from typing import NamedTuple

from cloze.core.plugins import Table


class TokenizerTrainer(NamedTuple):
    """A kind of vocabulary, a row of `TRAINERS`."""

    function: str  # `module:function`
    size: int  # size of the family's own vocabulary
    lowercase: bool  # the family lowercases text
    options: str | None = None  # `module:class`


_TRAINERS = {
    # BERT
    "wordpiece": TokenizerTrainer("cloze.pipeline.vocab.trainers:train_wordpiece", 30522, True),
    # RoBERTa: byte-level
    "bpe": TokenizerTrainer("cloze.pipeline.vocab.trainers:train_bpe", 50265, False),
    # ALBERT
    "unigram": TokenizerTrainer("cloze.pipeline.vocab.trainers:train_unigram", 30000, True),
}
TRAINERS: Table[TokenizerTrainer] = Table("vocabularies", "kind of tokenizer", _TRAINERS, ("kind",))
