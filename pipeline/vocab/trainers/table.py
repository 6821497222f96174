"""The kinds of vocabularies by name. Light: configs read it.

A kind is one file and one line here: a function `(texts, options, *, size, lowercase, strip_accents) -> tokenizers.Tokenizer`, and what can be
set of it as a subclass of `pipeline.core.options.Options` in the same file. The same text gives the same bytes in every process.
"""

from __future__ import annotations

from typing import NamedTuple


class Trainer(NamedTuple):
    """A row of the table."""

    function: str  # `module:function`
    size: int  # pieces of the family's own vocabulary
    lowercase: bool  # whether the family lowercases
    options: str | None = None  # `module:class`


TRAINERS = {
    # BERT
    "wordpiece": Trainer(
        "pipeline.vocab.trainers.wordpiece:train", 30522, True, "pipeline.vocab.trainers.wordpiece:WordPieceOptions"
    ),
    # RoBERTa: byte-level
    "bpe": Trainer("pipeline.vocab.trainers.bpe:train", 50265, False, "pipeline.vocab.trainers.bpe:BpeOptions"),
    # ALBERT
    "unigram": Trainer("pipeline.vocab.trainers.unigram:train", 30000, True, "pipeline.vocab.trainers.unigram:UnigramOptions"),
}
