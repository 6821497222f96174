"""What the stage score does, once torch is there: read the sentences, score them, count which of each pair is likelier."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from model.tasks.files import METRICS, write_json
from model.tasks.formats.minimal_pairs import MinimalPair, read_minimal_pairs
from model.train.distributed import join
from model.train.precision import resolve
from model.use.score_config import ScoreConfig
from model.use.scorer import Scorer
from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.core.stage import Build, Outcome

PAIRS = "pairs.jsonl"
CLOSE = (
    0.1  # nats between the sentences of a pair, below which bf16 is not trusted: seventeen deviations of a BERT-mini's error
)
SAFETY = 1.5  # how many times the greatest error that was seen must be less than what counts as close: see docs/decisions.md
FEWEST = 32  # pairs that the error is seen on: of a few the greatest may be far from what there is
TASK = "minimal-pairs"

Floats = npt.NDArray[np.float64]


def run(config: ScoreConfig, build: Build) -> Outcome:
    """Score minimal pairs.

    Raises:
        UsageError: no data was named, or the checkpoint names no pieces.
        DataError: checkpoint or data is missing or damaged, or a sentence is longer than the model reads.
    """
    if config.data is None:
        raise UsageError("score needs minimal pairs (found none); name a file of them, or a directory, with --data")
    world = join(build.execution)
    precision = resolve(config.precision, world.device)
    scorer = Scorer(build.inputs["checkpoint"], mask=config.mask, precision=precision, device=world.device)
    pairs = read_minimal_pairs(config.data, config.columns, config.limit)
    scores, pieces = _scores(config, build, scorer, pairs)
    again = 0
    if config.precision == "auto" and precision == "bf16":
        exact = Scorer(scorer.path, mask=config.mask, precision="fp32", device=scorer.device)
        again = settle(scores, lambda some: _scores(config, build, exact, [pairs[i] for i in some])[0])
    points = correct(scores)
    groups: dict[str, list[str | None]] = {
        "by_phenomenon": [pair.phenomenon for pair in pairs],
        "by_term": [pair.groups.get("term") for pair in pairs],
        "by_field": [pair.groups.get("field") for pair in pairs],
    }
    by = {name: _means(points, labels) for name, labels in groups.items()}
    accuracy = float(points.mean())
    interval = {"accuracy": list(bootstrap(points, config.seed, config.resamples))}
    content = {
        "task": TASK,
        "metric": "accuracy",
        "pairs": len(pairs),
        "metrics": {"accuracy": accuracy, **{name: found for name, found in by.items() if found}},
        "interval": interval,
        "ties": int((points == 0.5).sum()),
        "scored_again_in_fp32": again,
        "method": {"mask": None if scorer.left_to_right else config.mask, "normalize": config.normalize},
    }
    write_json(build.file(METRICS), content)
    rows = (
        {"UID": pair.phenomenon, "pairID": pair.id, "good": good, "bad": bad, "correct": point}
        for pair, (good, bad), point in zip(pairs, scores.tolist(), points.tolist(), strict=True)
    )
    _write_lines(build.file(PAIRS), rows)
    build.counters["read/pairs"] += len(pairs)
    metrics = {"accuracy": accuracy, "by_phenomenon": by["by_phenomenon"]}
    told = {key: content[key] for key in ("task", "metric", "pairs", "ties", "interval", "method")}
    summary = {**told, "metrics": metrics, **_machine(scorer)}
    return Outcome(rows=len(pairs), tokens=pieces, summary=summary)


def _scores(config: ScoreConfig, build: Build, scorer: Scorer, pairs: Sequence[MinimalPair]) -> tuple[Floats, int]:
    """Of good and bad sentences, float64 [n, 2]; and the pieces of all."""
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    found = scorer.scored(texts, lambda i: pairs[i // 2].where, _progress(build))
    scores = np.array([sentence.score(config.normalize) for sentence in found]).reshape(-1, 2)
    return scores, sum(len(sentence.pieces) for sentence in found)


def settle(scores: Floats, exactly: Any) -> int:
    """Score close pairs again, in place, until none is left whose order the first scores' error could have turned.

    What counts as close begins at `CLOSE`, or where the `FEWEST` closest pairs lie if that is farther, and grows until it is `SAFETY` times
    the greatest error seen among those scored again.

    Args:
        scores: float64 [n, 2].
        exactly: numbers of pairs to their exact scores, float64 [m, 2].

    Returns:
        How many pairs were scored again.
    """
    margins = scores[:, 0] - scores[:, 1]
    done = np.zeros(len(scores), np.bool_)
    close = max(CLOSE, float(np.sort(np.abs(margins))[FEWEST])) if len(margins) > FEWEST else np.inf
    error = 0.0
    while True:
        chosen = np.flatnonzero((np.abs(margins) < close) & ~done)
        if len(chosen):
            scores[chosen] = exactly(chosen.tolist())
            done[chosen] = True
            error = max(error, float(np.abs(scores[chosen, 0] - scores[chosen, 1] - margins[chosen]).max()))
        if close >= SAFETY * error:
            return int(done.sum())
        close = SAFETY * error


def correct(scores: Floats) -> Floats:
    """1 where the good sentence scores higher, one half on a tie, else 0: float64 [n]. Args: scores: float64 [n, 2], good and bad."""
    return np.where(scores[:, 0] == scores[:, 1], 0.5, (scores[:, 0] > scores[:, 1]).astype(np.float64))


def bootstrap(points: Floats, seed: int, resamples: int, level: float = 0.95) -> tuple[float, float]:
    """The percentile bootstrap interval (Efron 1979) of the mean of points that are 0, one half or 1.

    How often each of the three is drawn in a resample of n pairs is multinomial: that is drawn, not the pairs.
    """
    values = np.array([0.0, 0.5, 1.0])
    shares = np.array([(points == value).mean() for value in values])
    counts = np.random.Generator(np.random.PCG64(seed)).multinomial(len(points), shares, size=resamples)
    low, high = np.quantile(counts @ values / len(points), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _means(points: Floats, labels: Sequence[str | None]) -> dict[str, float]:
    by: dict[str, list[float]] = defaultdict(list)
    for label, point in zip(labels, points.tolist(), strict=True):
        if label is not None:
            by[label].append(point)
    return {label: float(np.mean(by[label])) for label in sorted(by)}


def _machine(scorer: Scorer) -> dict[str, Any]:
    """What the next estimate wants to know."""
    return {"precision": scorer.precision, "device": scorer.device.type, "parameters": scorer.parameters}


def _progress(build: Build) -> Any:
    return lambda done, total: build.report.progress(done, total, "sentences", {})


def _write_lines(path: str, rows: Iterable[dict[str, Any]]) -> None:
    storage.write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
