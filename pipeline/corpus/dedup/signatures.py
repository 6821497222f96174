"""Corpus stage: signatures of documents, by which copies are found.

Exact: the hash of the words without case and punctuation. Near: MinHash over word 5-grams, 112 hashes in 14 bands of
8 rows, which are datatrove's parameters (`MinhashConfig`): two documents share a band, and so are taken for copies,
with probability 1/2 at a Jaccard similarity of about .72. The lowest byte of each of the 112 minima estimates the similarity of two
documents to about .05 (Li and König, "b-Bit Minwise Hashing", 2010). A signature depends on the text alone.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.core import random_keys
from pipeline.corpus.dedup import ngrams
from pipeline.corpus.dedup.options import DEFAULT, MinHash

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]

EXACT_BYTES = 16
_BLOCK = 1 << 10  # n-grams hashed at a time, so that the hashes of a block stay in the cache
_SMALLEST_BUFFER = 16  # what numpy takes
_MOST = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class Signature:
    """What is needed of a document to find its copies.

    Attributes:
        exact: 16 bytes, equal for texts that differ in case, punctuation and spacing alone.
        bands: uint64 [bands]; near copies have at least one in common. None where they are not looked for.
        sketch: uint8 [bands · rows], the lowest byte of each minimum; None as above.
    """

    exact: bytes
    bands: random_keys.U64 | None = None
    sketch: U8 | None = None


def signature(text: str, minhash: MinHash | None = DEFAULT) -> Signature:
    """The signature of a text of any length; one without a word has that of the empty text."""
    data = ngrams.normal(text)
    exact = hashlib.blake2b(data, digest_size=EXACT_BYTES).digest()
    if minhash is None:
        return Signature(exact)
    minima = _minima(shingles(data, minhash.ngram), minhash.minima)
    with np.errstate(over="ignore"):
        bands = random_keys.mix(
            (minima.reshape(minhash.bands, minhash.rows) * _row_factors(minhash.rows)).sum(axis=1, dtype=np.uint64)
        )
    return Signature(exact, bands, minima.astype(np.uint8))


def shingles(data: bytes, length: int = DEFAULT.ngram) -> U32:
    """uint32 [n]: a hash of each run of `length` words of `normal(text)`, or of all the words where there are fewer."""
    words = ngrams.Words(data)
    return (words.ngrams(max(1, min(length, words.count))) >> np.uint64(32)).astype(np.uint32)


@functools.cache
def _row_factors(count: int) -> random_keys.U64:
    """Random odd numbers, by which the minima of a band become one number."""
    return random_keys.derive(0x524F57, np.arange(count)) | np.uint64(1)


@functools.cache
def _factors(count: int) -> U32:
    """Odd, so that multiplying by one is a permutation of the 32-bit numbers."""
    factors = (random_keys.derive(0x464143, np.arange(count)) >> np.uint64(32)).astype(np.uint32)
    return factors[:, None] | np.uint32(1)


def _minima(hashes: U32, count: int) -> U32:
    """uint32 [count]: the smallest of the hashes under each of `count` permutations."""
    factors = _factors(count)
    minima = np.full(count, _MOST, dtype=np.uint32)
    room = np.empty((count, min(_BLOCK, hashes.size)), dtype=np.uint32)
    with np.errstate(over="ignore"):  # at its end the usual buffer is back, too
        np.setbufsize(_SMALLEST_BUFFER)  # into a larger one numpy copies both factors, which takes longer than to multiply them
        for begin in range(0, hashes.size, _BLOCK):
            block = hashes[begin : begin + _BLOCK]
            permuted = np.multiply(block, factors, out=room[:, : block.size])
            np.minimum(minima, permuted.min(axis=1), out=minima)
    return minima


def similarity(left: U8, right: U8) -> npt.NDArray[np.float64]:
    """float64 [n]: the Jaccard similarity that two rows of sketches speak for, chance agreement of bytes taken out.

    Args:
        left, right: uint8 [n, bands · rows], of `Signature.sketch`.
    """
    agreeing = (left == right).mean(axis=1)
    found: npt.NDArray[np.float64] = np.clip((agreeing - 2.0**-8) / (1 - 2.0**-8), 0.0, 1.0)
    return found


def jaccard(left: str, right: str, length: int = DEFAULT.ngram) -> float:
    """The similarity itself: the share of the two texts' word n-grams that both have."""
    one, two = (np.unique(shingles(ngrams.normal(text), length)) for text in (left, right))
    both = np.intersect1d(one, two, assume_unique=True).size
    return both / max(1, one.size + two.size - both)
