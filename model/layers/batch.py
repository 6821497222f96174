"""Batch type and the ignored label. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloze.pipeline.dataset.schema import NO_PAIR

if TYPE_CHECKING:
    from torch import Tensor

TensorBatch = Mapping[str, "Tensor"]  # created by `cloze.model.data.batch`
# Label that the losses ignore: a row without a pair, or filler of the masked positions.
IGNORE_INDEX = NO_PAIR
