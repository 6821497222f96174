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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import random_keys, storage
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.selection.stages import FilterConfig
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.read.read_and_clean import is_heldout, read_documents
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.signatures import WordSequence, normalize_words
from cloze.pipeline.corpus.sources import Source, plan_reading
from cloze.pipeline.corpus.steps.chain import build_steps, run_steps

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FORMAT, KIND = 1, "linear"
DESCRIPTION, WEIGHTS = "filter.json", "weights.npy"
DIGITS = 4  # decimals of a score; the last bits of a sum depend on the processor


def words_of(text: str) -> WordSequence:
    """Return the words of the text; in scripts without spaces each letter counts as a word."""
    return WordSequence(normalize_words(text), letters_alone=True)


def buckets(words: WordSequence, bits: int) -> I64:
    """Return the buckets of all words, then of all pairs, int64."""
    hashes = np.concatenate([words.ngrams(length) for length in (1, 2)])
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A trained quality filter: probability of being good, from the mean of the n-gram weights.

    It is fastText's classifier (Joulin et al., "Bag of Tricks for Efficient Text Classification",
    2017) with one-dimensional vectors.

    Attributes:
        bits: log2 of the number of buckets.
        weights: float32 [2**bits], weight per bucket.
        bias: added to the mean.
        thresholds: percentage -> score below which this share of held-out good text falls.
    """

    bits: int
    weights: F32
    bias: float
    thresholds: Mapping[int, float] = field(default_factory=dict)

    def score(self, text: str) -> float | None:
        """Return the score of the text; None if it has no words."""
        words = words_of(text)
        if not words.count:
            return None
        indices = buckets(words, self.bits)
        mean = self.weights[indices].sum(dtype=np.float64) / indices.size + self.bias
        return round(1.0 / (1.0 + math.exp(-float(np.clip(mean, -30, 30)))), DIGITS)

    def threshold(self, share: float) -> float:
        """Return the score below which `share` of held-out good text falls."""
        shares = sorted(self.thresholds)
        scores = [self.thresholds[percentage] for percentage in shares]
        return float(np.interp(100.0 * share, shares, scores))

    def write(self, path: str) -> None:
        packed = io.BytesIO()
        np.save(packed, self.weights, allow_pickle=False)
        storage.write_bytes(storage.join(path, WEIGHTS), packed.getvalue())
        content = {
            "format": FORMAT,
            "kind": KIND,
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
                (content["format"], content["kind"]) != (FORMAT, KIND)
                or weights.shape != (1 << content["bits"],)
                or weights.dtype != np.float32
            ):
                raise ValueError(
                    f"format {content['format']}, {content['kind']}, weights {weights.dtype} "
                    f"{list(weights.shape)}"
                )
            return cls(
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
HELDOUT_SHARE = 0.2


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
    examples: Sequence[Example], bits: int, report: Callable[[float], None] = lambda done: None
) -> TrainedFilter:
    """Train a filter on the examples that are not held out; evaluate it on those that are.

    Args:
        report: called with the fraction done.

    Raises:
        DataError: too few documents of a side.
    """
    for good in (True, False):
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
        used, counts = np.unique(buckets(words_of(example.text), bits), return_counts=True)
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
    return Filter(bits=bits, weights=weights, bias=float(model.intercept_[0]))


def _measured(trained: Filter, heldout: Sequence[Example]) -> TrainedFilter:
    """Add thresholds to the filter and compute its metrics on held-out documents."""
    from sklearn.metrics import roc_auc_score

    scores = [(trained.score(example.text), example.good) for example in heldout]
    scored = [(score, good) for score, good in scores if score is not None]
    good = [score for score, is_good in scored if is_good]
    bad = [score for score, is_good in scored if not is_good]
    complete = replace(trained, thresholds=thresholds(good))
    auc = roc_auc_score([is_good for _, is_good in scored], [score for score, _ in scored])
    figures = {
        "heldout_good": len(good),
        "heldout_bad": len(bad),
        "median_good": round(float(np.median(good)), 4),
        "median_bad": round(float(np.median(bad)), 4),
        "auc": round(float(auc), 4),
        "bad_dropped": {
            f"{lost:g}": round(float(np.mean(np.array(bad) < complete.threshold(lost))), 4)
            for lost in (0.01, 0.05, 0.1, 0.25)
        },
    }
    return TrainedFilter(complete, figures)


# The stage.


def run(config: FilterConfig, build: BuildContext) -> StageResult:
    """Read the documents, train the filter, evaluate and write it.

    Returns:
        Stage result; its summary has `documents` by side and the metrics on held-out documents:
        `auc`, and `bad_dropped`, the share of bad documents dropped by the threshold that loses a
        given share of good ones.

    Raises:
        DataError: a source cannot be read, or has too few documents.
    """
    examples = [
        Example(text, good, heldout)
        for good, sources in ((True, config.good), (False, config.bad))
        for text, heldout in _documents(sources, config, build)
    ]
    trained = train_filter(
        examples,
        config.bits,
        lambda done: build.report.progress(done, 1.0, "filter", {"step": "learn"}),
    )
    trained.filter.write(build.path)
    counts = {
        "good": sum(example.good for example in examples),
        "bad": sum(not example.good for example in examples),
    }
    return StageResult(rows=len(examples), summary={"documents": counts, **trained.figures})


def _documents(
    sources: tuple[Source, ...], config: FilterConfig, build: BuildContext
) -> Iterator[tuple[str, bool]]:
    """Yield (text, held out) per document, cleaned as by the corpus stage."""
    corpus = CorpusConfig(sources=sources, language=config.language)
    steps = [(name, step) for name, step in build_steps(corpus) if name != "sentences"]
    slices, _ = plan_reading(corpus.listed())
    build.counters.update(corpus.listing().counters())
    total = float(sum(planned.slice.size for planned in slices))
    done = 0.0
    for planned in slices:
        counters = ReadCounters(slice=planned.slice)
        for raw in read_documents(corpus, counters):
            document = run_steps(raw, steps).document
            if document is None:
                build.counters["dropped/by_cleaning"] += 1
            elif any(letter.isalnum() for letter in document.text):
                key = random_keys.document_key(document.id)
                yield document.text, is_heldout(key, HELDOUT_SHARE)
        done += planned.slice.size
        build.report.progress(done, total, "bytes", {"step": "read"})
