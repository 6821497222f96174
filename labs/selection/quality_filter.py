"""Quality filters: score a text; higher is better.

A filter is stored as two files:

    filter.json     kind, bits, bias, thresholds
    weights.npy     float32 [2**bits], one weight per bucket

The bucket of a word n-gram is the first `bits` bits of its hash
(`cloze.pipeline.corpus.signatures`): words are compared without case and punctuation.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.pipeline.corpus.signatures import WordSequence, normalize_words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FORMAT = 1
DESCRIPTION, WEIGHTS = "filter.json", "weights.npy"
DIGITS = 4  # decimals of a score; the last bits of a sum depend on the processor
ADDED = 0.1  # smoothing: added to the count of each n-gram
_HALF = 0.5  # weight of the bigram estimate in the interpolation


def words_of(text: str) -> WordSequence:
    """Return the words of the text; in scripts without spaces each letter counts as a word."""
    return WordSequence(normalize_words(text), letters_alone=True)


def buckets(words: WordSequence, length: int, bits: int) -> I64:
    """Return the bucket of each n-gram of `length` words, int64."""
    return (words.ngrams(length) >> np.uint64(64 - bits)).astype(np.int64)


def all_buckets(words: WordSequence, bits: int) -> I64:
    """Return the buckets of all words, then of all pairs, int64."""
    return np.concatenate([buckets(words, length, bits) for length in (1, 2)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A trained quality filter.

    Attributes:
        kind: `linear`: probability of being good, from the mean of the n-gram weights (fastText's
            classifier: Joulin et al., "Bag of Tricks for Efficient Text Classification", 2017, with
            one-dimensional vectors). `ngram`: mean log probability per word under an n-gram model
            of good text (CCNet: Wenzek et al., 2020).
        bits: log2 of the number of buckets.
        weights: float32 [2**bits]. Linear: weight per bucket. N-gram: log of the smoothed count.
        bias: linear: added to the mean; n-gram: log of the number of words in the training text.
        thresholds: percentage -> score below which this share of held-out good text falls.
    """

    kind: Literal["linear", "ngram"]
    bits: int
    weights: F32
    bias: float
    thresholds: Mapping[int, float] = field(default_factory=dict)

    def score(self, text: str) -> float | None:
        """Return the score of the text; None if it has no words."""
        words = words_of(text)
        if not words.count:
            return None
        return round(self._linear(words) if self.kind == "linear" else self._ngram(words), DIGITS)

    def _linear(self, words: WordSequence) -> float:
        indices = all_buckets(words, self.bits)
        mean = self.weights[indices].sum(dtype=np.float64) / indices.size + self.bias
        return 1.0 / (1.0 + math.exp(-float(np.clip(mean, -30, 30))))

    def _ngram(self, words: WordSequence) -> float:
        single = np.exp(self.weights[buckets(words, 1, self.bits)].astype(np.float64))
        total, seen = math.exp(self.bias), single - ADDED
        alone = single / (total + ADDED * self.weights.size)
        pairs = np.maximum(
            np.exp(self.weights[buckets(words, 2, self.bits)].astype(np.float64)) - ADDED, 0.0
        )
        # Interpolate the pair's relative frequency with the second word's frequency
        # (Jelinek-Mercer).
        known = np.minimum(pairs / np.maximum(seen[:-1], 1.0), 1.0)
        following = _HALF * known + (1 - _HALF) * alone[1:]
        logs = np.log(np.concatenate((alone[:1], following)))
        return float(logs.mean())

    def threshold(self, share: float) -> float:
        """Return the score below which `share` of held-out good text falls."""
        shares = sorted(self.thresholds)
        scores = [self.thresholds[percentage] for percentage in shares]
        return float(np.interp(100.0 * share, shares, scores))

    def write(self, path: str) -> None:
        """Write both files to the directory `path`."""
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
        storage.write_bytes(
            storage.join(path, DESCRIPTION), (json.dumps(content, indent=1) + "\n").encode()
        )

    @classmethod
    def read(cls, path: str) -> Filter:
        """Read the filter from the directory `path`.

        Raises:
            DataError: no filter there, or it is damaged or of another format.
        """
        description_path = storage.join(path, DESCRIPTION)
        if not storage.exists(description_path):
            raise DataError(
                f"{path} contains no quality filter ({DESCRIPTION} is missing). Train one with "
                f"`cloze train-filter`"
            )
        try:
            content: dict[str, Any] = json.loads(storage.read_text(description_path))
            with storage.open_input(storage.join(path, WEIGHTS)) as handle:
                weights = np.load(io.BytesIO(handle.read()), allow_pickle=False)
            if (
                content["format"] != FORMAT
                or weights.shape != (1 << content["bits"],)
                or weights.dtype != np.float32
            ):
                raise ValueError(
                    f"format {content['format']}, weights {weights.dtype} {list(weights.shape)}"
                )
            return cls(
                kind=content["kind"],
                bits=content["bits"],
                weights=weights,
                bias=float(content["bias"]),
                thresholds={
                    int(share): float(score) for share, score in content["thresholds"].items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise DataError(
                f"{path} contains a damaged filter ({error}); train it again"
            ) from error


def thresholds(scores: Sequence[float]) -> dict[int, float]:
    """Return the percentiles 0 to 100 of the scores."""
    quantiles: F64 = np.quantile(np.array(scores, dtype=np.float64), np.linspace(0, 1, 101))
    return {share: round(float(score), DIGITS) for share, score in enumerate(quantiles)}


# Training and evaluation of quality filters.

STRENGTHS = (1e2, 1e3, 1e4, 1e5)  # inverse regularization; chosen on held-out documents
FEWEST = 20  # minimum number of documents per side


@dataclass(frozen=True, slots=True)
class Example:
    """A document labelled good or bad."""

    text: str
    good: bool
    heldout: bool


@dataclass(frozen=True, slots=True)
class TrainedFilter:
    """A trained filter and its metrics on held-out documents."""

    filter: Filter
    figures: dict[str, Any]


def train_filter(
    examples: Sequence[Example],
    kind: Literal["linear", "ngram"],
    bits: int,
    report: Callable[[float], None] = lambda done: None,
) -> TrainedFilter:
    """Train a filter on the examples that are not held out; evaluate it on those that are.

    Args:
        report: called with the fraction done.

    Raises:
        DataError: too few documents of a side.
    """
    for good in (True, False) if kind == "linear" else (True,):
        count = sum(example.good == good for example in examples)
        if count < FEWEST or not any(
            example.good == good and example.heldout for example in examples
        ):
            raise DataError(
                f"{'--good' if good else '--bad'} has {count} documents with words, a filter needs "
                f"{FEWEST}; give more"
            )
    training = [example for example in examples if not example.heldout]
    heldout = [example for example in examples if example.heldout]
    if kind == "ngram":
        model = _ngram([example.text for example in training if example.good], bits)
        return _measured(model, heldout)
    features = _features(training, bits)
    best: TrainedFilter | None = None
    for number, strength in enumerate(STRENGTHS):
        report(number / len(STRENGTHS))
        candidate = _measured(_linear(features, training, bits, strength), heldout)
        if best is None or candidate.figures["auc"] > best.figures["auc"]:
            best = replace(candidate, figures={**candidate.figures, "strength": strength})
    assert best is not None
    return best


def _features(examples: Iterable[Example], bits: int) -> Any:
    """Return a sparse matrix [examples, 2**bits] of relative n-gram frequencies per bucket."""
    from scipy.sparse import csr_matrix

    indices, values, begins = [], [], [0]
    for example in examples:
        used, counts = np.unique(all_buckets(words_of(example.text), bits), return_counts=True)
        indices.append(used)
        values.append(counts / counts.sum())
        begins.append(begins[-1] + used.size)
    return csr_matrix(
        (np.concatenate(values), np.concatenate(indices), begins),
        shape=(len(begins) - 1, 1 << bits),
    )


def _linear(features: Any, examples: Sequence[Example], bits: int, strength: float) -> Filter:
    from sklearn.linear_model import LogisticRegression

    used = np.unique(features.indices)
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=300)
    model.fit(features[:, used], np.array([example.good for example in examples]))
    weights: F32 = np.zeros(1 << bits, dtype=np.float32)
    weights[used] = model.coef_[0].astype(np.float32)
    return Filter(kind="linear", bits=bits, weights=weights, bias=float(model.intercept_[0]))


def _ngram(texts: Iterable[str], bits: int) -> Filter:
    counts = np.zeros(1 << bits, dtype=np.float64)
    total = 0
    for text in texts:
        words = words_of(text)
        total += words.count
        np.add.at(counts, all_buckets(words, bits), 1.0)
    return Filter(
        kind="ngram",
        bits=bits,
        weights=np.log(counts + ADDED).astype(np.float32),
        bias=float(np.log(max(1, total))),
    )


def _measured(trained: Filter, heldout: Sequence[Example]) -> TrainedFilter:
    """Add thresholds to the filter and compute its metrics on held-out documents."""
    from sklearn.metrics import roc_auc_score

    scores = [(trained.score(example.text), example.good) for example in heldout]
    scored = [(score, good) for score, good in scores if score is not None]
    good = [score for score, is_good in scored if is_good]
    bad = [score for score, is_good in scored if not is_good]
    complete = replace(trained, thresholds=thresholds(good))
    figures: dict[str, Any] = {
        "heldout_good": len(good),
        "heldout_bad": len(bad),
        "median_good": round(float(np.median(good)), 4),
    }
    if bad:
        auc = roc_auc_score([is_good for _, is_good in scored], [score for score, _ in scored])
        figures |= {
            "median_bad": round(float(np.median(bad)), 4),
            "auc": round(float(auc), 4),
            "bad_dropped": {
                f"{lost:g}": round(float(np.mean(np.array(bad) < complete.threshold(lost))), 4)
                for lost in (0.01, 0.05, 0.1, 0.25)
            },
        }
    return TrainedFilter(complete, figures)
