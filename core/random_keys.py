"""Random numbers as functions of a key, independent of workers, bundles, batches and time.

The generator is splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014), vectorized: every function maps uint64 arrays or ints to uint64 arrays of the
broadcast shape.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def document_key(name: str) -> int:
    """Return the 64-bit key of a document's id (blake2b)."""
    return int.from_bytes(
        hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
    )


def splitmix64(value: npt.ArrayLike) -> U64:
    """Apply the finalizer of splitmix64: a bijection on 64 bits whose output looks random."""
    z = np.asarray(value, dtype=np.uint64)
    if not z.ndim:
        with np.errstate(over="ignore"):  # numpy scalars warn of overflow, arrays do not
            z = z + _GOLDEN
            z = (z ^ (z >> np.uint64(30))) * _MIX1
            z = (z ^ (z >> np.uint64(27))) * _MIX2
        return z ^ (z >> np.uint64(31))
    z = z + _GOLDEN
    shifted = z >> np.uint64(30)  # two reused arrays: new ones at each operation take twice as long
    z ^= shifted
    z *= _MIX1
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= _MIX2
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def fold_in(*parts: npt.ArrayLike) -> U64:
    """Combine parts (seed, document, copy, …) into one key, in order; shapes broadcast."""
    key = np.asarray(0, dtype=np.uint64)
    for value in parts:
        # The value is mixed first: small numbers differ in their low bits alone, and their xor with
        # a key would give related keys to related parts.
        key = splitmix64(key ^ splitmix64(value))
    return key


def uniform(key: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Map keys to numbers in [0, 1) by their upper 53 bits."""
    # A float64 holds 53 bits exactly, so no key rounds up to 1.0.
    return (np.asarray(key, dtype=np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def randint_below(key: npt.ArrayLike, bound: npt.ArrayLike) -> U64:
    """Map keys to integers in [0, bound) for bounds under 2**32 (bias < 2**-32 · bound).

    Multiplies the upper 32 bits of the key by the bound.
    """
    return (
        (np.asarray(key, dtype=np.uint64) >> np.uint64(32)) * np.asarray(bound, dtype=np.uint64)
    ) >> np.uint64(32)
