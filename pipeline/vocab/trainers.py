"""Trainers of WordPiece, byte-level BPE, Unigram and word vocabularies.

The same text gives the same bytes in every process.

A new kind is one module and one row in `TRAINERS` (kinds.py). The module has a function `(texts,
options, *, size, lowercase, strip_accents) -> tokenizers.Tokenizer` and, if the kind has options of
its own, a subclass of `cloze.core.options.Options`. Its arguments:

    texts          returns an iterator over the documents, each time it is called
    options        `min_frequency` and `limit_alphabet`, where the kind has such limits
    size           requested vocabulary size; smaller if the text yields fewer tokens
    strip_accents  remove accents, and the vowel signs of other scripts

All raise UsageError if `size` is smaller than the single-character tokens.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from cloze.core.errors import DataError, UsageError

if TYPE_CHECKING:
    import tokenizers

    from cloze.pipeline.vocab.config import VocabConfig

Texts = Callable[[], Iterator[str]]  # a new iterator over the documents, in any order


# Word counts and alphabets.

# minimum size of an alphabet: letters of all scripts, as in Hugging Face's BertWordPieceTokenizer
MIN_ALPHABET = 1000
COVERAGE = 0.9999  # share of characters covered, for ideographs; SentencePiece has .9995


def word_frequencies(backend: tokenizers.Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """Count the words that the backend's normalizer and pre-tokenizer produce.

    For backends whose pre-tokenizer splits at every space, so that each distinct segment between
    spaces is processed once.
    """
    words: Counter[str] = Counter()
    for segment, count in count_segments(texts).items():
        normalized = backend.normalizer.normalize_str(segment)
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized):
            words[word] += count
    return words


def count_segments(texts: Iterator[str]) -> Counter[str]:
    """Count the segments between spaces."""
    segments: Counter[str] = Counter()
    for text in texts:
        segments.update(text.split(" "))
    return segments


def alphabet(
    words: Counter[str], limit: int | None, size: int, mark: str = ""
) -> tuple[list[str], list[str]]:
    """Return the kept characters, and those of them that occur inside words, by code point.

    Args:
        limit: maximum number of characters, by frequency, then code point. None: MIN_ALPHABET, or
            enough for COVERAGE of the text, at most a third of the vocabulary.
        mark: first character of words that does not count.
    """
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for character in word.removeprefix(mark):
            counts[character] += count
        inner.update(word[1:])
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    if limit is None:
        covered = list(accumulate(counts[character] for character in ordered))
        covering = bisect_left(covered, COVERAGE * counts.total()) + 1
        limit = max(MIN_ALPHABET, min(covering, size // 3))
    characters = ordered[:limit]
    return sorted(characters), sorted(inner.intersection(characters))


def _check_size(size: int, smallest: int, fixed: str, remedy: str = "") -> None:
    """Raise UsageError if the vocabulary has no room for its `fixed` tokens."""
    if size < smallest:
        raise UsageError(
            f"size ({size}) is too small for the special tokens and {fixed}; use at least "
            f"{smallest}{remedy}"
        )


SMALLER_ALPHABET = ", or a smaller limit_alphabet"


# WordPiece, in BERT's format.

PREFIX = "##"


def train_wordpiece(
    texts: Texts, options: VocabConfig, *, size: int, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Train a WordPiece tokenizer.

    Hugging Face's trainer depends on the order of hash maps, except for tokens that are registered
    first; so all single characters are.
    """
    from tokenizers import trainers

    from cloze.pipeline.tokenizer.backends import bert_backend
    from cloze.pipeline.tokenizer.special import BERT

    special = {token: number for number, token in enumerate(BERT)}
    backend = bert_backend(special, lowercase, strip_accents)
    words = word_frequencies(backend, texts())
    first, inner = alphabet(words, options.limit_alphabet, size)
    single_characters = [*first, *(PREFIX + character for character in inner)]
    smallest = len(BERT) + len(single_characters)
    _check_size(size, smallest, f"{len(single_characters)} single characters", SMALLER_ALPHABET)
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=options.min_frequency,
        special_tokens=[*BERT, *single_characters],  # registered first, in this order
        limit_alphabet=len(first),
        initial_alphabet=first,
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    backend.train_from_iterator(texts(), trainer)
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    numbered = {token: number for number, token in enumerate(tokens)}
    return bert_backend(numbered, lowercase, strip_accents)


# Byte-level BPE, in RoBERTa's format.

BYTES = 256


def train_bpe(
    texts: Texts, options: VocabConfig, *, size: int, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Train a byte-level BPE: Hugging Face's trainer over GPT-2's pre-tokenizer.

    Ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, bytes, merges, `<mask>` last. The 256 byte letters
    are the whole alphabet, registered in code point order, and token ids break ties. So, unlike
    WordPiece's trainer, the result does not depend on the order of hash maps (tested over processes
    and numbers of threads).

    Raises:
        UsageError: `strip_accents` is set, which RoBERTa's tokenizer lacks; or a special token
            occurs in the text so often that it became a token of the text.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    from cloze.pipeline.tokenizer.backends import roberta_backend
    from cloze.pipeline.tokenizer.special import ROBERTA

    if strip_accents:
        raise UsageError(
            "strip_accents (true) does not apply to kind bpe, whose tokenizer has no such step; "
            "remove it"
        )
    _check_size(size, BYTES + len(ROBERTA), f"{BYTES} bytes")
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
    model = json.loads(learner.to_str())["model"]
    learned: dict[str, int] = model["vocab"]
    for token in ROBERTA:
        if token in learned:
            raise UsageError(
                f"the text contains {token!r} so often that it became a token; remove it from the "
                f"text"
            )
    tokens = [*ROBERTA[:4], *sorted(learned, key=learned.__getitem__), ROBERTA[4]]
    return roberta_backend(
        {token: number for number, token in enumerate(tokens)},
        [(left, right) for left, right in model["merges"]],
        lowercase=lowercase,
    )


# Unigram, in ALBERT's format.

THREADS = 4  # affects the result: expectations are summed thread by thread
MAX_PIECE = 16  # characters of a token, SentencePiece's own default
LONGEST = 4096  # characters of a training word; longer segments are no words
SCORE_DIGITS = 4  # precision of the 32-bit scores


def train_unigram(
    texts: Texts, options: VocabConfig, *, size: int, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Train a Unigram tokenizer.

    Ids: `<pad>` 0, `<unk>` 1, `[CLS]` 2, `[SEP]` 3, `[MASK]` 4, then tokens by probability.

    SentencePiece trains it, as ALBERT's, from words and their counts. The future tokenizer itself
    splits the words, so its normalization and the trainer's cannot differ. (Hugging Face's trainer
    sums floats in hash map order, so its scores differ from run to run.) SentencePiece sums per
    thread, so the number of threads is fixed. There is no minimum frequency: rare words show how
    words are built (without words seen once, text becomes 2 % longer).

    Raises:
        DataError: the text has no words.
    """
    from cloze.pipeline.tokenizer.backends import albert_backend
    from cloze.pipeline.tokenizer.special import ALBERT, METASPACE

    special = [(token, 0.0) for token in ALBERT]
    words = word_frequencies(albert_backend(special, 1, lowercase, strip_accents), texts())
    characters, _ = alphabet(words, options.limit_alphabet, size, METASPACE)
    if not characters:
        raise DataError("the sample has no text to learn tokens from; give `cloze corpus` more")
    single_characters = {*characters, METASPACE}
    smallest = len(ALBERT) + len(single_characters)
    _check_size(size, smallest, f"{len(single_characters)} single characters", SMALLER_ALPHABET)
    learned = _run_sentencepiece(_training_words(words, single_characters), size - len(ALBERT))
    return albert_backend([*special, *learned], 1, lowercase, strip_accents)


def _training_words(words: Counter[str], retained: set[str]) -> list[tuple[str, int]]:
    """Return SentencePiece's input in fixed order: words, split at dropped characters, and counts.

    Every kept character occurs at least once, so that it gets a token.
    """
    segments: Counter[str] = Counter(dict.fromkeys(retained, 1))
    for word, count in words.items():
        covered = (
            word
            if retained.issuperset(word)
            else "".join(character if character in retained else " " for character in word)
        )
        for segment in covered.split():
            if len(segment) <= LONGEST:
                segments[segment] += count
    return sorted(segments.items())


def _run_sentencepiece(words: list[tuple[str, int]], size: int) -> list[tuple[str, float]]:
    """Return at most `size` tokens with their log-probabilities, the likeliest first."""
    import sentencepiece

    model = io.BytesIO()
    handle, path = tempfile.mkstemp(suffix=".tsv")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as output:
            output.writelines(f"{word}\t{count}\n" for word, count in words)
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
    scores = {
        trained.id_to_piece(number): trained.get_score(number)
        for number in range(1, trained.get_piece_size())
    }
    lowest = min(scores.values(), default=-math.log(max(2, len(words))))
    missing = sorted({character for word, _ in words for character in word} - scores.keys())
    tokens = list(scores.items())[: max(0, size - len(missing))]
    tokens += [(character, lowest) for character in missing]
    return [(token, round(score, SCORE_DIGITS)) for token, score in tokens]
