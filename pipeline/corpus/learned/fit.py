"""How a filter is learned from good and bad documents, and how well it tells others apart that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipeline.core.errors import DataError
from pipeline.corpus.dedup.ngrams import Words, normal
from pipeline.corpus.learned_filter import ADDED, F32, Filter, all_buckets, thresholds

STRENGTHS = (1e2, 1e3, 1e4, 1e5)  # inverse of the penalty; chosen by held-out documents
FEWEST = 20  # documents of a kind, of which a fifth is held out


@dataclass(frozen=True, slots=True)
class Example:
    """A document that somebody has called good or bad, by its number of the split."""

    text: str
    good: bool
    heldout: bool


@dataclass(frozen=True, slots=True)
class Learned:
    """Attributes: figures: of the held-out documents, by name."""

    filter: Filter
    figures: dict[str, Any]


def learn(
    examples: Sequence[Example], kind: Literal["linear", "ngram"], bits: int, tell: Callable[[float], None] = lambda done: None
) -> Learned:
    """Learn from what is not held out, and measure on what is.

    Args:
        tell: called with the share that is done.

    Raises:
        DataError: too few documents of a kind.
    """
    for good in (True, False) if kind == "linear" else (True,):
        count = sum(example.good == good for example in examples)
        if count < FEWEST or not any(example.good == good and example.heldout for example in examples):
            raise DataError(
                f"{'--good' if good else '--bad'} has {count} documents with words, a filter needs {FEWEST}; give more"
            )
    seen = [example for example in examples if not example.heldout]
    kept = [example for example in examples if example.heldout]
    if kind == "ngram":
        found = _ngram([example.text for example in seen if example.good], bits)
        return _measured(found, kept)
    features = _features(seen, bits)
    best: Learned | None = None
    for number, strength in enumerate(STRENGTHS):
        tell(number / len(STRENGTHS))
        one = _measured(_linear(features, seen, bits, strength), kept)
        if best is None or one.figures["auc"] > best.figures["auc"]:
            best = replace(one, figures={**one.figures, "strength": strength})
    assert best is not None
    return best


def _features(examples: Iterable[Example], bits: int) -> Any:
    """A sparse matrix [examples, 2**bits]: of each n-gram's bucket its share of the document's n-grams."""
    from scipy.sparse import csr_matrix

    places, values, begins = [], [], [0]
    for example in examples:
        found, counts = np.unique(all_buckets(Words(normal(example.text)), bits), return_counts=True)
        places.append(found)
        values.append(counts / counts.sum())
        begins.append(begins[-1] + found.size)
    return csr_matrix((np.concatenate(values), np.concatenate(places), begins), shape=(len(begins) - 1, 1 << bits))


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
        words = Words(normal(text))
        total += words.count
        np.add.at(counts, all_buckets(words, bits), 1.0)
    return Filter(kind="ngram", bits=bits, weights=np.log(counts + ADDED).astype(np.float32), bias=float(np.log(max(1, total))))


def _measured(found: Filter, kept: Sequence[Example]) -> Learned:
    """With its thresholds, and its figures on held-out documents: of bad ones, where there are any."""
    from sklearn.metrics import roc_auc_score

    scores = [(found.score(example.text), example.good) for example in kept]
    told = [(score, good) for score, good in scores if score is not None]
    good = [score for score, is_good in told if is_good]
    bad = [score for score, is_good in told if not is_good]
    complete = replace(found, thresholds=thresholds(good))
    figures: dict[str, Any] = {
        "heldout_good": len(good),
        "heldout_bad": len(bad),
        "median_good": round(float(np.median(good)), 4),
    }
    if bad:
        figures |= {
            "median_bad": round(float(np.median(bad)), 4),
            "auc": round(float(roc_auc_score([is_good for _, is_good in told], [score for score, _ in told])), 4),
            "bad_dropped": {
                f"{lost:g}": round(float(np.mean(np.array(bad) < complete.threshold(lost))), 4)
                for lost in (0.01, 0.05, 0.1, 0.25)
            },
        }
    return Learned(complete, figures)
