"""The data of a pretraining: datasets, verified and put in order, and their batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.errors import DataError, UsageError
from cloze.core.stages import stage
from cloze.core.stages.stage import BuildContext
from cloze.model.data.batch import BIDIRECTIONAL, AttentionModes, collate, empty_batch
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.masks import MaskRateSchedule
from cloze.model.data.mixture import (
    BLOCK,
    LENGTH_GROUP,
    ConcatenatedRows,
    MixtureAssignment,
    MixtureSampler,
    RowTable,
    check_compatible,
    make_sampler,
    quotas,
    training_shards,
)
from cloze.model.data.sampler import Sampler, micro_batch_ranges
from cloze.model.data.shards import ShardedRows, verify
from cloze.model.objectives import CAUSAL, share_left_to_right
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.spec.interfaces import START, MicroBatch, StartPosition, StepBatches
from cloze.model.train.spec.schedules import BatchSizeSchedule, StepDuration
from cloze.pipeline.dataset.schema import DatasetInfo

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """An opened dataset or mixture.

    Attributes:
        info: metadata of the rows.
        fingerprint: fingerprint of the data; a mixture's includes the weights.
        fingerprints: of a mixture: dataset name -> fingerprint.
    """

    info: DatasetInfo
    train: RowTable
    heldout: RowTable
    tokenizer: str
    fingerprint: str = ""
    fingerprints: Mapping[str, str] | None = None

    def order(
        self, config: PretrainConfig, start_position: StartPosition
    ) -> Sampler | MixtureSampler:
        """Return the sampler that orders the training rows.

        Args:
            start_position: that of this phase; a mixture's datasets continue where earlier phases
                stopped.
        """
        options = (config.seed, config.dynamic_masking, config.global_batch)
        if isinstance(self.train, ShardedRows):
            return make_sampler(self.train, *options)
        assert self.fingerprints is not None
        length_group = min(LENGTH_GROUP, config.global_batch) if self.train.is_binned else 1
        first_samples = (
            # Rounded up: a unit of the mixture is one group of the dataset's own order.
            -(-start_position.places.get(fingerprint, 0) // length_group) * length_group
            for fingerprint in self.fingerprints.values()
        )
        return MixtureSampler(
            samplers=tuple(
                make_sampler(dataset, *options) for dataset in self.train.parts.values()
            ),
            draw=MixtureAssignment(
                quotas(list(self.train.shares.values())), config.seed, length_group
            ),
            firsts=tuple(first_samples),
        )


def open_data(config: PretrainConfig, build: BuildContext, world: World) -> TrainingData:
    """Open the datasets that the inputs of a pretraining name.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
        UsageError: the datasets cannot be mixed.
    """
    paths = stage.inputs_of_role("dataset", build.inputs)
    if len(paths) == 1:
        (path,) = paths.values()
        opened = open_dataset(path, config.dynamic_masking, world)
        return replace(opened, fingerprint=fingerprints.input_fingerprint(path))
    dataset_fingerprints = {
        name: fingerprints.input_fingerprint(path) for name, path in paths.items()
    }
    first_names: dict[str, str] = {}
    for name, fingerprint in dataset_fingerprints.items():
        if (first_name := first_names.setdefault(fingerprint, name)) != name:
            raise UsageError(
                f"datasets {first_name} and {name} are the same one ({paths[name]}); name it "
                f"once, and give it more weight"
            )
    datasets = {
        name: open_dataset(path, config.dynamic_masking, world) for name, path in paths.items()
    }
    check_compatible({name: dataset.info for name, dataset in datasets.items()})
    train = {name: _shards(dataset.train) for name, dataset in datasets.items()}
    shares = row_shares(config, train)
    first_dataset = next(iter(datasets.values()))
    hash_inputs = [
        (name, f"{dataset_fingerprints[name]} {share!r}")
        for name, share in zip(paths, shares, strict=True)
    ]
    return TrainingData(
        info=first_dataset.info,
        train=ConcatenatedRows(train, shares),
        heldout=ConcatenatedRows(
            {name: _shards(dataset.heldout) for name, dataset in datasets.items()}, shares
        ),
        tokenizer=first_dataset.tokenizer,
        fingerprint=fingerprints.combine_hashes(hash_inputs),
        fingerprints=dataset_fingerprints,
    )


def open_dataset(path: str, dynamic: bool, world: World) -> TrainingData:
    """Open the dataset at `path` and verify the hashes of its files.

    Raises:
        DataError: a file is missing or damaged, or there are no rows to train on.
    """
    world.decide_on_rank_zero(lambda: verify(path))
    manifest = artifact.find_manifest(path)
    if manifest is not None and manifest.stage != "dataset":
        raise DataError(f"{path} is the artifact of a {manifest.stage}; name one of dataset")
    train = training_shards(path, dynamic)
    if not len(train) or train.info is None:
        raise DataError(
            f"{path} has no training rows ({TRAIN}-*.arrow); make a dataset from more text"
        )
    tokenizer = storage.join(path, TOKENIZER)
    if not storage.is_dir(tokenizer):
        raise DataError(
            f"{tokenizer} is missing, so no checkpoint could be used; make the dataset again"
        )
    return TrainingData(
        info=train.info,
        train=train,
        heldout=ShardedRows(path, HELDOUT, train.info),
        tokenizer=tokenizer,
    )


def _shards(rows: RowTable) -> ShardedRows:
    assert isinstance(rows, ShardedRows)
    return rows


def row_shares(config: PretrainConfig, train: Mapping[str, ShardedRows]) -> list[float]:
    """Return each dataset's share of the sampled rows, which sum to 1.

    Shares follow the weights of `mixture`, or the numbers of rows.

    Raises:
        UsageError: a share is less than one row per block of the mixture.
    """
    sizes = {name: len(rows) for name, rows in train.items()}
    weights = [
        config.mixture.get(name) or size / max(sizes.values()) for name, size in sizes.items()
    ]
    shares = [weight / sum(weights) for weight in weights]
    try:
        quotas(shares)
    except ValueError as error:
        name, share = list(train)[error.args[0]], shares[error.args[0]]
        raise UsageError(
            f"dataset {name} would be {share:.2g} of the rows, and less than 1 in {BLOCK:,} cannot "
            f"be drawn; weigh it more with mixture, or leave it out"
        ) from None
    return shares


def attention_modes(
    names: Sequence[str], causal_share: float | None, global_batch: int
) -> AttentionModes:
    """Return the attention modes for these objectives.

    Raises:
        UsageError: `causal_share` is given without mixed objectives, or leaves a kind without
            samples.
    """
    share = share_left_to_right(names, causal_share)
    if share in (0.0, 1.0):
        if causal_share is not None:
            raise UsageError(
                f"causal_share ({causal_share}) is for objectives of both ways, such as {CAUSAL},"
                f"mntp, these are {', '.join(names)}; leave it out"
            )
    elif min(share, 1 - share) * global_batch < 1:
        raise UsageError(
            f"causal_share ({share}) of global_batch ({global_batch}) leaves steps without a "
            f"sample of each kind; use global_batch {-int(-1 // min(share, 1 - share))} or more"
        )
    return AttentionModes(causal_share=share, before="mntp" in names)


def mask_rate_schedule(
    config: PretrainConfig, info: DatasetInfo, duration: StepDuration
) -> MaskRateSchedule:
    """Return the schedule to `final_mask_rate`.

    Raises:
        UsageError: the dataset does not mask single tokens independently, or its mask rate is too
            low.
    """
    assert config.final_mask_rate is not None
    masks = info.masks or {}
    rate = float(masks.get("rate") or 0.0)
    if masks.get("rule") != "token" or not rate:
        raise UsageError(
            f"final_mask_rate is for datasets of masking token, whose masks are chosen one by one, "
            f"and this one's is {masks.get('rule') or 'not known'}; leave it out, or make the "
            f"dataset with masking token"
        )
    if config.final_mask_rate >= rate:
        raise UsageError(
            f"final_mask_rate ({config.final_mask_rate:g}) is not below the dataset's mask_rate "
            f"({rate:g}), from which it falls; use a lower one, or make the dataset with a higher "
            f"one"
        )
    return MaskRateSchedule(
        last=config.final_mask_rate / rate,
        first=duration.first,
        steps=duration.total,
        seed=config.seed,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """The rows of a dataset as batches, divided among the ranks and then into micro-batches.

    Implements `cloze.model.train.spec.interfaces.BatchSource`.

    Attributes:
        sampler: maps a sample number to row and mask copy.
        batches: batch size schedule of this phase.
        micro_batch: maximum number of samples per micro-batch.
        fixed_predictions: masked positions per row, for compiled models with one batch shape.
        layout: layout of tokens in the layers.
        thinning: mask-rate schedule; None: all masks are used.
        directions: attention modes of the samples.
        start_position: that of this phase.
        passed: (step, count) pairs: from that step on, the rows of `count` steps are passed over.
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
    start_position: StartPosition = START
    passed: tuple[tuple[int, int], ...] = ()

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        batches, tokens, number = [], 0, torch.tensor(step)
        by_source = np.zeros(
            len(self.shards.parts) if isinstance(self.shards, ConcatenatedRows) else 0, np.int64
        )
        first = self.samples(step)
        end = first + self.batches.size(step - self.start_position.step)
        rank_batch = math.ceil((end - first) / world_size)
        # Of the largest rank's share: all ranks run as many passes, or collectives would not match.
        accumulation = math.ceil(rank_batch / self.micro_batch)
        for start, stop in micro_batch_ranges(first, end, rank, world_size, accumulation):
            if start == stop:
                empty = empty_batch(pad=self.info.special.pad, directions=self.directions)
                batches.append(MicroBatch(start, {**empty, "step": number}))
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
            batches.append(MicroBatch(start, {**batch, "step": number}))
        return StepBatches(batches, tokens, by_source.tolist())

    def samples(self, steps: int) -> int:
        start, before = self.start_position.step, self.batches.samples_before
        number = self.start_position.sample + before(steps - start)
        for first, count in self.passed:
            if steps >= first:
                # Counted by steps: batches may grow, so steps have different numbers of samples.
                number += before(first + count - start) - before(first - start)
        return number

    def row_ids(self, step: int) -> dict[str, list[int]]:
        count = self.batches.size(step - self.start_position.step)
        rows, copies = self.sampler.locate(self.samples(step) + np.arange(count))
        # datasets: index in the order of names; rows: index in the dataset.
        if isinstance(self.shards, ConcatenatedRows):
            sources, rows = self.shards.source(rows), self.shards.local(rows)
            return {"datasets": sources.tolist(), "rows": rows.tolist(), "copies": copies.tolist()}
        return {"rows": rows.tolist(), "copies": copies.tolist()}
