"""Extension of a vocabulary by words of a domain, for a model with a longer embedding matrix.

Existing tokens keep their ids; new ones are appended. A word w that occurs f(w) times in n(w)
tokens saves

    score(w) = f(w) · (n(w) - 1)

tokens when it becomes one token. BPE greedily shortens the text in the same way (Gage 1994; Gallé
2019, "Investigating the Effectiveness of BPE: The Power of Shorter Sequences"). Here only whole
words count, because vocabularies of a domain are wanted for its terms (Beltagy et al. 2019,
SciBERT; Chalkidis et al. 2020, Legal-BERT; Tai et al. 2020, exBERT, adds such a vocabulary to
BERT's). A word with unknown tokens counts as split into its characters.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers

from cloze.core.errors import UsageError
from cloze.pipeline.tokenizer.special import METASPACE
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.vocab.tokenizer_metrics import piece_pattern
from cloze.pipeline.vocab.wordpiece import count_segments

MARGIN = 0.01  # margin by which a new Unigram token is likelier than the tokens it replaces
UNKNOWN_COST = 10.0  # Unigram: cost of an unknown character, relative to the least likely token
LONGEST = 64  # characters; longer segments are no words


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A candidate word: its normalized text, its number of occurrences and its number of tokens."""

    text: str
    count: int
    pieces: int

    @property
    def score(self) -> int:
        return self.count * (self.pieces - 1)


def count_candidates(tokenizer: Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """Count the words of letters after a space, as the tokenizer's normalizer writes them.

    A tokenizer that splits off punctuation before a word (BERT's, but not GPT-2's and ALBERT's)
    finds the word behind it, too.
    """
    letters = tokenizer.kind == "wordpiece"
    words: Counter[str] = Counter()
    for stretch, count in count_segments(texts).items():
        found = piece_pattern().findall(_normalized(tokenizer.backend, stretch))
        for word in found if letters else found[:1]:
            if is_word(word):
                words[word] += count
    return words


def is_word(text: str) -> bool:
    """Return whether the text consists of 2 to LONGEST letters and marks."""
    return (
        2 <= len(text) <= LONGEST
        and not re.search(r"[\d_]", text)
        and bool(piece_pattern().fullmatch(text))
    )


def count_words(tokenizer: Tokenizer, counts: Counter[str], words: Iterable[str]) -> list[Word]:
    """Return the words with their counts and numbers of tokens, in the given order."""
    texts = list(words)
    ids, offsets = tokenizer.encode_flat(texts, np.ones(len(texts), np.bool_))
    unknown = np.concatenate([[0], np.cumsum(ids == tokenizer.special.unk)])
    hidden = (unknown[offsets[1:]] - unknown[offsets[:-1]]) > 0
    lengths = np.diff(offsets).tolist()
    return [
        Word(text=text, count=counts[text], pieces=max(length, 2, len(text)) if lost else length)
        for text, length, lost in zip(texts, lengths, hidden.tolist(), strict=True)
    ]


def choose(
    tokenizer: Tokenizer, counts: Counter[str], number: int, min_frequency: int
) -> list[Word]:
    """Return the `number` words with the highest scores above 0; ties in code point order."""
    frequent = sorted(word for word, count in counts.items() if count >= min_frequency)
    worth = [word for word in count_words(tokenizer, counts, frequent) if word.score > 0]
    ranked = sorted(worth, key=lambda word: (-word.score, word.text))
    return list(
        itertools.islice((word for word in ranked if _is_one(tokenizer, word.text)), number)
    )


def given_words(tokenizer: Tokenizer, lines: Sequence[str], name: str) -> list[str]:
    """Return a file's words, normalized and without duplicates; `name` is the file, for messages.

    Raises:
        UsageError: a line is no word of letters, so that no token could represent it.
    """
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        word = _normalized(tokenizer.backend, line.strip()).strip()
        if not is_word(word) or not _is_one(tokenizer, word):
            raise UsageError(
                f"{name}, line {number + 1} ({line.strip()[:60]!r}) is no single word of letters; "
                f"mend or remove it"
            )
        found[word] = None
    return list(found)


def extend(
    tokenizer: Tokenizer, words: Sequence[Word], running: int, name: str
) -> tuple[Tokenizer, list[Word]]:
    """Return the tokenizer with the words as tokens, and the words that became one token.

    WordPiece gets the words themselves: the longest match wins. A byte-level BPE gets merges that
    build a word (after a space) from its old tokens, with the intermediate tokens. They follow all
    old merges, so old merges still apply first, and transformers' classes, which know only tokens
    and merges, behave the same. Unigram gets the word with the log-probability of its share of the
    text, but slightly more than that of its old tokens at least.

    Args:
        words: words to add; words that are one token already are skipped.
        running: number of words in the text in which `words` were counted; 0 without a text.
        name: path of the tokenizer, for messages.

    Raises:
        UsageError: the tokenizer is of another kind.
    """
    new = [word for word in words if word.pieces > 1]
    description = json.loads(tokenizer.backend.to_str())
    model = description["model"]
    byte_level = (description.get("pre_tokenizer") or {}).get("type") == "ByteLevel"
    if tokenizer.kind == "wordpiece":
        _append(model["vocab"], (word.text for word in new), tokenizer.vocab_size)
    elif tokenizer.kind == "bpe" and byte_level:
        model["merges"] = [list(pair) for pair in _merges(tokenizer, model, new)]
    elif tokenizer.kind == "unigram":
        if len(model["vocab"]) != tokenizer.vocab_size:
            raise UsageError(
                f"{name} keeps tokens outside of its Unigram model, behind which no piece can be "
                f"added; use another base"
            )
        _add_scores(tokenizer, model["vocab"], new, running)
    else:
        raise UsageError(
            f"{name} is a {tokenizer.kind} tokenizer, and only WordPiece, byte-level BPE and "
            f"Unigram can be extended"
        )
    extended = Tokenizer.of(tokenizers.Tokenizer.from_str(json.dumps(description)), name)
    texts = [word.text for word in new]
    _, offsets = extended.encode_flat(texts, np.ones(len(texts), np.bool_))
    return extended, [
        word for word, length in zip(new, np.diff(offsets).tolist(), strict=True) if length == 1
    ]


def _append(vocab: dict[str, int], pieces: Iterable[str], number: int) -> None:
    for piece in pieces:
        if piece not in vocab:
            vocab[piece] = number
            number += 1


def _merges(
    tokenizer: Tokenizer, model: dict[str, object], words: Sequence[Word]
) -> list[tuple[str, str]]:
    """Return all merges, the new ones last; append their tokens to the model's vocabulary."""
    vocab: dict[str, int] = model["vocab"]  # type: ignore[assignment]
    merges = [(left, right) for left, right in model["merges"]]  # type: ignore[attr-defined]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    number = tokenizer.vocab_size
    names = {index: piece for piece, index in vocab.items()}
    texts = [word.text for word in words]
    ids, offsets = tokenizer.encode_flat(texts, np.ones(len(texts), np.bool_))
    for first, end in itertools.pairwise(offsets.tolist()):
        pieces = _merged([names[index] for index in ids[first:end].tolist()], ranks)
        while len(pieces) > 1:
            pair = (pieces[0], pieces[1])
            ranks[pair] = len(merges)
            merges.append(pair)
            _append(vocab, ["".join(pair)], number)
            number = max(number, vocab["".join(pair)] + 1)
            pieces = _merged(pieces, ranks)
    return merges


def _merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Apply merges in the order of learning, as BPE does, to partly merged tokens."""
    while True:
        known = [
            (ranks[pair], place)
            for place, pair in enumerate(itertools.pairwise(pieces))
            if pair in ranks
        ]
        if not known:
            return pieces
        _, place = min(known)
        pieces = [*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :]]


def _add_scores(
    tokenizer: Tokenizer, vocab: list[list[object]], words: Sequence[Word], running: int
) -> None:
    """Append `▁word` tokens with log-probabilities."""
    scores = np.array([score for _, score in vocab], np.float64)
    scores[tokenizer.special.unk] = scores.min() - UNKNOWN_COST
    ids, offsets = tokenizer.encode_flat(
        [word.text for word in words], np.ones(len(words), np.bool_)
    )
    present = {piece for piece, _ in vocab}
    for word, (first, end) in zip(words, itertools.pairwise(offsets.tolist()), strict=True):
        if METASPACE + word.text not in present:
            replaced = float(scores[ids[first:end]].sum()) + MARGIN
            share = math.log(word.count / running) if word.count else -math.inf
            vocab.append([METASPACE + word.text, round(min(max(replaced, share), -MARGIN), 4)])


def _is_one(tokenizer: Tokenizer, word: str) -> bool:
    """Return whether the pre-tokenizer leaves a word after a space whole, as one token needs."""
    text = _normalized(tokenizer.backend, f" {word}")
    return (
        tokenizer.backend.pre_tokenizer is None
        or len(tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)) == 1
    )


def _normalized(backend: tokenizers.Tokenizer, text: str) -> str:
    return str(backend.normalizer.normalize_str(text)) if backend.normalizer is not None else text
