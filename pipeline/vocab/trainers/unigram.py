"""Unigram vocabularies in ALBERT's format, the same bytes from every process.

Trained by SentencePiece, as ALBERT's was, from words and their counts: they are cut by the very tokenizer that will use the pieces, so
its normalization and the trainer's cannot differ. (Hugging Face's trainer sums floating point numbers in the order of a hash map, and its
scores differ from run to run.) SentencePiece sums by thread; their number is fixed here, whatever the machine has.
"""

from __future__ import annotations

import io
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pipeline.core.errors import DataError, UsageError
from pipeline.vocab.trainers.options import AlphabetOptions

if TYPE_CHECKING:
    import tokenizers

THREADS = 4  # part of the result: expectations are summed thread by thread
MAX_PIECE = 16  # characters of a piece, SentencePiece's own default
LONGEST = 4096  # characters of a word that is learned from; what is longer is no word
SCORE_DIGITS = 4  # its 32-bit numbers hold little more


class UnigramOptions(AlphabetOptions):
    """What can be set of the kind `unigram`.

    There is no least frequency: rare words teach how words are made (without those seen once, text gets 2 % longer).
    """


def train(
    texts: Callable[[], Iterator[str]], options: UnigramOptions, *, size: int, lowercase: bool, strip_accents: bool | None
) -> tokenizers.Tokenizer:
    """Train a Unigram tokenizer: `<pad>` 0, `<unk>` 1, `[CLS]` 2, `[SEP]` 3, `[MASK]` 4, then pieces by their probability.

    Args:
        texts: gives the documents, in any order.
        options: see there.
        size: pieces wanted; fewer where the text does not yield as many.
        lowercase: lowercase the text.
        strip_accents: remove accents; None: yes, as ALBERT does even where case stays.

    Raises:
        UsageError: `size` is smaller than the pieces of one character.
        DataError: the text has no words.
    """
    from pipeline.tokenizer.backends import albert_backend
    from pipeline.tokenizer.special import ALBERT, METASPACE
    from pipeline.vocab.trainers.counting import alphabet, count_words

    strip = strip_accents is not False
    special = [(piece, 0.0) for piece in ALBERT]
    words = count_words(albert_backend(special, 1, lowercase, strip), texts())
    kept, _ = alphabet(words, options.limit_alphabet, METASPACE)
    if not kept:
        raise DataError("the sample holds no text that has pieces; give `cloze corpus` other text")
    least = len(ALBERT) + len({*kept, METASPACE})
    if least > size:
        raise UsageError(
            f"size ({size}) leaves no room for the {least - len(ALBERT)} pieces of a single character;"
            f" use at least {least}, or a smaller limit_alphabet"
        )
    found = _learn(_lines(words, {*kept, METASPACE}), size - len(ALBERT))
    return albert_backend([*special, *found], 1, lowercase, strip)


def _lines(words: Counter[str], kept: set[str]) -> list[tuple[str, int]]:
    """What SentencePiece learns from, in a fixed order: words, cut where a character is not kept, and their counts.

    Every kept character occurs at least once, so that it has its piece.
    """
    stretches: Counter[str] = Counter(dict.fromkeys(kept, 1))
    for word, count in words.items():
        whole = word if kept.issuperset(word) else "".join(c if c in kept else " " for c in word)
        for stretch in whole.split():
            if len(stretch) <= LONGEST:
                stretches[stretch] += count
    return sorted(stretches.items())


def _learn(lines: list[tuple[str, int]], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with their log-probabilities, the likely ones first."""
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
            vocab_size=size + 1,  # its own <unk> is one
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
    pieces = [(trained.id_to_piece(number), trained.get_score(number)) for number in range(1, trained.get_piece_size())]
    present = {piece for piece, _ in pieces}
    lowest = min((score for _, score in pieces), default=-math.log(max(2, len(lines))))
    missing = sorted({character for stretch, _ in lines for character in stretch} - present)
    pieces = [(piece, round(score, SCORE_DIGITS)) for piece, score in pieces][: max(0, size - len(missing))]
    return [*pieces, *((piece, round(lowest, SCORE_DIGITS)) for piece in missing)]
