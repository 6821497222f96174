"""Extension of a vocabulary by words of a domain, for a model with a longer embedding matrix.

Existing tokens keep their ids; new ones are appended. A word w that occurs f(w) times in n(w)
tokens saves

    score(w) = f(w) · (n(w) - 1)

tokens when it becomes one token. BPE greedily shortens the text in the same way (Gage 1994; Gallé
2019, "Investigating the Effectiveness of BPE: The Power of Shorter Sequences"). By likelihood, the
score is the gain in nats of a unigram model of the tokens (Kudo 2018, of whole words):

    score(w) = f(w) · (log p(w) - Σ log p(token)),   over the tokens of w

so words of rare tokens come first, whose meaning the model could not read off them. Here only whole
words count, because a domain needs a vocabulary for its terms (Beltagy et al. 2019,
SciBERT; Chalkidis et al. 2020, Legal-BERT; Tai et al. 2020, exBERT, adds such a vocabulary to
BERT's). A word with unknown tokens counts as split into its characters.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers

from cloze.core.errors import UsageError
from cloze.core.ragged import I64
from cloze.pipeline.tokenizer.special import METASPACE
from cloze.pipeline.tokenizer.tokenizer import U32, Tokenizer
from cloze.pipeline.vocab.tokenizer_metrics import piece_pattern
from cloze.pipeline.vocab.trainers import count_segments

MARGIN = 0.01  # margin by which a new Unigram token is likelier than the tokens it replaces
UNKNOWN_COST = 10.0  # Unigram: cost of an unknown character, relative to the least likely token
LONGEST = 64  # characters; longer segments are no words
LENGTH, LIKELIHOOD = "length", "likelihood"  # what words are chosen by


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A candidate word: its normalized text, its numbers of occurrences and tokens, its score."""

    text: str
    count: int
    pieces: int
    score: float


def count_candidates(tokenizer: Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """Count the words of letters after a space, as the tokenizer's normalizer writes them.

    A tokenizer that splits off punctuation before a word (BERT's, but not GPT-2's and ALBERT's)
    finds the word behind it, too.
    """
    splits_punctuation = tokenizer.kind == "wordpiece"
    counts: Counter[str] = Counter()
    for segment, count in count_segments(texts).items():
        words = piece_pattern().findall(_normalized(tokenizer, segment))
        for word in words if splits_punctuation else words[:1]:
            if is_word(word):
                counts[word] += count
    return counts


def is_word(text: str) -> bool:
    """Return whether the text consists of 2 to LONGEST letters and marks."""
    return (
        2 <= len(text) <= LONGEST
        and not re.search(r"[\d_]", text)
        and bool(piece_pattern().fullmatch(text))
    )


def encode_after_space(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[U32, I64]:
    """Return `Tokenizer.encode_flat` of texts that follow a space."""
    return tokenizer.encode_flat(texts, np.ones(len(texts), np.bool_))


def score_words(
    tokenizer: Tokenizer, counts: Counter[str], texts: Sequence[str], choose_by: str = LENGTH
) -> list[Word]:
    """Return the words with their counts, numbers of tokens and scores, in the given order.

    Args:
        choose_by: `length` or `likelihood`, of tokens with their shares of these words' text.
    """
    ids, offsets = encode_after_space(tokenizer, texts)
    lengths, frequencies = np.diff(offsets), np.array([counts[text] for text in texts], np.float64)
    unknown = np.concatenate([[0], np.cumsum(ids == tokenizer.special.unk)])
    has_unknown = unknown[offsets[1:]] > unknown[offsets[:-1]]
    characters = np.array([len(text) for text in texts], np.int64)
    pieces = np.where(has_unknown, np.maximum(characters, np.maximum(lengths, 2)), lengths)
    scores = frequencies * (pieces - 1)
    if choose_by == LIKELIHOOD:
        shares = np.bincount(ids, weights=np.repeat(frequencies, lengths))
        total = max(shares.sum(), 1.0)
        bits = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(shares, 1.0) / total)[ids])])
        old = np.where(
            has_unknown, -pieces * math.log(total), bits[offsets[1:]] - bits[offsets[:-1]]
        )
        scores = np.where(
            pieces > 1, frequencies * (np.log(np.maximum(frequencies, 1.0) / total) - old), 0.0
        ).round(3)  # machines' logarithms differ in the last bits
    return [
        Word(text=text, count=counts[text], pieces=own, score=score)
        for text, own, score in zip(texts, pieces.tolist(), scores.tolist(), strict=True)
    ]


def choose(
    tokenizer: Tokenizer,
    counts: Counter[str],
    number: int,
    min_frequency: int,
    choose_by: str = LENGTH,
) -> list[Word]:
    """Return the `number` words with the highest scores above 0; ties in code point order."""
    frequent = sorted(word for word, count in counts.items() if count >= min_frequency)
    scored = score_words(tokenizer, counts, frequent, choose_by)
    candidates = [word for word in scored if word.score > 0]
    candidates.sort(key=lambda word: (-word.score, word.text))
    unsplit = (word for word in candidates if _is_unsplit(tokenizer, word.text))
    return list(itertools.islice(unsplit, number))


def parse_words(tokenizer: Tokenizer, lines: Sequence[str], name: str) -> list[str]:
    """Return a file's words, normalized and without duplicates; `name` is the file, for messages.

    Raises:
        UsageError: a line is no word of letters, so that no token could represent it.
    """
    words: dict[str, None] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        word = _normalized(tokenizer, line).strip()
        if not is_word(word) or not _is_unsplit(tokenizer, word):
            raise UsageError(
                f"{name}, line {number} ({line[:60]!r}) is not a single word of letters; correct "
                f"or remove the line"
            )
        words[word] = None
    return list(words)


def extend(
    tokenizer: Tokenizer, words: Sequence[Word], total: int, name: str
) -> tuple[Tokenizer, list[Word]]:
    """Return the tokenizer with the words as tokens, and the words that became one token.

    WordPiece gets the words themselves: the longest match wins. A byte-level BPE gets merges that
    build a word (after a space) from its old tokens, with the intermediate tokens. They follow all
    old merges, so old merges still apply first, and transformers' classes, which know only tokens
    and merges, behave the same. Unigram gets the word with the log-probability of its share of the
    text, but slightly more than that of its old tokens at least.

    Args:
        words: words to add; words that are one token already are skipped.
        total: number of words in the text in which `words` were counted; 0 without a text.
        name: path of the tokenizer, for messages.

    Raises:
        UsageError: the tokenizer is of another kind.
    """
    new = [word for word in words if word.pieces > 1]
    description = json.loads(tokenizer.backend.to_str())
    model = description["model"]
    is_byte_level = (description.get("pre_tokenizer") or {}).get("type") == "ByteLevel"
    if tokenizer.kind == "wordpiece":
        number = itertools.count(tokenizer.vocab_size)
        model["vocab"] |= {
            word.text: next(number) for word in new if word.text not in model["vocab"]
        }
    elif tokenizer.kind == "bpe" and is_byte_level:
        model["merges"] = [list(pair) for pair in _merges(tokenizer, model, new)]
    elif tokenizer.kind == "unigram":
        if len(model["vocab"]) != tokenizer.vocab_size:
            raise UsageError(
                f"{name} has tokens outside of its Unigram model, so none can be appended; extend "
                f"another tokenizer"
            )
        _add_scores(tokenizer, model["vocab"], new, total)
    else:
        raise UsageError(
            f"{name} is a {tokenizer.kind} tokenizer that cannot be extended; use WordPiece, "
            f"byte-level BPE or Unigram"
        )
    extended = Tokenizer.of(tokenizers.Tokenizer.from_str(json.dumps(description)), name)
    _, offsets = encode_after_space(extended, [word.text for word in new])
    lengths = np.diff(offsets).tolist()
    return extended, [word for word, length in zip(new, lengths, strict=True) if length == 1]


def _merges(
    tokenizer: Tokenizer, model: dict[str, object], words: Sequence[Word]
) -> list[tuple[str, str]]:
    """Return all merges, the new ones last; append their tokens to the model's vocabulary."""
    vocab: dict[str, int] = model["vocab"]  # type: ignore[assignment]
    merges = [(left, right) for left, right in model["merges"]]  # type: ignore[attr-defined]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    number = tokenizer.vocab_size
    names = {index: piece for piece, index in vocab.items()}
    ids, offsets = encode_after_space(tokenizer, [word.text for word in words])
    for first, end in itertools.pairwise(offsets.tolist()):
        pieces = _merged([names[index] for index in ids[first:end].tolist()], ranks)
        while len(pieces) > 1:
            pair = (pieces[0], pieces[1])
            ranks[pair] = len(merges)
            merges.append(pair)
            if "".join(pair) not in vocab:
                vocab["".join(pair)] = number
                number += 1
            pieces = _merged(pieces, ranks)
    return merges


def _merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Apply merges in the order of learning, as BPE does, to partly merged tokens."""
    while True:
        mergeable = [
            (ranks[pair], index)
            for index, pair in enumerate(itertools.pairwise(pieces))
            if pair in ranks
        ]
        if not mergeable:
            return pieces
        _, index = min(mergeable)
        pieces = [*pieces[:index], pieces[index] + pieces[index + 1], *pieces[index + 2 :]]


def _add_scores(
    tokenizer: Tokenizer, vocab: list[list[object]], words: Sequence[Word], total: int
) -> None:
    """Append `▁word` tokens with log-probabilities."""
    scores = np.array([score for _, score in vocab], np.float64)
    scores[tokenizer.special.unk] = scores.min() - UNKNOWN_COST
    ids, offsets = encode_after_space(tokenizer, [word.text for word in words])
    existing = {piece for piece, _ in vocab}
    for word, (first, end) in zip(words, itertools.pairwise(offsets.tolist()), strict=True):
        if METASPACE + word.text not in existing:
            replaced_score = float(scores[ids[first:end]].sum()) + MARGIN
            share = math.log(word.count / total) if word.count else -math.inf
            vocab.append(
                [METASPACE + word.text, round(min(max(replaced_score, share), -MARGIN), 4)]
            )


def _is_unsplit(tokenizer: Tokenizer, word: str) -> bool:
    """Return whether the pre-tokenizer leaves a word after a space whole, as one token needs."""
    splitter = tokenizer.backend.pre_tokenizer
    return splitter is None or (
        len(splitter.pre_tokenize_str(_normalized(tokenizer, f" {word}"))) == 1
    )


def _normalized(tokenizer: Tokenizer, text: str) -> str:
    normalizer = tokenizer.backend.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))
