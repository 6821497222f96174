"""The stage score: minimal pairs."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.figures import check_figures
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.tasks.files import METRICS_FILE, write_json
from cloze.model.tasks.formats.contrasts import Contrast, read_contrasts
from cloze.model.tasks.metrics import bounds
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve
from cloze.model.use.configs import ScoreConfig
from cloze.model.use.scorer import SentenceScorer

PAIRS = "pairs.jsonl"
TASK = "minimal-pairs"

Floats = npt.NDArray[np.float64]


def run(config: ScoreConfig, build: BuildContext) -> StageResult:
    """Score minimal pairs.

    Raises:
        UsageError: no data is given, or the checkpoint has no language-model head.
        DataError: checkpoint or data is missing or damaged, or a sentence is too long.
        NotFiniteError: a sentence has no finite log-likelihood.
    """
    if config.data is None:
        raise UsageError(
            "score needs minimal pairs (found none); name a file of them, or a directory, with "
            "--data"
        )
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    scorer = SentenceScorer(
        build.inputs["checkpoint"], mask=config.mask, precision=precision, device=world.device
    )
    contrasts = read_contrasts(config.data, config.columns, config.limit)
    texts = [text for contrast in contrasts for text in contrast.sentences]
    starts = [start for contrast in contrasts for start in contrast.starts]
    where = [contrast.where for contrast in contrasts for _ in contrast.sentences]

    def progress(done: int, total: int) -> None:
        build.report.progress(done, total, "sentences", {})

    scored = scorer.scored(texts, where.__getitem__, progress, starts)
    values = iter([sentence.score(config.normalize) for sentence in scored])
    scores = [list(itertools.islice(values, len(own.sentences))) for own in contrasts]
    check_figures("score", {"log-likelihood": float(sum(map(sum, scores)))})
    points = correct(scores)
    groups: dict[str, list[str | None]] = {
        "by_phenomenon": [contrast.phenomenon for contrast in contrasts],
        "by_term": [contrast.groups.get("term") for contrast in contrasts],
        "by_field": [contrast.groups.get("field") for contrast in contrasts],
    }
    group_means = {name: _means(points, labels) for name, labels in groups.items()}
    figures = {
        "accuracy": float(points.mean()),
        "mean_accuracy": float(mean_accuracy(contrasts, points)),
        "chance": float(np.mean([1 / len(own) for own in scores])),
    }
    resampled = partial(resampled_means, np.random.default_rng(config.seed), config.resamples)
    interval = {
        "accuracy": bounds(resampled(points)),
        "mean_accuracy": bounds(mean_accuracy(contrasts, points, resampled)),
    }
    content = {
        "task": TASK,
        "metric": "accuracy",
        "pairs": len(contrasts),
        "metrics": {**figures, **{name: means for name, means in group_means.items() if means}},
        "interval": interval,
        "ties": int(((points > 0) & (points < 1)).sum()),
        "method": {
            "mask": None if scorer.left_to_right else config.mask,
            "normalize": config.normalize,
        },
    }
    write_json(build.file(METRICS_FILE), content)
    rows = (
        {
            "UID": contrast.phenomenon,
            "pairID": contrast.id,
            "good": good,
            "bad": wrong[0] if len(wrong) == 1 else wrong,
            "correct": point,
        }
        for contrast, (good, *wrong), point in zip(contrasts, scores, points.tolist(), strict=True)
    )
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    storage.write_bytes(build.file(PAIRS), lines.encode())
    build.counters["read/pairs"] += len(contrasts)
    metrics = {**figures, "by_phenomenon": group_means["by_phenomenon"]}
    summary = {
        **{key: content[key] for key in ("task", "metric", "pairs", "ties", "interval", "method")},
        "metrics": metrics,
        # Read by the next cost estimate.
        "precision": scorer.precision,
        "device": scorer.device.type,
        "parameters": scorer.parameters,
    }
    tokens = sum(len(sentence.pieces) for sentence in scored)
    return StageResult(rows=len(contrasts), tokens=tokens, summary=summary)


def correct(scores: Sequence[Sequence[float]]) -> Floats:
    """Return the points: 1 if the first score is the highest, 1/k if k are, else 0: float64 [n].

    Args:
        scores: n lists, the right sentence's score first.
    """
    return np.array([(own[0] == max(own)) / own.count(max(own)) for own in scores])


def mean_accuracy(
    contrasts: Sequence[Contrast], points: Floats, mean: Callable[[Floats], Any] = np.mean
) -> Any:
    """Return the mean over files of the mean over a file's phenomena.

    BabyLM reports it: entity tracking has three files with up to six phenomena each, and all other
    files have one. `mean` returns a phenomenon's mean, or its means in resamples, float64 [n].
    """
    by_file: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for contrast, point in zip(contrasts, points.tolist(), strict=True):
        by_file[contrast.file][contrast.phenomenon].append(point)
    means = [[mean(np.array(own)) for own in phenomena.values()] for phenomena in by_file.values()]
    return np.mean([np.mean(own, axis=0) for own in means], axis=0)


def resampled_means(generator: np.random.Generator, resamples: int, points: Floats) -> Floats:
    """Return the mean of points from 0 to 1 in each resample (Efron 1979), float64 [resamples].

    The counts of the distinct values in a resample are multinomial, so counts are drawn instead of
    pairs.
    """
    values = np.union1d([0.0, 0.5, 1.0], points)
    shares = np.array([(points == value).mean() for value in values])
    counts: Floats = generator.multinomial(len(points), shares, size=resamples) @ values
    return counts / len(points)


def _means(points: Floats, labels: Sequence[str | None]) -> dict[str, float]:
    points_by_label: dict[str, list[float]] = defaultdict(list)
    for label, point in zip(labels, points.tolist(), strict=True):
        if label is not None:
            points_by_label[label].append(point)
    return {label: float(np.mean(points_by_label[label])) for label in sorted(points_by_label)}
