"""Learned filters: a text to a score, higher is better. Their numbers are arrays of numpy, in files that hold nothing else.

    filter.json     kind, n-grams, bits, bias, thresholds
    weights.npy     float32 [2**bits], a number for each bucket

A word n-gram's bucket is the first `bits` of its hash (`pipeline.corpus.dedup.ngrams`), so words are compared without case and
punctuation, and unseen ones cost nothing.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.corpus.dedup.ngrams import I64, Words, normal

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FORMAT = 1
DESCRIPTION, WEIGHTS = "filter.json", "weights.npy"
DIGITS = 4  # of a score: the last bits of a sum depend on the processor
ADDED = 0.1  # to an n-gram's count, as if each word had been seen so often after each other
_HALF = 0.5  # of a word's probability that the word before it decides, at least


def buckets(words: Words, length: int, bits: int) -> I64:
    """int64: the bucket of each run of `length` words."""
    return (words.ngrams(length) >> np.uint64(64 - bits)).astype(np.int64)


def all_buckets(words: Words, bits: int) -> I64:
    """int64: those of all words, then those of all pairs."""
    return np.concatenate([buckets(words, length, bits) for length in (1, 2)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A learned filter.

    Attributes:
        kind: `linear`: the probability of being good, from the mean of its n-grams' weights (fastText's classifier: Joulin et al.,
            "Bag of Tricks for Efficient Text Classification", 2017, with vectors of one number); `ngram`: minus the logarithm of the
            perplexity a word under an n-gram model of good text (CCNet: Wenzek et al., 2020).
        bits: of a bucket's number.
        weights: float32 [2**bits]. Linear: of each bucket. N-gram: the logarithm of how often it was seen, of words and of pairs.
        bias: linear: added to the mean; n-gram: the logarithm of the number of words seen.
        thresholds: share of good text -> the score that this share of held-out good text does not reach; shares in hundredths.
    """

    kind: Literal["linear", "ngram"]
    bits: int
    weights: F32
    bias: float
    thresholds: Mapping[int, float] = field(default_factory=dict)

    def score(self, text: str) -> float | None:
        """The text's score; None where it has no word."""
        words = Words(normal(text))
        if not words.count:
            return None
        return round(self._linear(words) if self.kind == "linear" else self._ngram(words), DIGITS)

    def _linear(self, words: Words) -> float:
        places = all_buckets(words, self.bits)
        return 1.0 / (
            1.0 + math.exp(-float(np.clip(self.weights[places].sum(dtype=np.float64) / places.size + self.bias, -30, 30)))
        )

    def _ngram(self, words: Words) -> float:
        single = np.exp(self.weights[buckets(words, 1, self.bits)].astype(np.float64))
        total, seen = math.exp(self.bias), single - ADDED
        alone = single / (total + ADDED * self.weights.size)
        pairs = np.maximum(np.exp(self.weights[buckets(words, 2, self.bits)].astype(np.float64)) - ADDED, 0.0)
        # Each pair's share of its first word's occurrences, interpolated with the second word's own (Jelinek and Mercer).
        known = np.minimum(pairs / np.maximum(seen[:-1], 1.0), 1.0)
        following = _HALF * known + (1 - _HALF) * alone[1:]
        logs = np.log(np.concatenate((alone[:1], following)))
        return float(logs.mean())

    def threshold(self, share: float) -> float:
        """The score that `share` of held-out good text does not reach."""
        shares = sorted(self.thresholds)
        return float(np.interp(100.0 * share, shares, [self.thresholds[one] for one in shares]))

    def write(self, path: str) -> None:
        """Write both files below `path`."""
        packed = io.BytesIO()
        np.save(packed, self.weights, allow_pickle=False)
        storage.write_bytes(storage.join(path, WEIGHTS), packed.getvalue())
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "bits": self.bits,
            "bias": self.bias,
            "thresholds": {str(share): score for share, score in sorted(self.thresholds.items())},
        }
        storage.write_bytes(storage.join(path, DESCRIPTION), (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: str) -> Filter:
        """The filter at `path`.

        Raises:
            DataError: there is none, or it is damaged or of another format.
        """
        name = storage.join(path, DESCRIPTION)
        if not storage.exists(name):
            raise DataError(f"{path} holds no learned filter ({DESCRIPTION} is missing); make one with `cloze filter train`")
        try:
            content: dict[str, Any] = json.loads(storage.read_text(name))
            with storage.open_input(storage.join(path, WEIGHTS)) as handle:
                weights = np.load(io.BytesIO(handle.read()), allow_pickle=False)
            if content["format"] != FORMAT or weights.shape != (1 << content["bits"],) or weights.dtype != np.float32:
                raise ValueError(f"format {content['format']}, weights {weights.dtype} {list(weights.shape)}")
            return cls(
                kind=content["kind"],
                bits=content["bits"],
                weights=weights,
                bias=float(content["bias"]),
                thresholds={int(share): float(score) for share, score in content["thresholds"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise DataError(f"{path} holds a damaged filter ({error}); train it again") from error


def thresholds(scores: Sequence[float]) -> dict[int, float]:
    """For each hundredth, the score that this share of `scores` does not reach."""
    found: F64 = np.quantile(np.array(scores, dtype=np.float64), np.linspace(0, 1, 101))
    return {share: round(float(score), DIGITS) for share, score in enumerate(found)}
