"""Held-out evaluation during training: its rows, its schedule and its metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cloze.core.figures import check_figures
from cloze.core.ragged import I64
from cloze.model.data.batch import (
    BIDIRECTIONAL,
    AttentionModes,
    collate,
    empty_batch,
    move,
    prefetch_batches,
)
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.mixture import ConcatenatedRows, RowTable
from cloze.model.data.sampler import shard_range
from cloze.model.layers.batch import Batch
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from cloze.model.train.spec.schedules import BatchSizeSchedule, ScheduleProgress

COUNT_ROWS = 4096  # rows read at once to count targets
UNIGRAM_ROWS = 20_000  # training rows from which the unigram distribution is counted
FEWEST_ROWS = 64  # minimum for a meaningful mean
FORWARD_COST = 1 / 3  # of training on a row: the backward pass takes twice as long
SHARE = 0.05  # maximum share of the training time
EVALUATIONS = 10  # per run, by default


@dataclass(frozen=True, slots=True)
class HeldoutSet:
    """The first `rows` held-out rows with mask copy 0, in the attention modes of training.

    Row r is read as sample r. Shards are sorted by a hash, so the first rows are a fair sample.
    """

    shards: RowTable
    rows: int
    batch: int
    pad: int
    mask: int
    longest: int
    layout: LayoutKind = "rows"
    directions: AttentionModes = BIDIRECTIONAL

    def parts(self) -> list[tuple[str, HeldoutSet]]:
        """Return the set of each dataset by name; a single dataset has the name "".

        A mixture's rows are divided by its weights, but each dataset has at least `FEWEST_ROWS`
        divided by the number of datasets.
        """
        if not isinstance(self.shards, ConcatenatedRows):
            return [("", self)]
        datasets, shares = self.shards.parts, self.shards.shares
        min_rows = min(self.rows, FEWEST_ROWS) // len(datasets)
        parts = []
        for name, dataset in datasets.items():
            rows = min(len(dataset), max(min_rows, round(shares[name] * self.rows)))
            parts.append((name, replace(self, shards=dataset, rows=rows)))
        return parts

    def batches(self, world: World) -> list[tuple[int, int]]:
        """Return this rank's batches as row ranges, equally many on every rank.

        Some ranges may be empty.
        """
        max_rows = -(-self.rows // world.size)
        batch_count = -(-max_rows // self.batch)
        rank_range = shard_range(0, self.rows, world.rank, world.size)
        return [shard_range(*rank_range, index, batch_count) for index in range(batch_count)]

    def load(self, start: int, stop: int) -> Batch:
        if start == stop:
            return empty_batch(pad=self.pad, directions=self.directions)
        rows = np.arange(start, stop)
        return collate(
            self.shards.take(rows, np.zeros_like(rows)),
            pad=self.pad,
            longest=self.longest,
            layout=self.layout,
            directions=self.directions,
            samples=rows,
        )

    def target_counts(self, vocabulary: int) -> I64:
        """Count how many times each id is a target, int64 [V]."""
        counts = np.zeros(vocabulary, np.int64)
        for _, dataset in self.parts():
            for start in range(0, dataset.rows, COUNT_ROWS):
                batch = dataset.load(start, min(start + COUNT_ROWS, dataset.rows))
                labels = batch.get("target_labels", batch["masked_labels"]).numpy().ravel()
                counts += np.bincount(labels[labels >= 0], minlength=vocabulary)
        return counts


def target_count_rows(heldout: HeldoutSet, train: RowTable) -> HeldoutSet:
    """Return the training rows whose targets are counted, read like the held-out rows."""
    return replace(heldout, shards=train, rows=min(len(train), UNIGRAM_ROWS))


def unigram_baselines(train: HeldoutSet, heldout: HeldoutSet, vocabulary: int) -> dict[str, float]:
    """Return the losses of context-free guessing, in nats per held-out target.

    A trained model must be below both.

    Returns:
        unigram_entropy: entropy of the held-out targets' own distribution, which no such guesser
        can beat; far too low with few held-out rows. unigram_loss: loss of the training targets'
        distribution, with add-one smoothing.
    """
    counts, train_counts = heldout.target_counts(vocabulary), train.target_counts(vocabulary) + 1.0
    if not counts.sum():
        return {}
    losses = -np.log(train_counts / train_counts.sum())
    loss = float((counts / counts.sum() * losses).sum())
    return {"unigram_entropy": round(entropy(counts), 6), "unigram_loss": round(loss, 6)}


def entropy(counts: I64) -> float:
    """Return the entropy in nats of the distribution with these counts, which are not all 0."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclass(frozen=True, slots=True)
class EvaluationSchedule:
    """Interval and size of evaluations.

    Attributes:
        every: steps between evaluations.
        rows: rows of every evaluation except the last.
        last: rows of the last evaluation.
    """

    every: int
    rows: int
    last: int

    @classmethod
    def within(
        cls, steps: int, trained: int, max_rows: int, every: int | None
    ) -> EvaluationSchedule:
        """Return a schedule that costs at most `SHARE` of training on `trained` rows.

        The last evaluation gets half of that, the earlier ones the rest; short runs have fewer
        evaluations over fewer rows. A requested interval is kept, and no evaluation has fewer than
        `FEWEST_ROWS` rows.

        Args:
            every: requested interval; None: `EVALUATIONS` in all, if they can be afforded.
        """
        min_rows, last_rows, remaining_rows = cls._rows(trained, max_rows)
        if every is None:
            evaluations = cls.affordable(trained, max_rows)
            every = max(steps // (evaluations + 1), 1)
            if (steps - 1) // every * min_rows > remaining_rows:
                every = -(-steps // (evaluations + 1))
        rows = max(min_rows, remaining_rows // max(1, (steps - 1) // every))
        return cls(every, min(max_rows, rows), last_rows)

    @classmethod
    def affordable(cls, trained: int, max_rows: int) -> int:
        """Return the default number of evaluations before the last one; see `within`."""
        min_rows, _, remaining_rows = cls._rows(trained, max_rows)
        return min(EVALUATIONS - 1, remaining_rows // max(1, min_rows))

    @classmethod
    def _rows(cls, trained: int, max_rows: int) -> tuple[int, int, int]:
        """Return minimum rows of an evaluation, rows of the last, and total of all others."""
        affordable_rows = int(SHARE / FORWARD_COST * trained)
        min_rows = min(max_rows, FEWEST_ROWS)
        last_rows = min(max_rows, max(min_rows, affordable_rows // 2))
        return min_rows, last_rows, max(0, affordable_rows - last_rows)


@dataclass(slots=True, kw_only=True)
class HeldoutEvaluator:
    """The evaluator of a pretraining; see `cloze.model.train.spec.interfaces.Evaluator`.

    Attributes:
        heldout: all rows that may be scored.
        first_step: first step of this training.
        steps: number of steps; None: unknown, and extrapolated from the schedule progress.
        every: requested interval.
        row_seconds: seconds per row in the newest evaluation; None: no evaluation yet.
    """

    scoring: PretrainModule
    heldout: HeldoutSet
    world: World
    batches: BatchSizeSchedule
    first_step: int
    steps: int | None
    every: int | None = None
    row_seconds: float | None = None
    best_metric: str = "heldout_loss"
    _interval: int | None = None  # steps between evaluations, asked for at every step

    def schedule(self, steps: int) -> EvaluationSchedule:
        """Return the evaluation schedule for this number of steps."""
        return EvaluationSchedule.within(
            steps, self.batches.samples_before(steps), self.heldout.rows, self.every
        )

    def should_evaluate(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        if self.steps is None and self.every is None:
            trained = self.batches.samples_before(self._all_steps(step, schedule_progress))
            return schedule_progress.crosses(
                1 + EvaluationSchedule.affordable(trained, self.heldout.rows)
            )
        if self._interval is None:
            self._interval = self.every or self.schedule(self.steps or 1).every
        return step % self._interval == 0

    def __call__(
        self, step: int, schedule_progress: ScheduleProgress, stop_requested: Callable[[], bool]
    ) -> dict[str, float]:
        rows, start = self.rows(step, schedule_progress), time.perf_counter()
        heldout = replace(self.heldout, rows=rows)
        metrics = evaluate(self.scoring, heldout, self.world, stop_requested)
        self.row_seconds = (time.perf_counter() - start) / max(1, rows)
        return metrics

    def rows(self, step: int, schedule_progress: ScheduleProgress) -> int:
        """Return the number of rows to score after `step` steps."""
        schedule = self.schedule(self._all_steps(step, schedule_progress))
        return schedule.last if schedule_progress.last else schedule.rows

    def _all_steps(self, step: int, schedule_progress: ScheduleProgress) -> int:
        """Return the number of steps, extrapolated from the last step's size if unknown."""
        if self.steps is not None:
            return self.steps
        size = schedule_progress.step_size
        left = schedule_progress.total - schedule_progress.done - size
        return step - self.first_step + max(0, round(left / size) if size > 0 else 0)

    def closing(self, step_seconds: float) -> float:
        """Return the maximum seconds of the last evaluation, given the seconds per step."""
        row_seconds = self.row_seconds or FORWARD_COST * step_seconds / self.batches.last
        return self.heldout.rows * row_seconds


@torch.no_grad()
def evaluate(
    scoring: PretrainModule,
    heldout: HeldoutSet,
    world: World,
    stop_requested: Callable[[], bool] = lambda: False,
    groups: list[tuple[float, float]] | None = None,
) -> dict[str, float]:
    """Score the held-out rows.

    Args:
        scoring: the trained module; left in training mode.
        stop_requested: True if this rank was asked to stop; called between batches.
        groups: collects (predictions, summed loss) of the first objective by batch of this rank.

    Returns:
        Of the first objective, usually mlm: heldout_loss (nats), heldout_perplexity,
        heldout_accuracy and its details (`heldout_top5_accuracy` …). Other
        objectives have their name in the metric, as in `heldout_nsp_loss`. Metrics without
        predictions are left out. A mixture also has the losses of each dataset (`…_loss_wiki`).

    Raises:
        EvaluationInterrupted: a rank was asked to stop.
        NotFiniteError: a figure is not finite.
    """
    sums = {
        name: _sums(scoring, dataset, world, stop_requested, groups)
        for name, dataset in heldout.parts()
        if dataset.rows
    }
    if not sums:
        return {}
    metrics = _figures(scoring, torch.stack(list(sums.values())).sum(dim=0))
    for name, dataset_sums in sums.items():
        if name:
            figures = _figures(scoring, dataset_sums[:, : len(scoring.names)])
            metrics |= {f"{key}_{name}": figures[key] for key in figures if "loss" in key}
    check_figures("held-out rows", metrics)
    return {name: round(value, 6) for name, value in metrics.items()}


def _sums(
    scoring: PretrainModule,
    heldout: HeldoutSet,
    world: World,
    stop_requested: Callable[[], bool],
    groups: list[tuple[float, float]] | None,
) -> torch.Tensor:
    """Return sums over held-out rows and all ranks, float64 [3, objectives + details].

    Of an objective: losses, correct answers, targets. Of a detail: its sum, its count, and 0; see
    `PretrainModule.predict`. They are added up on the device, which is asked once, at the end.
    """
    device, objectives = world.device, len(scoring.names)
    mask_id = torch.tensor(heldout.mask).to(device)
    target_counts: list[list[int]] = []
    batch_losses: list[torch.Tensor] = []
    sums: torch.Tensor | float = 0.0
    scoring.eval()
    try:
        host_batches = (heldout.load(start, stop) for start, stop in heldout.batches(world))
        with prefetch_batches(host_batches, device) as batches:
            for batch in batches:
                if world.all_reduce_sum([int(stop_requested())])[0]:
                    raise EvaluationInterrupted
                target_counts.append(scoring.count_targets(batch))
                batch_sums = torch.cat(scoring({**move(batch, device), "mask_id": mask_id}), dim=1)
                sums = batch_sums + sums
                batch_losses.append(batch_sums[0, 0])
    finally:
        scoring.train()
    assert isinstance(sums, torch.Tensor)
    if groups is not None:
        predictions = [float(counts[0]) for counts in target_counts]
        groups += zip(predictions, torch.stack(batch_losses).tolist(), strict=True)
    counts = torch.tensor(target_counts, dtype=torch.float64).sum(dim=0)
    filled = torch.nn.functional.pad(counts, (0, sums.shape[1] - objectives))
    return world.all_reduce_tensor(torch.cat([sums.cpu(), filled[None]]))


def _figures(scoring: PretrainModule, sums: torch.Tensor) -> dict[str, float]:
    """Return the means by name of what has predictions. Args: sums: as from `_sums`."""
    names, metrics = scoring.names, dict[str, float]()
    for name, loss, correct, count in zip(names, *sums[:, : len(names)].tolist(), strict=True):
        if count:
            metrics[_heldout(f"{name}_loss", names)] = loss / count
            metrics[_heldout(f"{name}_accuracy", names)] = correct / count
    details = sums[:2, len(names) :].tolist()
    for name, total, count in zip(scoring.detail_names, *details, strict=False):
        if count:
            metrics[_heldout(name, names)] = total / count
    if "heldout_loss" in metrics:
        metrics["heldout_perplexity"] = math.exp(min(metrics["heldout_loss"], 700.0))
    return metrics


def _heldout(name: str, objectives: Sequence[str]) -> str:
    """Return the metric's name: the first objective is the main one and is not named."""
    return f"heldout_{name.removeprefix(objectives[0] + '_')}"
