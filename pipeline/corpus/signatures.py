"""Signatures of documents, from hashes of word n-grams.

Words are compared without case and punctuation, in Unicode's composed form (NFC). In scripts
without spaces (Chinese, Japanese, Thai and others) every letter is hashed separately with its
marks, and two or three letters count as a word (core/words.py). An n-gram there begins at every
letter, so it is found wherever a quotation begins. All functions work on whole documents in numpy.
"""

from __future__ import annotations

import functools
import hashlib
import math
import unicodedata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys
from cloze.core.ragged import I64
from cloze.core.words import IGNORABLE, UNSPACED_LETTER, is_mark, letters_a_word, letters_apart
from cloze.pipeline.corpus.options import DEFAULT, MinHash

_SPACE = 0x20
_MANY_CAPITALS, _MANY_SIGNS = 8, 40
# smallest first byte of a UTF-8 character of three bytes or more; unspaced scripts have no shorter
# ones
_SEVERAL = 0xE0
_WORD = 6  # sixths in a word; an ideograph counts 3, a Thai letter 2


@functools.cache
def _folded(letter: str) -> str:
    """Return it in lower case; a space for punctuation and "" for ignorable characters."""
    if letter != letter.lower():
        return "".join(map(_folded, letter.lower()))
    is_significant = letter.isalnum() or letter.isascii() or is_mark(letter)
    return "" if letter in IGNORABLE else letter if is_significant else " "


_ASCII = bytes(
    code + 32 if 65 <= code <= 90 else code if 48 <= code <= 57 or 97 <= code <= 122 else _SPACE
    for code in range(128)
)
_ASCII_WORDS = _ASCII + bytes(range(128, 256))

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_LETTERS = random_keys.fold_in(0x5348494E, np.arange(256))  # a random number for each byte


def normalize_words(text: str) -> bytes:
    """Return the words of `text` in lower case with single spaces, as UTF-8.

    Lone surrogates are kept.
    """
    if not text.isascii():
        text = _without_signs(unicodedata.normalize("NFC", text))
    return _single_spaced(text.encode("utf-8", "surrogatepass").translate(_ASCII_WORDS))


def _single_spaced(data: bytes) -> bytes:
    """Return the words separated by single spaces, without spaces at the ends."""
    letters = np.frombuffer(data, dtype=np.uint8)
    inked = letters != _SPACE
    mask = inked.copy()
    mask[1:] |= inked[:-1]
    words: bytes = letters[mask].tobytes()
    return words.rstrip(b" ")


def _without_signs(text: str) -> str:
    """Return the text with its characters beyond ASCII in lower case, and spaces for signs."""
    # Few different ones, so replacing each is faster than looking at every character.
    beyond = text.encode("utf-8", "surrogatepass").translate(None, bytes(range(128)))
    letters = set(beyond.decode("utf-8", "surrogatepass"))
    # A sigma at the end of a word has a small letter of its own.
    if "Σ" in letters or sum(map(str.isupper, letters)) > _MANY_CAPITALS:
        text, letters = text.lower(), set("".join(letters).lower())
    changes = {letter: sign for letter in letters if (sign := _folded(letter)) != letter}
    if len(changes) > _MANY_SIGNS:
        text = text.translate({ord(letter): sign for letter, sign in changes.items()})
    else:
        for letter, sign in changes.items():
            text = text.replace(letter, sign)
    if UNSPACED_LETTER.search("".join(letters)):
        text = letters_apart(text)
    return text


def _powers(count: int) -> tuple[random_keys.U64, random_keys.U64]:
    """Return _BASE**i and its inverse modulo 2**64, for i < `count`."""
    tables = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        table = np.full(count, base, dtype=np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table))
    return tables[0], tables[1]


_KNOWN_POWERS = _powers(1 << 18)  # longer than nearly all documents
_LETTER_BLOCK = 1 << 12  # letters hashed at a time, so that intermediate arrays fit in the cache


class WordSequence:
    """Words of one text, for hashing n-grams of any length."""

    def __init__(self, data: bytes, letters_alone: bool = False) -> None:
        """Hash all prefixes of the text.

        Args:
            data: result of `normalize_words`.
            letters_alone: in scripts without spaces every letter is a word.
        """
        letters = np.frombuffer(data, dtype=np.uint8)
        spaces = np.flatnonzero(letters == _SPACE)
        self.data = data
        # int64 [words and such letters], byte offsets in `data`
        self.starts = np.concatenate(([0], spaces + 1))
        self.ends = np.concatenate((spaces, [letters.size]))
        self._parts = None if letters_alone else _parts_before(letters, self.starts)
        words = self.starts.size if self._parts is None else max(1, int(self._parts[-1]) // _WORD)
        # number of words; in scripts without spaces two or three letters count as one
        self.count = words if data else 0
        self._powers, self._inverses = (
            _KNOWN_POWERS if letters.size < _KNOWN_POWERS[0].size else _powers(letters.size + 1)
        )
        self._sums = np.zeros(letters.size + 1, dtype=np.uint64)
        room = np.empty(min(_LETTER_BLOCK, letters.size), dtype=np.uint64)
        # polynomial hash modulo 2**64 of every run, from one prefix sum
        with np.errstate(over="ignore"):
            for begin in range(0, letters.size, _LETTER_BLOCK):
                block = letters[begin : begin + _LETTER_BLOCK]
                # other modes than wrap copy first
                terms = np.take(_LETTERS, block, out=room[: block.size], mode="wrap")
                terms *= self._powers[begin : begin + block.size]
                terms[0] += self._sums[begin]
                np.cumsum(terms, out=self._sums[begin + 1 : begin + 1 + block.size])

    def ngrams(self, length: int) -> random_keys.U64:
        """Return the hash of each run of `length` words, uint64 [n]; empty for shorter texts.

        A run begins at every word, and at every letter of unspaced scripts.
        """
        if self.count < length:
            return np.zeros(0, dtype=np.uint64)
        starts, ends = self._runs(length)
        with np.errstate(over="ignore"):
            return random_keys.splitmix64(
                (self._sums[ends] - self._sums[starts]) * self._inverses[starts]
            )

    def _runs(self, length: int) -> tuple[I64, I64]:
        """Return the starts and ends of the runs; the last word of a run is included whole."""
        if self._parts is None:
            return self.starts[: self.starts.size - length + 1], self.ends[length - 1 :]
        last = np.searchsorted(self._parts, self._parts[:-1] + length * _WORD)
        last = last[last < self._parts.size]
        if not last.size:  # the whole text is less than one word
            last = np.array([self.starts.size])
        return self.starts[: last.size], self.ends[last - 1]

    def text(self, first: int, length: int) -> str:
        """Return the words of a run."""
        starts, ends = self._runs(length)
        return self.data[starts[first] : ends[first]].decode("utf-8", "replace")


def _parts_before(letters: npt.NDArray[np.uint8], starts: I64) -> I64 | None:
    """Return the sixths of words before each word, and the total, int64 [words + 1].

    None if the text has no unspaced script.
    """
    if not letters.size or letters.max() < _SEVERAL:
        return None
    unspaced = np.flatnonzero(letters[starts] >= _SEVERAL)
    lead, begin = letters[starts[unspaced]].astype(np.int64), starts[unspaced]
    second, third = letters[begin + 1] & 0x3F, letters[begin + 2] & 0x3F
    code = ((lead & 0x0F) << 12) | (second.astype(np.int64) << 6) | third
    four = lead >= 0xF0
    code[four] = ((code[four] & 0x7FFF) << 6) | (letters[begin[four] + 3] & 0x3F)
    parts = np.full(starts.size, _WORD, np.int64)
    parts[unspaced] //= letters_a_word()[code]
    return np.concatenate(([0], np.cumsum(parts)))


U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]

EXACT_BYTES = 16
SKETCH_BYTES = 512
_BINS = 2 * SKETCH_BYTES  # four bits each
_BIN_SHIFT = np.uint32(33 - _BINS.bit_length())  # the first bits of a hash name its bin
_VALUES = 15  # of a filled bin
# An estimate has a standard deviation of at most sqrt(J (1 - J) / bins), and 5 % more because one
# in 15 unequal bins agrees. Beyond four of them lies one pair in 30,000.
_DEVIATIONS = 4.2
_LOW_BITS = np.uint64(0x7777777777777777)
_BLOCK = 1 << 11  # n-grams hashed at a time, so that a block of hashes fits in the cache
_SMALLEST_BUFFER = 16  # numpy's minimum
_MOST = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class Signature:
    """Hashes of a document for finding its duplicates."""

    exact: bytes  # 16 bytes, equal for texts that differ only in case, punctuation and spacing
    # uint64 [bands]; near duplicates share at least one. None without MinHash.
    bands: random_keys.U64 | None = None
    sketch: U8 | None = None  # uint8 [SKETCH_BYTES], see `_sketch`. None without MinHash.


def signature(text: str, minhash: MinHash | None = DEFAULT) -> Signature:
    """Return the signature of a text; texts without words have that of the empty text."""
    data = normalize_words(text)
    exact = hashlib.blake2b(data, digest_size=EXACT_BYTES).digest()
    if minhash is None:
        return Signature(exact)
    hashes = shingles(data, minhash.ngram)
    minima = _minima(hashes, minhash.minima)
    with np.errstate(over="ignore"):
        bands = random_keys.splitmix64(
            (minima.reshape(minhash.bands, minhash.rows) * _row_factors(minhash.rows)).sum(
                axis=1, dtype=np.uint64
            )
        )
    return Signature(exact, bands, _sketch(hashes))


def shingles(data: bytes, length: int = DEFAULT.ngram) -> U32:
    """Return the hash of each n-gram of normalized text, uint32 [n].

    A text of fewer than `length` words gives one hash of all its words.
    """
    words = WordSequence(data)
    return (words.ngrams(max(1, min(length, words.count))) >> np.uint64(32)).astype(np.uint32)


@functools.cache
def _row_factors(count: int) -> random_keys.U64:
    """Return random odd numbers that combine the minima of a band into one number."""
    return random_keys.fold_in(0x524F57, np.arange(count)) | np.uint64(1)


@functools.cache
def _factors(count: int) -> U32:
    """Return odd random factors: multiplying by one permutes the 32-bit numbers."""
    factors = (random_keys.fold_in(0x464143, np.arange(count)) >> np.uint64(32)).astype(np.uint32)
    return factors[:, None] | np.uint32(1)


def _minima(hashes: U32, count: int) -> U32:
    """Return the smallest hash under each of `count` permutations, uint32 [count]."""
    factors = _factors(count)
    minima = np.full(count, _MOST, dtype=np.uint32)
    room = np.empty((count, min(_BLOCK, hashes.size)), dtype=np.uint32)
    with np.errstate(over="ignore"):  # also restores the buffer size
        # with a larger buffer numpy copies both factors, which takes longer than multiplying
        np.setbufsize(_SMALLEST_BUFFER)
        for begin in range(0, hashes.size, _BLOCK):
            block = hashes[begin : begin + _BLOCK]
            permuted = np.multiply(block, factors, out=room[:, : block.size])
            np.minimum(minima, permuted.min(axis=1), out=minima)
    return minima


def _sketch(hashes: U32) -> U8:
    """Return the smallest hash of each bin in four bits, 0 if the bin is empty; two bins a byte.

    One permutation hashing (Li, Owen and Zhang, 2012). The bands cannot serve for the estimate:
    pairs are compared because a band agrees, so their minima overstate the similarity.
    """
    smallest = np.full(_BINS, _MOST, dtype=np.uint32)
    np.minimum.at(smallest, hashes >> _BIN_SHIFT, hashes)
    values = np.where(smallest == _MOST, 0, smallest % _VALUES + 1).astype(np.uint8)
    return values[0::2] | values[1::2] << np.uint8(4)


def similarity(left: U8, right: U8) -> npt.NDArray[np.float64]:
    """Estimate the Jaccard similarity of pairs of sketches, corrected for chance; float64 [n].

    Args:
        left, right: uint8 [n, bytes] or [1, bytes], as `Signature.sketch`.
    """
    one, other = left.view(np.uint64), right.view(np.uint64)
    empty = _zeros(one | other)
    both = 2 * left.shape[1] - _zeros(one) - _zeros(other) + empty
    agreeing = _zeros(one ^ other) - empty
    shared = (_VALUES * agreeing - both) / (_VALUES - 1)  # one in 15 agrees by chance
    filled = np.maximum(2 * left.shape[1] - empty, 1)
    clipped: npt.NDArray[np.float64] = np.clip(shared / filled, 0.0, 1.0)
    return clipped


def _zeros(words: random_keys.U64) -> I64:
    """Count the zeros among the groups of four bits in each row, int64 [n]."""
    filled = ((words & _LOW_BITS) + _LOW_BITS) | words | _LOW_BITS
    counts: I64 = np.bitwise_count(~filled).sum(axis=1, dtype=np.int64)
    return counts


def margin(threshold: float, sketched: float) -> float:
    """Return what an estimate from so many bytes may be above or below the true similarity."""
    return _DEVIATIONS * math.sqrt(threshold * (1 - threshold) / (2 * sketched))


def distinct_shingles(text: str, length: int = DEFAULT.ngram) -> U32:
    """Return the distinct hashes of the n-grams of a text, uint32 [n], ascending."""
    return np.unique(shingles(normalize_words(text), length))


def overlap(left: U32, right: U32) -> float:
    """Return the Jaccard similarity of two results of `distinct_shingles`."""
    shared = np.intersect1d(left, right, assume_unique=True).size
    return shared / max(1, left.size + right.size - shared)


def jaccard(left: str, right: str, length: int = DEFAULT.ngram) -> float:
    """Return the exact Jaccard similarity of the n-gram sets of two texts."""
    return overlap(distinct_shingles(left, length), distinct_shingles(right, length))
