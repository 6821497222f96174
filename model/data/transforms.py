"""What an objective makes of rows before they become a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cloze.core.ragged import I64
from cloze.model.data.rows import MaskedRows
from cloze.model.layers.batch import Batch


class RowTransform(Protocol):
    """Collation of an objective that does not read masked rows as they are stored."""

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        """Return the batch of B rows.

        Args:
            samples: int64 [B], sample numbers of the rows in the run. What is drawn depends on
                them and a seed alone, so resuming is exact and ranks agree.
            plain: collates rows as they are stored.
        """
        ...

    def empty(self, batch: Batch) -> Batch:
        """Return a batch of padding with the fields that `collate` adds."""
        ...
