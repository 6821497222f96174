"""The objective `plm`: permutation language modelling (Yang et al., "XLNet", 2019, section 2.2).

A masked token is predicted from the context and from the masked tokens before it in a random order;
nothing is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.labs.xlnet.xlnet import XlnetConfig
from cloze.model.data.rows import MaskedRows
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import Batch
from cloze.model.objectives.losses import masked_objective
from cloze.model.random_streams import Stream
from cloze.pipeline.dataset.schema import DatasetInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """The order in which masked tokens are predicted, which keep their own tokens.

    Attributes:
        seed: seed of the order.
        memory: tokens at the beginning of a row that are not predicted.
    """

    seed: int
    memory: int = 0

    @classmethod
    def of(cls, model: ModelConfig, info: DatasetInfo, tokenizer: str, seed: int) -> Permutation:
        """Return the permutation of a training; see `Objective.transform`.

        Raises:
            UsageError: the model has no query stream.
        """
        if not isinstance(model, XlnetConfig):
            raise UsageError(
                f"objective (plm) needs a second stream of attention, which {model.family} models "
                f"do not have; train with --objective mlm, or an xlnet model"
            )
        return cls(seed=seed, memory=model.memory)

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        """Return the batch with `target_order`, int64 [B, L]: -1 in the memory, else from 1."""
        rows = self.targets(rows)
        batch = plain(rows)
        order = np.zeros(batch["input_ids"].shape, np.int64)
        order[:, : self.memory] = -1
        masked = batch["masked_positions"][: len(rows.positions)].numpy()  # behind is filler
        order.reshape(-1)[masked] = self.numbers(rows, samples)
        batch["target_order"] = torch.from_numpy(order)
        return batch

    def empty(self, batch: Batch) -> Batch:
        return {**batch, "target_order": torch.zeros_like(batch["input_ids"])}

    def targets(self, rows: MaskedRows) -> MaskedRows:
        """Return the rows with their own tokens as replacements, and no masks in the memory."""
        owners = np.repeat(np.arange(len(rows.lengths)), rows.counts)
        own = rows.ids[offsets_of(rows.lengths)[:-1][owners] + rows.positions]
        keep = rows.positions >= self.memory
        counts = np.bincount(owners[keep], minlength=len(rows.lengths)).astype(np.int64)
        return rows.with_masks(rows.positions[keep], own[keep], counts)

    def numbers(self, rows: MaskedRows, samples: I64) -> I64:
        """Return each mask's number in its row, from 1, by its keyed random number."""
        owners = np.repeat(np.arange(len(samples)), rows.counts)
        keys = random_keys.fold_in(self.seed, Stream.PERMUTATION, samples)[owners]
        # The last key is the first to sort by: masks stay with their row, shuffled inside of it.
        order = np.lexsort((random_keys.fold_in(keys, rows.positions), owners))
        numbers = np.empty(len(order), np.int64)
        numbers[order] = ranges(np.ones_like(rows.counts), rows.counts)
        return numbers


PLM = replace(masked_objective("plm", "masked_lm", "mlm_logits"), transform=Permutation.of)
