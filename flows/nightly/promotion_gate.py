"""The promotion gate: decides whether a candidate replaces the champion, and explains the decision.

Both models were fine-tuned on a task with several seeds and answered the same examples. A paired
bootstrap over the examples estimates the variance of the score difference due to the choice of
examples (Efron and Tibshirani 1993, chapter 16; Koehn 2004, "Statistical Significance Tests for
Machine Translation Evaluation"): one resample serves both models. The seeds of each model add the
variance of their mean (the Multi-Bootstrap of Sellam et al. 2022, "The MultiBERTs", section 3, with
unpaired seeds). The interval is Student's t, with Welch-Satterthwaite degrees of freedom: bootstrap
percentiles are too narrow with few examples or seeds, most of all in the tail.

Held-out text is compared by the loss of groups of rows on which both models made the same
predictions. Its interval is about a hundred times narrower than that of a few dozen answers.

Tasks without labels (spans, tags, numbers) have no score per example and are compared by seeds
alone. With one seed the interval covers only the noise of the examples. Seeds with equal scores say
nothing of their noise: such a lead promotes nobody. The explanation states these cases. Figures
that are not finite lose: a candidate's to any, a champion's to finite ones.

The intervals hold simultaneously: with C candidates and T tasks each has the confidence
1 - (1 - confidence) / (C T) (Bonferroni). At the default confidence of 95 %, equal candidates pass
in at most one run of forty.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isclose
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloze.core.errors import UsageError
from cloze.core.figures import goodness, is_finite, mean
from cloze.core.label_metrics import COMPARED_METRICS, score

BETTER, WORSE, NOISE = "better", "worse", "within noise"
BLOCK_WEIGHTS = 1 << 22  # weights of a block of resamples: 32 MiB
Floats = npt.NDArray[np.float64]
SQUARED = 1e100  # the largest figure, and its inverse the smallest, whose squares add up in a float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPredictions:
    """A model's predictions on a task's examples.

    Attributes:
        metric: name of the task's score in `COMPARED_METRICS`.
        examples: hash of the example set; models are compared only on equal sets.
        labels: N true labels, in the order of the data.
        predictions: N predicted labels by seed.
        classes: the task's labels in its order, for F1's class 1; empty: sorted.
    """

    metric: str
    examples: str
    labels: Sequence[str]
    predictions: Mapping[str, Sequence[str]]
    classes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.metric not in COMPARED_METRICS:
            raise UsageError(
                f"unknown score {self.metric!r}; the gate knows {', '.join(COMPARED_METRICS)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """A model's scores by seed on a task whose predictions are not labels."""

    metric: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLosses:
    """A model's losses on held-out text, in nats.

    Attributes:
        examples: hash of the text and its masked positions; models are compared only on equal ones.
        predictions: number of predictions in each of G groups of rows.
        losses: loss of each group, summed over its predictions.
    """

    examples: str
    predictions: Sequence[float]
    losses: Sequence[float]


Result = TaskPredictions | SeedScores | TextLosses
Limits = tuple[bool, str]  # whether a candidate keeps all limits, and clauses about them


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate against champion on one task; difference and interval are in hundredths.

    Attributes:
        note: limitation of the interval; empty: none.
        has_noise: whether the seeds' noise is known; a lead that may be noise is not better.
    """

    task: str
    difference: float
    low: float
    high: float
    note: str = ""
    has_noise: bool = True

    @property
    def verdict(self) -> str:
        """NaN compares as false: what is no number is worse."""
        if self.low > 0:
            return BETTER if self.has_noise else NOISE
        return NOISE if self.low <= 0 <= self.high else WORSE

    def describe(self) -> str:
        """Return `sst2 +1.8 (+0.4 to +3.1)`, with the verdict unless it is "better"."""
        note = f"; {self.note}" if self.note else ""
        note += "" if self.verdict == BETTER else f": {self.verdict}"
        if not is_finite(self.difference):
            return f"{self.task}{note.replace(';', ':', 1)}"
        return (
            f"{self.task} {_signed(self.difference)} ({_signed(self.low)} to "
            f"{_signed(self.high)}{note})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecision:
    """The gate's decision and its explanation."""

    wins: bool  # by its scores
    reason: str
    limits: Limits = (True, "")
    comparisons: tuple[Comparison, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # reason by task not compared

    @property
    def promoted(self) -> bool:
        return self.wins and self.limits[0]

    @property
    def why(self) -> str:
        return f"{'promoted' if self.promoted else 'kept'}: {self.reason}{self.limits[1]}"

    @property
    def strength(self) -> float:
        """Mean over tasks of the candidate's lead, in widths of the interval.

        Tasks on which the champion's figures are not finite say nothing about the lead.
        """
        leads = [c.difference / max(c.high - c.low, 1e-9) for c in self.comparisons if c.low < inf]
        return goodness(mean(leads or [0.0]))


def choose(
    champion: Mapping[str, Result],
    candidates: Mapping[str, Mapping[str, Result]],
    written: Mapping[str, float] | None = None,
    limits: Mapping[str, Limits] | None = None,
    **settings: Any,
) -> tuple[str, PromotionDecision]:
    """Compare every candidate with the champion.

    Args:
        champion: result by task.
        candidates: results by name and task; their order does not matter.
        written: Unix seconds by name; of equal candidates the newest is the best, then by name.
        limits: what `NightSettings.check_limits` returns, by name.
        settings: arguments of `decide`.

    Returns:
        Name of the best promoted candidate, or else of the best one, and its decision.
    """
    decisions = {
        name: decide(champion, results, candidates=len(candidates), **settings)
        for name, results in candidates.items()
    }
    for name, kept in (limits or {}).items():
        decisions[name] = replace(decisions[name], limits=kept)

    def rank(name: str) -> tuple[bool, float, float, str]:
        decision = decisions[name]
        return decision.promoted, decision.strength, (written or {}).get(name, 0.0), name

    best = max(decisions, key=rank)
    return best, decisions[best]


def decide(
    champion: Mapping[str, Result],
    candidate: Mapping[str, Result],
    *,
    candidates: int = 1,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 1,
    promote_if: Literal["better", "not_worse"] = "better",
) -> PromotionDecision:
    """Compare two models on their common tasks.

    The candidate is promoted if it is significantly worse on no task and significantly better on at
    least one.

    Args:
        champion, candidate: result by task.
        candidates: number of candidates that are compared with the champion, for the correction.
        promote_if: not_worse: it is enough to be significantly worse on no task.
    """
    left_out = {
        task: reason
        for task in candidate
        if (reason := _reason(champion.get(task), candidate[task]))
    }
    left_out |= {task: "the candidate has no answers" for task in champion if task not in candidate}
    tasks = [task for task in candidate if task not in left_out]
    missing = "".join(f"; {task} is not compared: {reason}" for task, reason in left_out.items())
    if not tasks:
        reason = f"no task can be compared{missing}"
        return PromotionDecision(wins=False, reason=reason, left_out=left_out)
    share = 1 - (1 - confidence) / (len(tasks) * candidates)
    comparisons = tuple(
        compare(task, champion[task], candidate[task], share, resamples, seed) for task in tasks
    )
    verdicts = {comparison.verdict for comparison in comparisons}
    interval = f"{confidence:.0%} interval{'s, together' if len(tasks) * candidates > 1 else ''}"
    interval += f" with {candidates} candidates" if candidates > 1 else ""
    figures = ", ".join(comparison.describe() for comparison in comparisons)
    return PromotionDecision(
        wins=WORSE not in verdicts and (BETTER in verdicts or promote_if == "not_worse"),
        reason=f"{figures}; {interval}{missing}",
        comparisons=comparisons, left_out=left_out,
    )  # fmt: skip


def compare(
    task: str, champion: Result, candidate: Result, confidence: float, resamples: int, seed: int
) -> Comparison:
    """Compare two models on one task; the results must be comparable, see `_reason`.

    Args:
        confidence: confidence level of the interval.
        resamples, seed: settings of the bootstrap.
    """
    for model, lead in ((candidate, -inf), (champion, inf)):  # the candidate's own come first
        if not all(map(is_finite, _figures(model))):
            owner = "candidate" if model is candidate else "champion"
            note = f"the {owner}'s figures are not finite"
            return Comparison(task=task, difference=lead, low=lead, high=lead, note=note)
    figures = (abs(figure) for model in (candidate, champion) for figure in _figures(model))
    unit = max(figures, default=0.0)
    if unit and not 1 / SQUARED <= unit <= SQUARED:
        scaled = _divided(champion, unit), _divided(candidate, unit)
        found = compare(task, *scaled, confidence, resamples, seed)
        return replace(found, note=f"{found.note}; in units of {unit:.1g}".removeprefix("; "))
    if isinstance(champion, TextLosses) and isinstance(candidate, TextLosses):
        has_predictions = np.array(candidate.predictions) > 0
        counts = np.array(candidate.predictions)[has_predictions]
        gains = (np.array(champion.losses) - np.array(candidate.losses))[has_predictions]
        weights = _resampled(_generator(task, seed, len(gains)), resamples, len(gains))
        # A ratio of resampled sums, since groups differ in their number of predictions.
        variance = float(((weights @ gains) / (weights @ counts)).var(ddof=1))
        means = [-float(np.sum(model.losses) / counts.sum()) for model in (candidate, champion)]
        return _comparison(task, means, [(variance, len(gains) - 1)], confidence)
    if isinstance(champion, SeedScores) and isinstance(candidate, SeedScores):
        seeds = [
            [goodness(value, model.metric) for value in model.values.values()]
            for model in (candidate, champion)
        ]
        means, variances = list(map(mean, seeds)), list(map(_seed_variance, seeds))
        if not all(isclose(min(scores), max(scores)) for scores in seeds):
            return _comparison(task, means, variances, confidence, note="by seeds alone")
        note = "by seeds alone, whose equal scores show no noise: it is unknown"
        found = _comparison(task, means, variances, confidence, note=note)
        return replace(found, has_noise=False)
    assert isinstance(champion, TaskPredictions)
    assert isinstance(candidate, TaskPredictions)
    models, examples = (candidate, champion), len(candidate.labels)
    scores = [_scores(model, np.ones((1, examples)))[:, 0].tolist() for model in models]
    random = _generator(task, seed, examples)
    differences: list[Floats] = []
    block = max(1, BLOCK_WEIGHTS // max(1, examples))
    for start in range(0, resamples, block):
        weights = _resampled(random, min(block, resamples - start), examples)
        drawn = [_scores(model, weights).mean(axis=0) for model in models]
        differences.append(drawn[0] - drawn[1])
    of_examples = (float(np.concatenate(differences).var(ddof=1)), examples - 1)
    of_seeds = [_seed_variance(by_seed) for by_seed in scores if len(by_seed) > 1]
    note = "" if len(of_seeds) == 2 else "one seed: noise of the examples alone"
    means = list(map(mean, scores))
    return _comparison(task, means, [of_examples, *of_seeds], confidence, note=note)


def _generator(task: str, seed: int, examples: int) -> np.random.Generator:
    """Return the random numbers of a task's bootstrap: independent of those of other tasks."""
    return np.random.default_rng([seed, examples, zlib.crc32(task.encode())])


def _figures(result: Result) -> Iterable[float]:
    """Return the numbers of a result; labels are none."""
    if isinstance(result, TaskPredictions):
        return ()
    return result.values.values() if isinstance(result, SeedScores) else result.losses


def _divided(result: Result, unit: float) -> Result:
    """Return a result in another unit, in which its squares neither overflow nor vanish."""
    if isinstance(result, SeedScores):
        return replace(result, values={seed: each / unit for seed, each in result.values.items()})
    assert isinstance(result, TextLosses)
    return replace(result, losses=[each / unit for each in result.losses])


def _seed_variance(scores: Sequence[float]) -> tuple[float, int]:
    """Return the variance of the mean over seeds, and its degrees of freedom."""
    return float(np.var(scores, ddof=1)) / len(scores), len(scores) - 1


def _comparison(
    task: str,
    means: Sequence[float],
    variances: Sequence[tuple[float, int]],
    confidence: float,
    note: str = "",
) -> Comparison:
    """Return a difference with its interval; its variance is the sum of independent ones.

    Args:
        means: figure of the candidate and of the champion; those equal up to rounding are a tie.
        variances: pairs of variance and degrees of freedom.
    """
    from scipy.stats import t  # slow import, needed at most once a run

    difference = 0.0 if isclose(*means) else means[0] - means[1]
    total, half = sum(variance for variance, _ in variances), 0.0
    if total > 0:
        # Welch and Satterthwaite: (sum of v)² / (sum of v² / d); squares of shares cannot vanish.
        freedom = 1 / sum(
            (variance / total) ** 2 / max(1, degrees) for variance, degrees in variances
        )
        half = float(t.ppf((1 + confidence) / 2, freedom)) * total**0.5
    low, high = difference - half, difference + half
    return Comparison(
        task=task, difference=100 * difference, low=100 * low, high=100 * high, note=note
    )


def _scores(answers: TaskPredictions, weights: Floats) -> Floats:
    """Return the scores by seed, float64 [seeds, R]."""
    by_seed = answers.predictions.values()
    return np.stack(
        [
            score(answers.metric, answers.labels, predicted, weights, answers.classes)
            for predicted in by_seed
        ]
    )


def _resampled(random: np.random.Generator, resamples: int, examples: int) -> Floats:
    """Return how often each example is drawn, float64 [resamples, examples]."""
    drawn = random.integers(examples, size=(resamples, examples))
    cells = drawn + examples * np.arange(resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=resamples * examples)
    return counts.reshape(resamples, examples).astype(np.float64)


def _reason(champion: Result | None, candidate: Result) -> str:
    """Return why two results cannot be compared; empty: they can."""
    if champion is None:
        return "the champion has no answers"
    if getattr(champion, "metric", "") != getattr(candidate, "metric", ""):
        return "the scores are different metrics"
    if isinstance(candidate, SeedScores) and isinstance(champion, SeedScores):
        if min(len(champion.values), len(candidate.values)) < 2:
            return "answers without labels need two or more seeds to estimate the noise"
        return ""
    if isinstance(candidate, TextLosses) and isinstance(champion, TextLosses):
        is_same = champion.examples == candidate.examples
        if is_same and sum(count > 0 for count in candidate.predictions) < 2:
            return "the text has fewer than two groups of predictions"
        return "" if is_same else "the losses are of different text"
    if not isinstance(candidate, TaskPredictions) or not isinstance(champion, TaskPredictions):
        return "the scores are different metrics"
    if champion.examples != candidate.examples:
        return "the answers are to different examples"
    if not candidate.predictions or not champion.predictions:
        return "a model has no answers"
    return "" if len(candidate.labels) > 1 else "the task has fewer than two examples"


def _signed(value: float) -> str:
    text = f"{value:+.1f}" if abs(value) >= 0.05 else f"{value:+.1g}"  # no lead is shown as none
    return text.replace("-", "\N{MINUS SIGN}") if value else "±0.0"
