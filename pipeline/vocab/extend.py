"""Stage "vocab": a vocabulary extended by words of a domain, so that a trained model can go on with a longer embedding matrix.

Every old piece keeps its id, new pieces come behind the last one. Which words a corpus wants is a matter of how much shorter
it gets: a word w that occurs f(w) times in n(w) pieces saves

    score(w) = f(w) · (n(w) - 1)

pieces when it becomes one. To shorten the text most with each piece is what BPE does greedily (Gage 1994; Gallé 2019, "Investigating the
Effectiveness of BPE: The Power of Shorter Sequences"); here over whole words alone, as the vocabularies of a domain are wanted for its terms
(Beltagy et al. 2019, SciBERT; Chalkidis et al. 2020, Legal-BERT; Tai et al. 2020, exBERT, adds such a vocabulary to BERT's).
A word that the old vocabulary cannot spell counts as broken into its characters.
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

from pipeline.core.errors import UsageError
from pipeline.tokenizer.special import METASPACE
from pipeline.tokenizer.tokenizer import Tokenizer
from pipeline.vocab.measure import word_pattern
from pipeline.vocab.trainers.counting import count_stretches

MARGIN = 0.01  # by which a new Unigram piece is likelier than the pieces it replaces
UNKNOWN_COST = 10.0  # Unigram: what an unknown character costs more than the least likely piece
LONGEST = 64  # characters; what is longer is no word


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word to be added: as the normalizer leaves it, how often it occurs, and in how many pieces."""

    text: str
    count: int
    pieces: int

    @property
    def score(self) -> int:
        return self.count * (self.pieces - 1)


def count_candidates(tokenizer: Tokenizer, texts: Iterator[str]) -> Counter[str]:
    """How often each word of letters stands behind a space, as the tokenizer's normalizer leaves it.

    Marks of punctuation before a word that the tokenizer cuts off (BERT's does, GPT-2's and ALBERT's join them) do not hide it.
    """
    letters = tokenizer.kind == "wordpiece"
    words: Counter[str] = Counter()
    for stretch, count in count_stretches(texts).items():
        found = word_pattern().findall(_normalized(tokenizer.backend, stretch))
        for word in found if letters else found[:1]:
            if is_word(word):
                words[word] += count
    return words


def is_word(text: str) -> bool:
    """Letters and their marks alone, two of them or more."""
    return 2 <= len(text) <= LONGEST and not re.search(r"[\d_]", text) and bool(word_pattern().fullmatch(text))


def weigh(tokenizer: Tokenizer, counts: Counter[str], words: Iterable[str]) -> list[Word]:
    """The words with their counts and pieces, in the order given."""
    texts = list(words)
    ids, offsets = tokenizer.encode_flat(texts, np.ones(len(texts), np.bool_))
    unknown = np.concatenate([[0], np.cumsum(ids == tokenizer.special.unk)])
    hidden = (unknown[offsets[1:]] - unknown[offsets[:-1]]) > 0
    lengths = np.diff(offsets).tolist()
    return [
        Word(text=text, count=counts[text], pieces=max(length, 2, len(text)) if lost else length)
        for text, length, lost in zip(texts, lengths, hidden.tolist(), strict=True)
    ]


def choose(tokenizer: Tokenizer, counts: Counter[str], number: int, min_frequency: int) -> list[Word]:
    """The `number` words with the highest score, by code points where equal; those that are one piece already have none."""
    frequent = sorted(word for word, count in counts.items() if count >= min_frequency)
    worth = [word for word in weigh(tokenizer, counts, frequent) if word.score > 0]
    ranked = sorted(worth, key=lambda word: (-word.score, word.text))
    return list(itertools.islice((word for word in ranked if _is_one(tokenizer, word.text)), number))


def given_words(tokenizer: Tokenizer, lines: Sequence[str], name: str) -> list[str]:
    """A file's words, one a line, as the normalizer leaves them, each once; `name` is the file, for messages.

    Raises:
        UsageError: a line is no word of letters, so that no piece could stand for it.
    """
    found: dict[str, None] = {}
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        word = _normalized(tokenizer.backend, line.strip()).strip()
        if not is_word(word) or not _is_one(tokenizer, word):
            raise UsageError(
                f"{name}, line {number + 1} ({line.strip()[:60]!r}) is no single word of letters; mend or remove it"
            )
        found[word] = None
    return list(found)


def extend(tokenizer: Tokenizer, words: Sequence[Word], running: int, name: str) -> tuple[Tokenizer, list[Word]]:
    """The tokenizer with the words as whole pieces, and the words that became one.

    WordPiece gets the words themselves: the longest piece wins. A byte-level BPE gets the merges that put a word (behind a space)
    together from its old pieces, after all old merges, with the pieces on the way: so old merges still come first, and transformers'
    classes, which know pieces and merges alone, do the same. Unigram gets the word with the log-probability of its share of the
    text, and at least what beats its old pieces by a hair.

    Args:
        words: to add; those that are one piece already are passed over.
        running: words in the text that `words` were counted in; 0 where there is none.
        name: the tokenizer's path, for messages.

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
                f"{name} keeps tokens outside of its Unigram model, behind which no piece can be added; use another base"
            )
        _add_scores(tokenizer, model["vocab"], new, running)
    else:
        raise UsageError(
            f"{name} is a {tokenizer.kind} tokenizer, and only WordPiece, byte-level BPE and Unigram can be extended"
        )
    extended = Tokenizer.of(tokenizers.Tokenizer.from_str(json.dumps(description)), name)
    texts = [word.text for word in new]
    _, offsets = extended.encode_flat(texts, np.ones(len(texts), np.bool_))
    return extended, [word for word, length in zip(new, np.diff(offsets).tolist(), strict=True) if length == 1]


def _append(vocab: dict[str, int], pieces: Iterable[str], number: int) -> None:
    for piece in pieces:
        if piece not in vocab:
            vocab[piece] = number
            number += 1


def _merges(tokenizer: Tokenizer, model: dict[str, object], words: Sequence[Word]) -> list[tuple[str, str]]:
    """All merges, the new ones last; the pieces they make are appended to the model's vocabulary."""
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
    """Apply merges, the first learned first, as BPE does, to pieces on which some have been applied."""
    while True:
        known = [(ranks[pair], place) for place, pair in enumerate(itertools.pairwise(pieces)) if pair in ranks]
        if not known:
            return pieces
        _, place = min(known)
        pieces = [*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :]]


def _add_scores(tokenizer: Tokenizer, vocab: list[list[object]], words: Sequence[Word], running: int) -> None:
    """Append `▁word` pieces with log-probabilities."""
    scores = np.array([score for _, score in vocab], np.float64)
    scores[tokenizer.special.unk] = scores.min() - UNKNOWN_COST
    ids, offsets = tokenizer.encode_flat([word.text for word in words], np.ones(len(words), np.bool_))
    present = {piece for piece, _ in vocab}
    for word, (first, end) in zip(words, itertools.pairwise(offsets.tolist()), strict=True):
        if METASPACE + word.text not in present:
            replaced = float(scores[ids[first:end]].sum()) + MARGIN
            share = math.log(word.count / running) if word.count else -math.inf
            vocab.append([METASPACE + word.text, round(min(max(replaced, share), -MARGIN), 4)])


def _is_one(tokenizer: Tokenizer, word: str) -> bool:
    """Whether the pre-tokenizer leaves a word behind a space whole, so that one piece can stand for it."""
    text = _normalized(tokenizer.backend, f" {word}")
    return tokenizer.backend.pre_tokenizer is None or len(tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)) == 1


def _normalized(backend: tokenizers.Tokenizer, text: str) -> str:
    return str(backend.normalizer.normalize_str(text)) if backend.normalizer is not None else text
