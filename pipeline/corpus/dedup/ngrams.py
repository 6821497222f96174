"""Corpus stage: hashes of word n-grams, which the search for copies and for text of tasks both look at.

Words are compared without case and punctuation. In scripts that put no space between words (Chinese, Japanese, Thai
and their like) every letter counts as one. Everything is numpy over a whole document at once.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys

I64 = npt.NDArray[np.int64]

_SPACE = 0x20
_MANY_SIGNS = 40
_NO_WORD = re.compile(r"[\W_]+")
# Thai to Myanmar, Khmer, kana, ideographs and their supplements
_UNSPACED = re.compile(
    "([\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
_ASCII = bytes(
    code + 32 if 65 <= code <= 90 else code if 48 <= code <= 57 or 97 <= code <= 122 else _SPACE for code in range(128)
)
_ASCII_WORDS = _ASCII + bytes(range(128, 256))

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_LETTERS = random_keys.derive(0x5348494E, np.arange(256))  # a random number for each byte


def normal(text: str) -> bytes:
    """The words of `text` in lower case with single spaces between them, in UTF-8; lone surrogates are kept as they are."""
    if text.isascii():
        return _single_spaced(_lowered(text))
    # no word reaches over a full stop and a blank, and most sentences are of ASCII alone, which is much quicker
    runs = (" ".join(run) for _, run in itertools.groupby(text.split(". "), str.isascii))
    return _single_spaced(b" ".join(map(_lowered, runs)))


def _single_spaced(data: bytes) -> bytes:
    """The words with one space between them, and none at the ends."""
    letters = np.frombuffer(data, dtype=np.uint8)
    inked = letters != _SPACE
    kept = inked.copy()
    kept[1:] |= inked[:-1]
    words: bytes = letters[kept].tobytes()
    return words.rstrip(b" ")


def _lowered(text: str) -> bytes:
    """The text in lower case, with a space for everything that is no letter and no digit."""
    if text.isascii():
        return text.encode("ascii").translate(_ASCII_WORDS)
    lowered = text.lower()
    letters = "".join(sorted(set(lowered)))  # few, so that looking at each costs less than a pattern over the text
    signs = [letter for letter in letters if letter > "\x7f" and not letter.isalnum()]
    if len(signs) > _MANY_SIGNS:
        lowered = _NO_WORD.sub(" ", lowered)
    else:
        for sign in signs:
            lowered = lowered.replace(sign, " ")
    if _UNSPACED.search(letters):
        lowered = _UNSPACED.sub(r" \1 ", lowered)
    return lowered.encode("utf-8", "surrogatepass").translate(_ASCII_WORDS)


def _powers(count: int) -> tuple[random_keys.U64, random_keys.U64]:
    """_BASE**i and its inverse modulo 2**64, for i below `count`."""
    tables = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        table = np.full(count, base, dtype=np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table))
    return tables[0], tables[1]


_KNOWN_POWERS = _powers(1 << 16)
_BLOCK = 1 << 12  # letters that are hashed at a time, so that what is made of them on the way stays in the cache


class Words:
    """The words of one text, ready to be hashed in runs of any length.

    Attributes:
        count: how many there are.
        starts, ends: int64 [count], bytes of `normal(text)`.
    """

    def __init__(self, data: bytes) -> None:
        """Args: data: what `normal` gave."""
        letters = np.frombuffer(data, dtype=np.uint8)
        spaces = np.flatnonzero(letters == _SPACE)
        self.data = data
        self.starts = np.concatenate(([0], spaces + 1))
        self.ends = np.concatenate((spaces, [letters.size]))
        self.count = self.starts.size if data else 0
        self._powers, self._inverses = _KNOWN_POWERS if letters.size < _KNOWN_POWERS[0].size else _powers(letters.size + 1)
        self._sums = np.zeros(letters.size + 1, dtype=np.uint64)
        room = np.empty(min(_BLOCK, letters.size), dtype=np.uint64)
        with np.errstate(over="ignore"):  # a polynomial hash modulo 2**64 of every run, from one prefix sum
            for begin in range(0, letters.size, _BLOCK):
                block = letters[begin : begin + _BLOCK]
                terms = np.take(_LETTERS, block, out=room[: block.size], mode="wrap")  # another mode makes a copy first
                terms *= self._powers[begin : begin + block.size]
                terms[0] += self._sums[begin]
                np.cumsum(terms, out=self._sums[begin + 1 : begin + 1 + block.size])

    def ngrams(self, length: int) -> random_keys.U64:
        """uint64 [count - length + 1]: a hash of each run of `length` words; none where there are fewer."""
        if self.count < length:
            return np.zeros(0, dtype=np.uint64)
        starts, ends = self.starts[: self.starts.size - length + 1], self.ends[length - 1 :]
        with np.errstate(over="ignore"):
            return random_keys.mix((self._sums[ends] - self._sums[starts]) * self._inverses[starts])

    def text(self, first: int, length: int) -> str:
        """The words of a run."""
        return self.data[self.starts[first] : self.ends[first + length - 1]].decode("utf-8", "replace")
