"""Byte-level BPE vocabularies in RoBERTa's format, the same bytes from every process.

Hugging Face's trainer finds the merges, over GPT-2's pre-tokenizer. The 256 byte letters are the
whole alphabet, registered in code point order, tokens have no prefix, and token ids break ties. So,
unlike WordPiece's trainer, the result does not depend on the order of hash maps (tested over
processes and numbers of threads).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cloze.core.errors import UsageError
from cloze.pipeline.vocab.trainers import MergeOptions

if TYPE_CHECKING:
    import tokenizers

BYTES = 256


class BpeOptions(MergeOptions):
    """Options of the kind `bpe`."""


def train(
    texts: Callable[[], Iterator[str]],
    options: BpeOptions,
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool,
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE.

    Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, bytes, merges, `<mask>` last.

    Args:
        texts: returns an iterator over the documents, in any order; called repeatedly.
        options: options of the kind.
        size: wanted vocabulary size; smaller if too few pairs occur `min_frequency` times.
        lowercase: lowercase the text.
        strip_accents: must be False: RoBERTa's tokenizer has no such step.

    Raises:
        UsageError: `size` is smaller than the special tokens and the bytes, or `strip_accents` is
            set.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    from cloze.pipeline.tokenizer.backends import roberta_backend
    from cloze.pipeline.tokenizer.special import ROBERTA

    if strip_accents:
        raise UsageError(
            "strip_accents (true) is not for kind bpe, whose tokenizer has no such step; leave it "
            "out"
        )
    if size < BYTES + len(ROBERTA):
        raise UsageError(
            f"size ({size}) leaves no room for the {BYTES} bytes and {len(ROBERTA)} special tokens;"
            f" use at least {BYTES + len(ROBERTA)}"
        )
    learner = Tokenizer(models.BPE())
    if lowercase:
        learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(ROBERTA),
        min_frequency=options.min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts(), trainer)
    return roberta_backend(*_with_special_tokens(learner, ROBERTA), lowercase=lowercase)


def _with_special_tokens(
    learner: tokenizers.Tokenizer, special: Sequence[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary with four special tokens before and one after it, and the merges."""
    found = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = found["vocab"]
    pieces = [*special[:4], *sorted(vocab, key=lambda piece: vocab[piece]), special[4]]
    if len(set(pieces)) < len(pieces):
        double = next(piece for piece in special if piece in vocab)
        raise UsageError(
            f"the text holds {double!r} so often that it became a piece; remove it from the text"
        )
    return {piece: number for number, piece in enumerate(pieces)}, [
        (left, right) for left, right in found["merges"]
    ]
