"""Masks of a training: thinned by a schedule, or drawn per batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloze.core import random_keys, storage
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.model.data.rows import MaskedRows
from cloze.model.random_streams import Stream
from cloze.pipeline.dataset.masking.candidates import (
    UNIGRAMS,
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    read_unigrams,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.masking.registry import RULES
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.tokenizer import load

# Mask-rate schedule: a pure function of the step, so it has no state to save.


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRateSchedule:
    """Linear decrease of the share of stored masks that are used, from 1 to `last`.

    A random subset of random masks is random, so a dataset with 30 % masks can train at 15 %.
    Dropped masks leave the original token in the row (Ankner et al., "Dynamic Masking Rate
    Schedules for MLM Pretraining", 2023).

    Attributes:
        last: final share, in (0, 1).
        first: first step of the decrease.
        steps: number of steps of the decrease.
    """

    last: float
    first: int
    steps: int
    seed: int

    def share_at(self, step: int) -> float:
        """Return the share of masks that step `step` (from 0) trains on."""
        return 1.0 - (1.0 - self.last) * min(1.0, max(0.0, (step - self.first) / self.steps))

    def subsample(self, rows: MaskedRows, samples: I64, step: int) -> MaskedRows:
        """Return the rows with the share of their masks that `step` uses.

        Args:
            samples: int64 [B], sample numbers of the rows in the run.
        """
        owners = np.repeat(np.arange(len(samples)), rows.counts)
        keys = random_keys.fold_in(self.seed, Stream.THINNING, samples)[owners]
        # By sample and position: the same masks on any rank, and after a resume.
        keep = random_keys.uniform(random_keys.fold_in(keys, rows.positions)) < self.share_at(step)
        counts = np.bincount(owners[keep], minlength=len(samples)).astype(np.int64)
        return rows.with_masks(rows.positions[keep], rows.replacements[keep], counts)


# Dynamic masking: masks drawn per batch, with the function that the dataset stage uses.


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicMasker:
    """Draws masks of rows for given mask copies.

    Attributes:
        table: token properties of the dataset's tokenizer.
    """

    seed: int
    config: MaskConfig
    table: TokenProperties

    @classmethod
    def of(cls, dataset: str, info: DatasetInfo) -> DynamicMasker:
        """Return the masker of the dataset artifact at `dataset`.

        Raises:
            UsageError: the shards do not record the masking options.
            DataError: the tokenizer is missing or damaged.
        """
        if info.masks is None:
            raise UsageError(
                f"{dataset} does not say how its masks were drawn; make it again, or leave out "
                f"pretrain.dynamic_masking"
            )
        tokenizer = load(storage.join(dataset, "tokenizer"))
        config = MaskConfig.from_dict(info.masks)
        if (marks := RULES[config.rule].marks) is not None:
            raise UsageError(
                f"{dataset} stores no {marks.role}, which masking {config.rule} draws from; leave "
                f"out pretrain.dynamic_masking"
            )
        counts = (
            read_unigrams(storage.join(dataset, UNIGRAMS))
            if config.random_from == "corpus"
            else None
        )
        return cls(seed=info.seed, config=config, table=TokenProperties.of(tokenizer, counts))

    def __call__(self, rows: MaskedRows, copies: I64) -> MaskedRows:
        """Return the rows with masks of copies `copies`, int64 [B]."""
        unmasked = UnmaskedRows(
            keys=row_keys(self.seed, rows.documents, rows.sentences),
            input_ids=rows.ids,
            offsets=offsets_of(rows.lengths),
            segment_start=rows.segment_start,
        )
        # Rows of a batch may be of two epochs. Each copy number is drawn for all rows at once, and
        # each row takes its own: the draws do not depend on the others in the batch.
        numbers, number_index = np.unique(copies, return_inverse=True)
        masks = sample_masks(unmasked, self.config, self.table, numbers)
        mask_numbers = np.arange(len(copies)) * len(numbers) + number_index
        counts = np.diff(masks.offsets)[mask_numbers]
        index = ranges(masks.offsets[:-1][mask_numbers], counts)
        return rows.with_masks(masks.positions[index], masks.input_ids[index], counts)

    def most(self, length: int) -> int:
        """Return the maximum number of predictions of a row of at most `length` tokens."""
        return int(self.config.predictions(length, length, 1.0))
