"""Byte-level BPE vocabularies in RoBERTa's format, the same bytes from every process.

Merges are found by Hugging Face's trainer over GPT-2's pre-tokenizer. The 256 letters of bytes are its whole alphabet, registered in the order
of their code points, pieces have no prefix, and equal counts are decided by the pieces' ids: so unlike WordPiece's,
its result does not depend on the order of its hash maps (tested over processes and numbers of threads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from pipeline.core.errors import UsageError
from pipeline.tokenizer.backends import roberta_backend
from pipeline.tokenizer.special import ROBERTA

BYTES = 256


def train(
    texts: Callable[[], Iterator[str]],
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool | None,
    min_frequency: int,
    limit_alphabet: int,
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, the bytes, the merges, `<mask>` last.

    Args:
        texts: gives the documents, in any order, as often as it is called.
        size: pieces wanted; fewer where the text has no more pairs that occur `min_frequency` times.
        lowercase: lowercase the text.
        strip_accents: must not be True: RoBERTa's tokenizer has no such step.
        min_frequency: of a pair of pieces, to be merged.
        limit_alphabet: of no use: every text is bytes.

    Raises:
        UsageError: `size` is smaller than the special tokens and the bytes; or accents are to be removed.
    """
    del limit_alphabet
    if strip_accents:
        raise UsageError("strip_accents (true) is not for kind bpe, whose tokenizer has no such step; leave it out")
    if size < BYTES + len(ROBERTA):
        raise UsageError(
            f"size ({size}) leaves no room for the {BYTES} bytes and {len(ROBERTA)} special tokens; use at least {BYTES + len(ROBERTA)}"
        )
    learner = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(ROBERTA),
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts(), trainer)
    return roberta_backend(*_placed(learner), lowercase=lowercase)


def _placed(learner: tokenizers.Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The trained pieces between RoBERTa's special tokens, and the merges."""
    import json

    found = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = found["vocab"]
    pieces = [*ROBERTA[:4], *sorted(vocab, key=lambda piece: vocab[piece]), ROBERTA[4]]
    if len(set(pieces)) < len(pieces):
        double = next(piece for piece in ROBERTA if piece in vocab)
        raise UsageError(f"the text holds {double!r} so often that it became a piece; remove it from the text")
    return {piece: number for number, piece in enumerate(pieces)}, [(left, right) for left, right in found["merges"]]
