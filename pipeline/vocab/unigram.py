"""Unigram vocabularies in ALBERT's format, the same bytes from every process.

SentencePiece trains them, as ALBERT's, from words and their counts. The future tokenizer itself
splits the words, so its normalization and the trainer's cannot differ. (Hugging Face's trainer sums
floats in hash map order, so its scores differ from run to run.) SentencePiece sums per thread, so
the number of threads is fixed.
"""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cloze.core.errors import DataError, UsageError
from cloze.pipeline.vocab.trainers import AlphabetOptions

if TYPE_CHECKING:
    import tokenizers

THREADS = 4  # affects the result: expectations are summed thread by thread
MAX_PIECE = 16  # characters of a token, SentencePiece's own default
LONGEST = 4096  # characters of a training word; longer segments are no words
SCORE_DIGITS = 4  # precision of the 32-bit scores


class UnigramOptions(AlphabetOptions):
    """Options of the kind `unigram`.

    There is no minimum frequency: rare words show how words are built (without words seen once,
    text becomes 2 % longer).
    """


def train(
    texts: Callable[[], Iterator[str]],
    options: UnigramOptions,
    *,
    size: int,
    lowercase: bool,
    strip_accents: bool,
) -> tokenizers.Tokenizer:
    """Train a Unigram tokenizer.

    Ids: `<pad>` 0, `<unk>` 1, `[CLS]` 2, `[SEP]` 3, `[MASK]` 4, then tokens by probability.

    Args:
        texts: returns an iterator over the documents, in any order.
        options: options of the kind.
        size: wanted vocabulary size; smaller if the text yields fewer tokens.
        lowercase: lowercase the text.
        strip_accents: remove accents, and the vowel signs of other scripts.

    Raises:
        UsageError: `size` is smaller than the number of single-character tokens.
        DataError: the text has no words.
    """
    from cloze.pipeline.tokenizer.backends import albert_backend
    from cloze.pipeline.tokenizer.special import ALBERT, METASPACE
    from cloze.pipeline.vocab.wordpiece import alphabet, count_words

    special = [(piece, 0.0) for piece in ALBERT]
    words = count_words(albert_backend(special, 1, lowercase, strip_accents), texts())
    kept, _ = alphabet(words, options.limit_alphabet, size, METASPACE)
    if not kept:
        raise DataError("the sample holds no text that has pieces; give `cloze corpus` other text")
    least = len(ALBERT) + len({*kept, METASPACE})
    if least > size:
        raise UsageError(
            f"size ({size}) leaves no room for the {least - len(ALBERT)} pieces of a single "
            f"character;"
            f" use at least {least}, or a smaller limit_alphabet"
        )
    found = _learn(_lines(words, {*kept, METASPACE}), size - len(ALBERT))
    return albert_backend([*special, *found], 1, lowercase, strip_accents)


def _lines(words: Counter[str], kept: set[str]) -> list[tuple[str, int]]:
    """Return SentencePiece's input in fixed order: words, split at dropped characters, and counts.

    Every kept character occurs at least once, so that it gets a token.
    """
    stretches: Counter[str] = Counter(dict.fromkeys(kept, 1))
    for word, count in words.items():
        whole = word if kept.issuperset(word) else "".join(c if c in kept else " " for c in word)
        for stretch in whole.split():
            if len(stretch) <= LONGEST:
                stretches[stretch] += count
    return sorted(stretches.items())


def _learn(lines: list[tuple[str, int]], size: int) -> list[tuple[str, float]]:
    """Return at most `size` tokens with their log-probabilities, the likeliest first."""
    import sentencepiece

    model = io.BytesIO()
    handle, path = tempfile.mkstemp(suffix=".tsv")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as output:
            output.writelines(f"{stretch}\t{count}\n" for stretch, count in lines)
        sentencepiece.SentencePieceTrainer.train(
            input=path,
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=size + 1,  # its own <unk> counts, too
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            max_sentence_length=4 * LONGEST + 16,
            max_sentencepiece_length=MAX_PIECE,
            num_threads=THREADS,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    finally:
        os.unlink(path)
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        (trained.id_to_piece(number), trained.get_score(number))
        for number in range(1, trained.get_piece_size())
    ]
    present = {piece for piece, _ in pieces}
    lowest = min((score for _, score in pieces), default=-math.log(max(2, len(lines))))
    missing = sorted({character for stretch, _ in lines for character in stretch} - present)
    pieces = [(piece, round(score, SCORE_DIGITS)) for piece, score in pieces][
        : max(0, size - len(missing))
    ]
    return [*pieces, *((piece, round(lowest, SCORE_DIGITS)) for piece in missing)]
