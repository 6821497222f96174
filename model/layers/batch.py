"""What is said of a batch everywhere: its type, and the label that asks for nothing. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.dataset.schema import NO_PAIR

if TYPE_CHECKING:
    from torch import Tensor

Batch = Mapping[str, "Tensor"]  # as `model.data.collate` makes it
IGNORE = NO_PAIR  # a label that takes no part in a loss: a row without a pair, or filler among the masked positions
