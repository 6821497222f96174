"""The gate: whether a candidate may take the champion's place, and in which words that is told.

Both models were fine-tuned on a task with several seeds and answered the same examples. A paired bootstrap over the examples says how far
the difference of their scores would move with other examples (Efron and Tibshirani 1993, chapter 16; Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation"): one resample of the examples serves both models. The seeds are resampled
besides, each model's by itself, as fine-tuning seeds of two models have nothing in common (the Multi-Bootstrap of Sellam et al. 2022, "The
MultiBERTs", section 3, with unpaired seeds). With one seed the interval holds the examples' noise alone, and with a few it is
too narrow rather than too wide.

A task whose answers are no labels (spans, tags, numbers) has no such score an example. It is compared by its seeds alone: Welch's interval of the
difference of two means, which with a few seeds is wide, and says nothing of other examples. The sentence says so.

The intervals hold together: of T tasks each has the level 1 - (1 - level) / T (Bonferroni), so that a candidate does not pass, or
fail, by the number of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flows.night.metrics import METRICS, score
from pipeline.core.errors import UsageError

BETTER, WORSE, NOISE = "better", "worse", "within noise"
AT_ONCE = 1 << 22  # weights of a block of resamples: 32 MiB
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a model said to a task's examples.

    Attributes:
        metric: the task's score, a name in `flows.night.metrics.METRICS`.
        examples: what names the example set: two models are compared on the same one alone.
        labels: of N examples, in the order of the data.
        predictions: by seed, as many of each.
    """

    metric: str
    examples: str
    labels: Sequence[str]
    predictions: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UsageError(f"score ({self.metric!r}) is none that the gate knows; use one of {', '.join(METRICS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """What a model reached on a task whose answers are no labels. Attributes: values: the score, by seed."""

    metric: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate against champion on one task. The difference and its interval are in hundredths, as scores are told.

    Attributes:
        by_seeds: whether the interval holds the seeds' noise alone.
    """

    task: str
    difference: float
    low: float
    high: float
    by_seeds: bool = False

    @property
    def verdict(self) -> str:
        return BETTER if self.low > 0 else WORSE if self.high < 0 else NOISE

    def told(self) -> str:
        """`sst2 +1.8 (+0.4 to +3.1)`, and the verdict where it is not better."""
        note = "; by seeds alone" if self.by_seeds else ""
        note += "" if self.verdict == BETTER else f": {self.verdict}"
        return f"{self.task} {_signed(self.difference)} ({_signed(self.low)} to {_signed(self.high)}{note})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the candidate takes over, and why in one sentence.

    Attributes:
        left_out: the tasks that could not be compared, with the reason.
    """

    promoted: bool
    why: str
    comparisons: tuple[Comparison, ...] = ()
    left_out: Mapping[str, str]


def decide(
    champion: Mapping[str, Answers | SeedScores],
    candidate: Mapping[str, Answers | SeedScores],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 1,
    need_better: bool = True,
) -> Decision:
    """Compare two models on their common tasks.

    The candidate takes over if it is worse beyond noise on no task and better beyond noise on one at least.

    Args:
        champion, candidate: by task.
        need_better: false: worse beyond noise on no task is enough.
    """
    left_out = {task: reason for task in candidate if (reason := _reason(champion.get(task), candidate[task]))}
    left_out |= {task: "the candidate has no answers" for task in champion if task not in candidate}
    tasks = [task for task in candidate if task not in left_out]
    missing = "".join(f"; {task} is not compared: {reason}" for task, reason in left_out.items())
    if not tasks:
        return Decision(promoted=False, why=f"kept: there is nothing to compare{missing}", left_out=left_out)
    share = 1 - (1 - level) / len(tasks)
    comparisons = tuple(_compared(task, champion[task], candidate[task], share, resamples, seed) for task in tasks)
    verdicts = {comparison.verdict for comparison in comparisons}
    promoted = WORSE not in verdicts and (BETTER in verdicts or not need_better)
    word = "promoted" if promoted else "kept"
    interval = f"{level:.0%} interval{'s, together' if len(tasks) > 1 else ''}"
    figures = ", ".join(comparison.told() for comparison in comparisons)
    return Decision(
        promoted=promoted, why=f"{word}: {figures}; {interval}{missing}", comparisons=comparisons, left_out=left_out
    )


def _compared(
    task: str, champion: Answers | SeedScores, candidate: Answers | SeedScores, level: float, resamples: int, seed: int
) -> Comparison:
    if isinstance(champion, Answers) and isinstance(candidate, Answers):
        return compare(task, champion, candidate, level, resamples, seed)
    assert isinstance(champion, SeedScores)  # else there is a reason against it
    assert isinstance(candidate, SeedScores)
    return compare_seeds(task, list(champion.values.values()), list(candidate.values.values()), level)


def compare_seeds(task: str, champion: Sequence[float], candidate: Sequence[float], level: float) -> Comparison:
    """Welch's interval (1947) of the difference of the means, from two scores a model at least."""
    from scipy import stats  # heavy, and needed once a night at most

    difference = low = high = 100 * float(np.mean(candidate) - np.mean(champion))
    if np.ptp(candidate) or np.ptp(champion):
        interval = stats.ttest_ind(candidate, champion, equal_var=False).confidence_interval(level)
        low, high = 100 * float(interval.low), 100 * float(interval.high)
    return Comparison(task=task, difference=difference, low=low, high=high, by_seeds=True)


def compare(task: str, champion: Answers, candidate: Answers, level: float, resamples: int, seed: int) -> Comparison:
    """One task; both have answered the same examples.

    Args:
        level: of the interval, which is that of the percentiles.
    """
    whole = np.ones((1, len(candidate.labels)))
    difference = _scores(candidate, whole).mean() - _scores(champion, whole).mean()
    random = np.random.default_rng([seed, len(candidate.labels)])
    drawn: list[Floats] = []
    most = max(1, AT_ONCE // max(1, len(candidate.labels)))
    for start in range(0, resamples, most):
        weights = _resampled(random, min(most, resamples - start), len(candidate.labels))
        drawn.append(_mean_of_seeds(random, _scores(candidate, weights)) - _mean_of_seeds(random, _scores(champion, weights)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return Comparison(task=task, difference=100 * float(difference), low=100 * float(low), high=100 * float(high))


def _scores(answers: Answers, weights: Floats) -> Floats:
    """Float64 [seeds, R]."""
    return np.stack([score(answers.metric, answers.labels, said, weights) for said in answers.predictions.values()])


def _resampled(random: np.random.Generator, resamples: int, examples: int) -> Floats:
    """How often each example is drawn, float64 [resamples, examples]."""
    places = random.integers(examples, size=(resamples, examples)) + examples * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * examples).reshape(resamples, examples).astype(np.float64)


def _mean_of_seeds(random: np.random.Generator, scores: Floats) -> Floats:
    """The mean over seeds drawn with replacement, of scores [seeds, R]: float64 [R]."""
    seeds, resamples = scores.shape
    chosen = random.integers(seeds, size=(seeds, resamples))
    mean: Floats = np.take_along_axis(scores, chosen, axis=0).mean(axis=0)
    return mean


def _reason(champion: Answers | SeedScores | None, candidate: Answers | SeedScores) -> str:
    """Why the two cannot be compared; empty where they can."""
    if champion is None:
        return "the champion has no answers"
    if isinstance(candidate, SeedScores) or isinstance(champion, SeedScores):
        if type(candidate) is not type(champion) or champion.metric != candidate.metric:
            return "the two are scored otherwise"
        if min(len(one.values) for one in (champion, candidate) if isinstance(one, SeedScores)) < 2:
            return "its answers are no labels, and one seed says nothing about noise; fine-tune with two or more"
        return ""
    if champion.examples != candidate.examples:
        return "the two have answered different examples"
    return "" if candidate.labels else "it has no examples"


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return "±0.0" if text in ("+0.0", "-0.0") else text.replace("-", "\N{MINUS SIGN}")
