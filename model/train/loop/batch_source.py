"""The batches of a pretraining: attention modes, mask rate, mixture counters, source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloze.core.errors import UsageError
from cloze.model.data.batch import BIDIRECTIONAL, AttentionModes, collate, empty_batch
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.mixture import BLOCK, ConcatenatedRows, MixtureSampler
from cloze.model.data.rows import MaskRateSchedule
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import RowTable
from cloze.model.objectives import CAUSAL, MASKED
from cloze.model.train.config import PretrainConfig
from cloze.model.train.loop.data import TrainingData
from cloze.model.train.loop.interfaces import START, MicroBatch, StartPosition, StepBatches
from cloze.model.train.loop.schedules import BatchSizeSchedule
from cloze.model.train.plan.micro_batch import micro_batch_ranges
from cloze.model.train.recipe import step_duration
from cloze.pipeline.dataset.schema import DatasetInfo


def attention_modes(
    names: Sequence[str], causal_share: float | None, global_batch: int
) -> AttentionModes:
    """Return the attention modes for these objectives.

    Raises:
        UsageError: `causal_share` is given without mixed objectives, or leaves a kind without
            samples.
    """
    before = "mntp" in names
    if CAUSAL not in names or not set(names) & set(MASKED):
        if causal_share is not None:
            raise UsageError(
                f"causal_share ({causal_share}) is for objectives of both ways, such as {CAUSAL},"
                f"mntp, these are"
                f" {', '.join(names)}; leave it out"
            )
        return AttentionModes(causal_share=float(CAUSAL in names), before=before)
    share = 0.5 if causal_share is None else causal_share
    if min(share, 1 - share) * global_batch < 1:
        raise UsageError(
            f"causal_share ({share}) of global_batch ({global_batch}) leaves steps without a "
            f"sample of each kind; use"
            f" global_batch {-int(-1 // min(share, 1 - share))} or more"
        )
    return AttentionModes(causal_share=share, before=before)


def mask_rate_schedule(
    config: PretrainConfig, info: DatasetInfo, begun: StartPosition
) -> MaskRateSchedule | None:
    """Return the mask-rate schedule; None: a constant rate.

    Raises:
        UsageError: the dataset does not mask single tokens independently, or its mask rate is too
            low.
    """
    if config.final_mask_rate is None:
        return None
    masks = info.masks or {}
    rate = float(masks.get("rate") or 0.0)
    if masks.get("rule") != "token" or not rate:
        raise UsageError(
            f"final_mask_rate is for datasets of masking token, whose masks are chosen one by one, "
            f"and this one's is"
            f" {masks.get('rule') or 'not known'}; leave it out, or make the dataset with masking "
            f"token"
        )
    if config.final_mask_rate >= rate:
        raise UsageError(
            f"final_mask_rate ({config.final_mask_rate:g}) is not below the dataset's mask_rate "
            f"({rate:g}), from which it falls; use a"
            " lower one, or make the dataset with a higher one"
        )
    pace = step_duration(config, begun)
    return MaskRateSchedule(
        last=config.final_mask_rate / rate, first=pace.first, steps=pace.span, seed=config.seed
    )


def objective_weights(names: Sequence[str], directions: AttentionModes) -> dict[str, float]:
    """Return the objectives' weights in the loss, so that all samples count equally.

    Without weights, samples with more predictions would count more.
    """
    if directions.causal_share in (0.0, 1.0):
        return {}
    return {
        name: directions.causal_share if name == CAUSAL else 1 - directions.causal_share
        for name in names
    }


@dataclass(frozen=True, slots=True)
class MixtureCounter:
    """Counters of a mixture: rows, tokens and epochs per dataset.

    Implements `cloze.model.train.loop.interfaces.MixtureStatistics`.

    Attributes:
        names: names of the datasets.
        prints: fingerprints of the datasets.
        sampler: order of the mixture's rows.
        begun: start position of this phase.
    """

    names: tuple[str, ...]
    prints: tuple[str, ...]
    sampler: MixtureSampler
    begun: StartPosition

    @classmethod
    def of(
        cls, data: TrainingData, sampler: Sampler | MixtureSampler, begun: StartPosition
    ) -> MixtureCounter | None:
        """Create the counter; None for a single dataset."""
        if not isinstance(sampler, MixtureSampler) or data.fingerprints is None:
            return None
        return cls(tuple(data.fingerprints), tuple(data.fingerprints.values()), sampler, begun)

    def places(self, samples: int) -> dict[str, int]:
        return dict(zip(self.prints, self.sampler.places(samples), strict=True))

    def figures(self, samples: int, tokens: Sequence[int]) -> dict[str, float]:
        return {
            f"{kind}_{dataset['name']}": dataset[kind]
            for dataset in self.summary(samples, tokens)
            for kind in ("rows", "tokens", "epochs")
        }

    def summary(self, samples: int, tokens: Sequence[int]) -> list[dict[str, Any]]:
        positions, start_positions = (
            self.sampler.places(samples),
            self.sampler.places(self.begun.sample),
        )
        token_counts = tokens or [0] * len(self.names)
        return [
            {
                "name": name,
                "share": round(self.sampler.draw.quotas[index] / BLOCK, 6),
                "rows": positions[index] - start_positions[index],
                "tokens": token_counts[index],
                "epochs": round(positions[index] / self.sampler.samplers[index].rows, 4),
            }
            for index, name in enumerate(self.names)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """The rows of a dataset as batches, divided among the ranks and then into micro-batches.

    Implements `cloze.model.train.loop.interfaces.BatchSource`.

    Attributes:
        shards: the rows.
        info: metadata of the dataset.
        sampler: maps a sample number to row and mask copy.
        batches: batch size schedule of this phase.
        micro_batch: maximum number of samples per micro-batch.
        fixed_predictions: masked positions per row, for compiled models with one batch shape.
        layout: layout of tokens in the layers.
        thinning: mask-rate schedule; None: all masks are used.
        directions: attention modes of the samples.
        begun: start position of this phase.
    """

    shards: RowTable
    info: DatasetInfo
    sampler: Sampler | MixtureSampler
    batches: BatchSizeSchedule
    micro_batch: int
    fixed_predictions: int | None = None
    layout: LayoutKind = "rows"
    thinning: MaskRateSchedule | None = None
    directions: AttentionModes = BIDIRECTIONAL
    begun: StartPosition = START

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        batches, tokens = [], 0
        by_source = np.zeros(
            len(self.shards.parts) if isinstance(self.shards, ConcatenatedRows) else 0, np.int64
        )
        first, end = self.samples(step), self.samples(step + 1)
        rank_batch = math.ceil((end - first) / world_size)
        accumulation = math.ceil(rank_batch / self.micro_batch)
        for start, stop in micro_batch_ranges(first, end, rank, world_size, accumulation):
            if start == stop:
                batches.append(
                    MicroBatch(
                        start, empty_batch(pad=self.info.special.pad, directions=self.directions)
                    )
                )
                continue
            samples = np.arange(start, stop)
            row_numbers, copies = self.sampler.locate(samples)
            rows = self.shards.take(row_numbers, copies)
            if self.thinning is not None:
                rows = self.thinning.subsample(rows, samples, step)
            tokens += int(rows.lengths.sum())
            if isinstance(self.shards, ConcatenatedRows):
                by_source += self.shards.by_source(row_numbers, rows.lengths)
            batch = collate(
                rows,
                pad=self.info.special.pad,
                longest=self.info.length,
                fixed_predictions=self.fixed_predictions,
                layout=self.layout,
                directions=self.directions,
                samples=samples,
            )
            batches.append(MicroBatch(start, batch))
        return StepBatches(batches, tokens, by_source.tolist())

    def samples(self, steps: int) -> int:
        return self.begun.sample + self.batches.samples_before(steps - self.begun.step)

    def row_ids(self, step: int) -> dict[str, list[int]]:
        rows, copies = self.sampler.locate(np.arange(self.samples(step), self.samples(step + 1)))
        # datasets: index in the order of names; rows: index in the dataset.
        if isinstance(self.shards, ConcatenatedRows):
            sources, rows = self.shards.source(rows), self.shards.local(rows)
            return {"datasets": sources.tolist(), "rows": rows.tolist(), "copies": copies.tolist()}
        return {"rows": rows.tolist(), "copies": copies.tolist()}
