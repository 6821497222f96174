"""Fresh masks for every epoch, drawn when a batch is made, by the function that the dataset stage stores masks with.

Copy e of a row is what a dataset with more than e copies would hold: an epoch below its number of copies sees exactly the
stored masks, a later one masks that go on from them. So a run with fresh masks resumes like any other, from the epoch's number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model.data.rows import MaskedRows
from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.core.ragged import I64, offsets_of, ranges
from pipeline.dataset.masking import UNIGRAMS, MaskConfig, TokenTable, UnmaskedRows, draw_masks, read_unigrams, row_keys
from pipeline.dataset.schema import DatasetInfo
from pipeline.tokenizer import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Draws the masks of rows for given copy numbers.

    Attributes:
        seed: the dataset's.
        config: how its stored masks were drawn.
        table: its tokenizer's.
    """

    seed: int
    config: MaskConfig
    table: TokenTable

    @classmethod
    def of(cls, dataset: str, info: DatasetInfo) -> Fresh:
        """For the dataset artifact at `dataset`.

        Raises:
            UsageError: its shards do not say how masks were drawn.
            DataError: its tokenizer is missing or damaged.
        """
        if info.masks is None:
            raise UsageError(f"{dataset} does not say how its masks were drawn; make it again, or leave out pretrain.dynamic")
        tokenizer = load(storage.join(dataset, "tokenizer"))
        config = MaskConfig.from_dict(info.masks)
        counts = read_unigrams(storage.join(dataset, UNIGRAMS)) if config.random_from == "corpus" else None
        return cls(seed=info.seed, config=config, table=TokenTable.of(tokenizer, counts))

    def __call__(self, rows: MaskedRows, copies: I64) -> MaskedRows:
        """The same rows under masks number `copies`: int64 [B]."""
        unmasked = UnmaskedRows(
            keys=row_keys(self.seed, rows.documents, rows.sentences),
            input_ids=rows.ids,
            offsets=offsets_of(rows.lengths),
            segment_start=rows.segment_start,
        )
        numbers, which = np.unique(copies, return_inverse=True)
        masks = draw_masks(unmasked, self.config, self.table, numbers)
        wanted = np.arange(len(copies)) * len(numbers) + which
        counts = np.diff(masks.offsets)[wanted]
        index = ranges(masks.offsets[:-1][wanted], counts)
        return rows.with_masks(masks.positions[index], masks.input_ids[index], counts)

    def most(self, length: int) -> int:
        """The most predictions of a row of at most `length` tokens."""
        return int(self.config.predictions(length, length, 1.0))
