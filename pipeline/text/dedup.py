"""Corpus stage: signatures of documents, and which of them are copies of which.

Exact: the hash of the words without case and punctuation. Near: MinHash over the 5-word shingles, 112 hashes in 14
bands of 8 rows, which are datatrove's parameters (`MinhashConfig`): two documents share a band, and so are taken for
copies, with probability 1/2 at a Jaccard similarity of about .72. A signature depends on the text alone. Everything
is numpy over a whole document at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline import keys

U32 = npt.NDArray[np.uint32]

SHINGLE = 5  # words
BANDS = 14
ROWS = 8
EXACT_BYTES = 16

_BLOCK = 1 << 10  # shingles hashed at a time, so that the hashes of a block stay in the cache
_PUNCTUATION = re.compile(r"[\W_]+")
_SPACE = 0x20

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_LETTERS = keys.derive(0x5348494E, np.arange(256))  # a random number for each byte
_FACTORS = (keys.derive(0x464143, np.arange(BANDS * ROWS)) >> np.uint64(32)).astype(np.uint32)[:, None] | np.uint32(1)
_TERMS = (keys.derive(0x5445524D, np.arange(BANDS * ROWS)) >> np.uint64(32)).astype(np.uint32)[:, None]


@dataclass(frozen=True, slots=True)
class Signature:
    """What is needed of a document to find its copies.

    Attributes:
        exact: 16 bytes, equal for texts that differ in case, punctuation and spacing alone.
        bands: uint64 [BANDS]; near copies have at least one in common.
    """

    exact: bytes
    bands: keys.U64


def normal(text: str) -> str:
    """The words of `text` in lower case with single spaces between them: what both signatures look at."""
    return _PUNCTUATION.sub(" ", text.lower()).strip()


def signature(text: str) -> Signature:
    """The signature of a text of any length; one without a word has that of the empty text."""
    data = normal(text).encode("utf-8", "surrogatepass")
    return Signature(hashlib.blake2b(data, digest_size=EXACT_BYTES).digest(), _bands(_shingles(data)))


def _powers(count: int) -> tuple[keys.U64, keys.U64]:
    """_BASE**i and its inverse modulo 2**64, for i below `count`."""
    inverse = pow(_BASE, -1, 1 << 64)
    tables = []
    for base in (_BASE, inverse):
        table = np.full(count, base, dtype=np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table))
    return tables[0], tables[1]


_KNOWN_POWERS = _powers(1 << 16)


def _shingles(data: bytes) -> U32:
    """uint32 [n]: a hash of each run of SHINGLE words, or of all the words where there are fewer."""
    letters = np.frombuffer(data, dtype=np.uint8)
    spaces = np.flatnonzero(letters == _SPACE)
    starts = np.concatenate(([0], spaces + 1))
    ends = np.concatenate((spaces, [letters.size]))
    if starts.size >= SHINGLE:
        starts, ends = starts[: starts.size - SHINGLE + 1], ends[SHINGLE - 1 :]
    else:
        starts, ends = starts[:1], ends[-1:]
    powers, inverses = _KNOWN_POWERS if letters.size < _KNOWN_POWERS[0].size else _powers(letters.size + 1)
    with np.errstate(over="ignore"):  # a polynomial hash modulo 2**64 of every shingle, from one prefix sum
        sums = np.zeros(letters.size + 1, dtype=np.uint64)
        np.cumsum(_LETTERS[letters] * powers[: letters.size], out=sums[1:])
        hashes = (sums[ends] - sums[starts]) * inverses[starts]
    return (keys.mix(hashes) >> np.uint64(32)).astype(np.uint32)


def _bands(shingles: U32) -> keys.U64:
    """uint64 [BANDS]: for each band a hash of the minima of its rows."""
    minima = np.full(BANDS * ROWS, np.iinfo(np.uint32).max, dtype=np.uint32)
    room = np.empty((BANDS * ROWS, min(_BLOCK, shingles.size)), dtype=np.uint32)
    with np.errstate(over="ignore"):
        for begin in range(0, shingles.size, _BLOCK):
            block = shingles[begin : begin + _BLOCK]
            hashes = np.multiply(block, _FACTORS, out=room[:, : block.size])
            hashes += _TERMS
            np.minimum(minima, hashes.min(axis=1), out=minima)
    rows = minima.reshape(BANDS, ROWS)
    return keys.derive(np.arange(BANDS), *rows.T)


def components(count: int, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [count]: for each of `count` things the smallest one that the links lead to.

    Args:
        left, right: int64 [links], the two ends of each link.
    """
    label = np.arange(count)
    while True:
        lower = np.minimum(label[left], label[right])
        before = label.copy()
        np.minimum.at(label, label[left], lower)
        np.minimum.at(label, label[right], lower)
        while not np.array_equal(label, shorter := label[label]):
            label = shorter
        if np.array_equal(label, before):
            return label


def copies(
    exact: npt.NDArray[np.void],
    bands: keys.U64 | None,
    rank: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which documents are exact copies, and which of the others are near copies, of one that stays.

    Args:
        exact: 16-byte void [n], of `Signature.exact`.
        bands: uint64 [n, BANDS] of `Signature.bands`; None: near copies are not looked for.
        rank: int64 [n], a permutation; of a group of copies the one of lowest rank stays.

    Returns:
        Two masks [n]: exact copies to drop, near copies to drop. No document is in both.
    """
    count = rank.size
    order = np.lexsort((rank, np.unique(exact, return_inverse=True)[1]))
    exact_copy = np.zeros(count, dtype=bool)
    exact_copy[order[1:]] = exact[order[1:]] == exact[order[:-1]]
    near_copy = np.zeros(count, dtype=bool)
    if bands is None or count < 2:
        return exact_copy, near_copy
    kept = np.flatnonzero(~exact_copy)
    kept = kept[np.argsort(rank[kept])]  # now the smallest of a component is the one that stays
    ends = []
    for band in range(bands.shape[1]):
        column = bands[kept, band]
        order = np.argsort(column, kind="stable")
        same = np.flatnonzero(column[order[1:]] == column[order[:-1]])
        ends.append(np.stack((order[same], order[same + 1])))
    left, right = np.concatenate(ends, axis=1)
    near_copy[kept] = components(kept.size, left, right) != np.arange(kept.size)
    return exact_copy, near_copy
